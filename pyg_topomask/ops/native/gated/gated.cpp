// Sums over the edges of each node, weighted by gates (gated_sum.py), in one pass over the edges that enter each node. The
// backward pass takes a second one, over the edges that leave each node. No result depends on the number of threads.

#include <memory>

#include "../array.h"
#include "../exponential.h"

namespace {

enum { NODES, EDGE, SCALE, ENDS, IN_FIRST, IN_EDGE, OUT_FIRST, OUT_EDGE, SUMS, E, GRAD_SUMS, GRAD_E, GRAD_NODES, GRAD_EDGE, GRAD_SCALE, ARRAYS };
enum { OWN, VALUE, TARGET, SOURCE, PARTS };  // of a row of `nodes`, C numbers each

constexpr int64_t TASK = 1 << 6;  // nodes
constexpr int64_t AHEAD = 8;      // edges whose rows are asked for before they are used
constexpr int64_t VECTOR = 16;    // channels that fill vector registers: loops over so many leave no rest
constexpr double EPS = 1e-6;      // as in gated_sum.py

template <class T>
inline T sigmoid(T x) { return 1 / (1 + exponential(-x)); }

template <class T>
struct Gated {
    const Call& call;
    const int64_t count = call.size(NODES, 0), edges = call.size(EDGE, 0), C = call.size(EDGE, 1);
    const T *nodes = call.dense<const T>(NODES, {count, PARTS * C}), *edge = call.dense<const T>(EDGE, {edges, C});
    const T* scale = call.optional<const T>(SCALE, {edges, 1});
    const int32_t *source = call.dense<const int32_t>(ENDS, {2, edges}), *target = source + edges;
    const int32_t *in = call.dense<const int32_t>(IN_FIRST, {count + 1}), *in_edge = call.dense<const int32_t>(IN_EDGE, {edges});
    const int32_t *out = call.dense<const int32_t>(OUT_FIRST, {count + 1}), *out_edge = call.dense<const int32_t>(OUT_EDGE, {edges});
    T *sums = call.optional<T>(SUMS, {count, C}), *e = call.dense<T>(E, {edges, C});
    const T *grad_sums = call.optional<const T>(GRAD_SUMS, {count, C}), *grad_e = call.optional<const T>(GRAD_E, {edges, C});
    T *grad_nodes = call.optional<T>(GRAD_NODES, {count, PARTS * C}), *grad_edge = call.optional<T>(GRAD_EDGE, {edges, C});
    T* grad_scale = call.optional<T>(GRAD_SCALE, {edges, 1});
    std::unique_ptr<T[]> own_edges, weights;  // gradients of edges, if nobody wants them, and those of sums by their divisors

    // Channels `first` to `first + n`, of which the first `known` were those of an earlier call, too.
    struct Channels {
        int64_t first, n, known;
    };

    const T* part(int64_t node, int64_t number) const { return nodes + (PARTS * node + number) * C; }
    T scale_of(int64_t at) const { return scale ? scale[at] : T(1); }
    int64_t later(const int32_t* order, int64_t p) const { return order[std::min(p + AHEAD, edges - 1)]; }

    void add(int64_t i, Channels channels, T* __restrict__ divisor) const {
        const int64_t first = channels.first, n = channels.n;
        const T *own = part(i, OWN) + first, *to = part(i, TARGET) + first;
        T* __restrict__ sum = sums + i * C + first;
        std::fill(sum, sum + n, T(0)), std::fill(divisor, divisor + n, T(EPS));
        for (int64_t p = in[i]; p < in[i + 1]; ++p) {
            const int64_t at = in_edge[p], next = later(in_edge, p);
            fetch<0>(edge + next * C + first, n), fetch<1>(e + next * C + first, n);
            fetch<0>(part(source[next], VALUE) + first, n), fetch<0>(part(source[next], SOURCE) + first, n);
            const T *value = part(source[at], VALUE) + first, *from = part(source[at], SOURCE) + first;
            const T *given = edge + at * C + first, s = scale_of(at);
            T* __restrict__ raw = e + at * C + first;
            for (int64_t c = 0; c < n; ++c) {
                raw[c] = to[c] + from[c] + given[c];
                const T gate = sigmoid(raw[c]) * s;
                sum[c] += gate * value[c], divisor[c] += gate;
            }
        }
        for (int64_t c = 0; c < n; ++c) sum[c] = own[c] + sum[c] / divisor[c];
    }

    // Gradients of the edges that enter node i, and of its part as their target.
    void differentiate_entering(int64_t i, Channels channels, T* __restrict__ mean, T* __restrict__ divisor) const {
        const int64_t first = channels.first, n = channels.n;
        std::fill(mean, mean + n, T(0)), std::fill(divisor, divisor + n, T(EPS));
        for (int64_t p = in[i]; p < in[i + 1]; ++p) {
            const int64_t at = in_edge[p], next = later(in_edge, p);
            fetch<0>(e + next * C + first, n), fetch<0>(part(source[next], VALUE) + first, n);
            const T *value = part(source[at], VALUE) + first, *raw = e + at * C + first, s = scale_of(at);
            T* __restrict__ open = grad_edge + at * C + first;  // until the second loop
            for (int64_t c = 0; c < n; ++c) {
                open[c] = sigmoid(raw[c]);
                mean[c] += open[c] * s * value[c], divisor[c] += open[c] * s;
            }
        }
        const T* grad = grad_sums + i * C + first;
        T *__restrict__ weight = weights.get() + i * C + first, *__restrict__ of_target = divisor;
        for (int64_t c = 0; c < n; ++c) mean[c] /= divisor[c], weight[c] = grad[c] / divisor[c], of_target[c] = 0;
        for (int64_t p = in[i]; p < in[i + 1]; ++p) {
            const int64_t at = in_edge[p];
            const T *value = part(source[at], VALUE) + first, *of_e = grad_e + at * C + first, s = scale_of(at);
            T* __restrict__ open = grad_edge + at * C + first;
            T of_scale = 0;
            for (int64_t c = 0; c < n; ++c) {
                const T along = weight[c] * (value[c] - mean[c]) * open[c];
                of_scale += c < channels.known ? T(0) : along;
                open[c] = of_e[c] + along * s * (1 - open[c]);
                of_target[c] += open[c];
            }
            if (grad_scale) grad_scale[at] = first ? grad_scale[at] + of_scale : of_scale;
        }
        if (!grad_nodes) return;
        T* to = grad_nodes + PARTS * i * C + first;
        std::copy(grad, grad + n, to + OWN * C), std::copy(of_target, of_target + n, to + TARGET * C);
    }

    // Gradients of node i as the source of the edges that leave it.
    void differentiate_leaving(int64_t i, Channels channels) const {
        const int64_t first = channels.first, n = channels.n;
        T* __restrict__ of_value = grad_nodes + (PARTS * i + VALUE) * C + first;
        T* __restrict__ of_source = of_value + (SOURCE - VALUE) * C;
        std::fill(of_value, of_value + n, T(0)), std::fill(of_source, of_source + n, T(0));
        for (int64_t p = out[i]; p < out[i + 1]; ++p) {
            const int64_t at = out_edge[p], next = later(out_edge, p);
            fetch<0>(e + next * C + first, n), fetch<0>(weights.get() + target[next] * C + first, n);
            const T *raw = e + at * C + first, *weight = weights.get() + target[at] * C + first;
            const T *of_edge = grad_edge + at * C + first, s = scale_of(at);
            for (int64_t c = 0; c < n; ++c) of_value[c] += sigmoid(raw[c]) * s * weight[c], of_source[c] += of_edge[c];
        }
    }

    // Calls function(node, channels, room for 2 C numbers): first for whole vectors, then for a vector of the last channels.
    template <class F>
    void for_nodes(const F& function) const {
        const int64_t whole = C / VECTOR * VECTOR, last = std::max<int64_t>(C - VECTOR, 0);
        parallel(call.threads(), (count + TASK - 1) / TASK, [&](int64_t task, int64_t) {
            Array<T> room(2 * C);
            for (int64_t i = task * TASK; i < std::min(count, (task + 1) * TASK); ++i) {
                if (whole) function(i, Channels{0, whole, 0}, room.data());
                if (whole < C) function(i, Channels{last, C - last, whole - last}, room.data());
            }
        });
    }

    void run() {
        if (!grad_sums) return for_nodes([&](int64_t i, Channels channels, T* room) { add(i, channels, room); });
        if (!grad_edge) own_edges.reset(new T[edges * C]), grad_edge = own_edges.get();
        weights.reset(new T[count * C]);
        for_nodes([&](int64_t i, Channels channels, T* room) { differentiate_entering(i, channels, room, room + C); });
        if (grad_nodes) for_nodes([&](int64_t i, Channels channels, T*) { differentiate_leaving(i, channels); });
    }
};

}  // namespace

// With the gradients of both results, it computes those of the first three arrays, and otherwise the results.
EXPORTED int64_t gated_sum(const int64_t* block) {
    return for_dtype(block, ARRAYS, 0, NODES, [](const Call& call, auto zero) { Gated<decltype(zero)>{call}.run(); });
}
