// Sums over the edges of each node, weighted by gates (gated_sum.py), in one pass over the edges that enter each node. The
// backward pass takes a second one, over the edges that leave each node. No result depends on the number of threads.

#include <memory>

#include "../array.h"
#include "../exponential.h"

namespace {

enum { NODES, EDGE, SCALE, ENDS, IN_FIRST, IN_EDGE, OUT_FIRST, OUT_EDGE, SUMS, E, GRAD_SUMS, GRAD_E, GRAD_NODES, GRAD_EDGE, GRAD_SCALE, ARRAYS };
enum { OWN, VALUE, TARGET, SOURCE, PARTS };  // of a row of `nodes`, C numbers each

constexpr int64_t TASK = 1 << 6;  // nodes
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

    const T* part(int64_t node, int64_t number) const { return nodes + (PARTS * node + number) * C; }
    T scale_of(int64_t at) const { return scale ? scale[at] : T(1); }

    void add(int64_t i, T* __restrict__ divisor) const {
        const T *own = part(i, OWN), *to = part(i, TARGET);
        T* __restrict__ sum = sums + i * C;
        std::fill(sum, sum + C, T(0)), std::fill(divisor, divisor + C, T(EPS));
        for (int64_t p = in[i]; p < in[i + 1]; ++p) {
            const int64_t at = in_edge[p];
            const T *value = part(source[at], VALUE), *from = part(source[at], SOURCE), *given = edge + at * C, s = scale_of(at);
            T* __restrict__ raw = e + at * C;
            for (int64_t c = 0; c < C; ++c) {
                raw[c] = to[c] + from[c] + given[c];
                const T gate = sigmoid(raw[c]) * s;
                sum[c] += gate * value[c], divisor[c] += gate;
            }
        }
        for (int64_t c = 0; c < C; ++c) sum[c] = own[c] + sum[c] / divisor[c];
    }

    // Gradients of the edges that enter node i, and of its part as their target.
    void differentiate_entering(int64_t i, T* __restrict__ mean, T* __restrict__ divisor) const {
        std::fill(mean, mean + C, T(0)), std::fill(divisor, divisor + C, T(EPS));
        for (int64_t p = in[i]; p < in[i + 1]; ++p) {
            const int64_t at = in_edge[p];
            const T *value = part(source[at], VALUE), *raw = e + at * C, s = scale_of(at);
            T* __restrict__ open = grad_edge + at * C;  // until the second loop
            for (int64_t c = 0; c < C; ++c) {
                open[c] = sigmoid(raw[c]);
                mean[c] += open[c] * s * value[c], divisor[c] += open[c] * s;
            }
        }
        const T* grad = grad_sums + i * C;
        T *__restrict__ weight = weights.get() + i * C, *__restrict__ of_target = divisor;
        for (int64_t c = 0; c < C; ++c) mean[c] /= divisor[c], weight[c] = grad[c] / divisor[c], of_target[c] = 0;
        for (int64_t p = in[i]; p < in[i + 1]; ++p) {
            const int64_t at = in_edge[p];
            const T *value = part(source[at], VALUE), *of_e = grad_e + at * C, s = scale_of(at);
            T* __restrict__ open = grad_edge + at * C;
            T of_scale = 0;
            for (int64_t c = 0; c < C; ++c) {
                const T along = weight[c] * (value[c] - mean[c]) * open[c];
                of_scale += along;
                open[c] = of_e[c] + along * s * (1 - open[c]);
                of_target[c] += open[c];
            }
            if (grad_scale) grad_scale[at] = of_scale;
        }
        if (!grad_nodes) return;
        T* to = grad_nodes + PARTS * i * C;
        std::copy(grad, grad + C, to + OWN * C), std::copy(of_target, of_target + C, to + TARGET * C);
    }

    // Gradients of node i as the source of the edges that leave it.
    void differentiate_leaving(int64_t i) const {
        T *__restrict__ of_value = grad_nodes + (PARTS * i + VALUE) * C, *__restrict__ of_source = of_value + (SOURCE - VALUE) * C;
        std::fill(of_value, of_value + C, T(0)), std::fill(of_source, of_source + C, T(0));
        for (int64_t p = out[i]; p < out[i + 1]; ++p) {
            const int64_t at = out_edge[p];
            const T *raw = e + at * C, *weight = weights.get() + target[at] * C, *of_edge = grad_edge + at * C, s = scale_of(at);
            for (int64_t c = 0; c < C; ++c) of_value[c] += sigmoid(raw[c]) * s * weight[c], of_source[c] += of_edge[c];
        }
    }

    // Calls function(node, room for 2 C numbers).
    template <class F>
    void for_nodes(const F& function) const {
        parallel(call.threads(), (count + TASK - 1) / TASK, [&](int64_t task, int64_t) {
            Array<T> room(2 * C);
            for (int64_t i = task * TASK; i < std::min(count, (task + 1) * TASK); ++i) function(i, room.data());
        });
    }

    void run() {
        if (!grad_sums) return for_nodes([&](int64_t i, T* room) { add(i, room); });
        if (!grad_edge) own_edges.reset(new T[edges * C]), grad_edge = own_edges.get();
        weights.reset(new T[count * C]);
        for_nodes([&](int64_t i, T* room) { differentiate_entering(i, room, room + C); });
        if (grad_nodes) for_nodes([&](int64_t i, T*) { differentiate_leaving(i); });
    }
};

}  // namespace

// With the gradients of both results, it computes those of the first three arrays, and otherwise the results.
EXPORTED int64_t gated_sum(const int64_t* block) {
    return for_dtype(block, ARRAYS, 0, NODES, [](const Call& call, auto zero) { Gated<decltype(zero)>{call}.run(); });
}
