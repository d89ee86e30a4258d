// Sums of the sources' values over each node's edges, weighted by gates that are normalised channel by channel:
//
//   e_p   = target_i + source_j + edge_p           for the edge p = (j -> i),
//   g_p   = scale_p sigmoid(e_p),
//   out_i = (sum_p g_p value_j) / total_i,         total_i = sum_p g_p + EPS.
//
// Of the arrays with a row per edge only e is kept: the backward pass computes the gates again. It needs two sweeps. The
// first one goes over the edges that enter each node and writes the gradients of edges, targets and scales, the second
// one over those that leave it and writes the gradients of sources and values. A row of the result is the work of one
// thread and is summed in the order of its edges: no result depends on the number of threads.
//
// Plain C++17 and its standard library.

#include <initializer_list>

#include "../exponential.h"
#include "../parallel.h"

namespace {

struct Call {
    int64_t nodes, edges, channels, threads;
    int64_t target_by_row, source_by_row, value_by_row;  // strides; all other arrays have no gaps
    // Edges that enter each node, and their sources; edges that leave each node, and their targets.
    const int32_t *entering_ptr, *entering, *sources, *leaving_ptr, *leaving, *targets;
    const void *target, *source, *value, *edge, *scale;  // scale may be null, like all that follow
    void *out, *e, *total;
    const void *grad_out, *grad_e;
    void *slope;  // work space of the backward pass, [N, C]
    void *grad_target, *grad_source, *grad_value, *grad_edge, *grad_scale;
};

template <class T>
class Gated {
   public:
    explicit Gated(const Call& call) : c(call), channels(call.channels), work(call.threads, Array<T>(4 * channels)) {}

    void forward() {
        for_each_node([&](int64_t i, T* gate) { sum_gates(i, gate); });
    }

    void backward() {
        for_each_node([&](int64_t i, T* gate) { enter(i, gate); });
        for_each_node([&](int64_t j, T* gate) { leave(j, gate); });
    }

   private:
    static constexpr int64_t NODES = 64;  // of one task
    static constexpr int64_t AHEAD = 8;   // edges
    static constexpr T EPS = T(1e-6);     // keeps the result finite if all gates are closed
    const Call& c;
    const int64_t channels;
    std::vector<Array<T>> work;  // of each thread: the gates of an edge, and rows of its node

    static const T* in(const void* array, int64_t row, int64_t stride) { return static_cast<const T*>(array) + row * stride; }
    T* at(void* array, int64_t row) const { return static_cast<T*>(array) + row * channels; }
    const T* at(const void* array, int64_t row) const { return in(array, row, channels); }
    T scale_of(int64_t p) const { return c.scale ? static_cast<const T*>(c.scale)[p] : T(1); }

    // The number of the n-th edge of an order. Fetches the rows of a later edge: without this, half of the time is spent
    // on writing to rows that are in no cache.
    int64_t next(const int32_t* order, int64_t n, std::initializer_list<const void*> read, const void* written) const {
        const int64_t later = order[std::min<int64_t>(n + AHEAD, c.edges - 1)];
        for (const void* array : read) fetch<0>(at(array, later), channels);
        if (written) fetch<1>(at(written, later), channels);
        return order[n];
    }

    template <class F>
    void for_each_node(const F& run) {
        parallel(c.threads, (c.nodes + NODES - 1) / NODES, [&](int64_t task, int64_t thread) {
            const int64_t end = std::min((task + 1) * NODES, c.nodes);
            for (int64_t i = task * NODES; i < end; ++i) run(i, work[thread].data());
        });
    }

    void sigmoid(const T* __restrict x, T* __restrict to) const {
        for (int64_t i = 0; i < channels; ++i) to[i] = T(1) / (T(1) + exponential(-x[i]));
    }

    // Sums stay in work space until they are complete: writes to one array delay reads of others at like addresses.
    void sum_gates(int64_t i, T* __restrict gate) const {
        T* __restrict out = gate + channels;
        T* __restrict total = out + channels;
        T* __restrict target = total + channels;
        const T* given = in(c.target, i, c.target_by_row);
        std::fill(out, out + channels, T(0));
        std::fill(total, total + channels, EPS);
        for (int64_t x = 0; x < channels; ++x) target[x] = given[x];
        for (int64_t n = c.entering_ptr[i]; n < c.entering_ptr[i + 1]; ++n) {
            const int64_t p = next(c.entering, n, {c.edge}, c.e), j = c.sources[n];
            const T *source = in(c.source, j, c.source_by_row), *value = in(c.value, j, c.value_by_row);
            const T *edge = at(c.edge, p), scale = scale_of(p);
            T* __restrict e = at(c.e, p);
            for (int64_t x = 0; x < channels; ++x) e[x] = target[x] + source[x] + edge[x];
            sigmoid(e, gate);
            for (int64_t x = 0; x < channels; ++x) {
                out[x] += scale * gate[x] * value[x];
                total[x] += scale * gate[x];
            }
        }
        T* __restrict to = at(c.out, i);
        T* __restrict sum = at(c.total, i);
        for (int64_t x = 0; x < channels; ++x) to[x] = out[x] / total[x], sum[x] = total[x];
    }

    // d out = sum of (value - out) / total times the change of the gate; slope = grad / total.
    void enter(int64_t i, T* __restrict gate) const {
        const T *grad = at(c.grad_out, i), *total = at(c.total, i), *out = at(c.out, i);
        T* __restrict slope = at(c.slope, i);
        T* __restrict grad_target = at(c.grad_target, i);
        for (int64_t x = 0; x < channels; ++x) slope[x] = grad[x] / total[x];
        std::fill(grad_target, grad_target + channels, T(0));
        for (int64_t n = c.entering_ptr[i]; n < c.entering_ptr[i + 1]; ++n) {
            const int64_t p = next(c.entering, n, {c.e, c.grad_e ? c.grad_e : c.e}, c.grad_edge);
            const T *value = in(c.value, c.sources[n], c.value_by_row), *e = at(c.e, p), scale = scale_of(p);
            T* __restrict grad_edge = at(c.grad_edge, p);
            T grad_scale = 0;
            sigmoid(e, gate);
            for (int64_t x = 0; x < channels; ++x) {
                const T own = (value[x] - out[x]) * slope[x] * gate[x];
                grad_scale += own;
                grad_edge[x] = own * scale * (T(1) - gate[x]);
            }
            if (c.grad_e) add(at(c.grad_e, p), grad_edge);
            add(grad_edge, grad_target);
            if (c.grad_scale) static_cast<T*>(c.grad_scale)[p] = grad_scale;
        }
    }

    void leave(int64_t j, T* __restrict gate) const {
        T* __restrict grad_source = at(c.grad_source, j);
        T* __restrict grad_value = at(c.grad_value, j);
        std::fill(grad_source, grad_source + channels, T(0));
        std::fill(grad_value, grad_value + channels, T(0));
        for (int64_t n = c.leaving_ptr[j]; n < c.leaving_ptr[j + 1]; ++n) {
            const int64_t p = next(c.leaving, n, {c.e, c.grad_edge}, nullptr);
            const T *e = at(c.e, p), *slope = at(c.slope, c.targets[n]), *grad_edge = at(c.grad_edge, p), scale = scale_of(p);
            sigmoid(e, gate);
            for (int64_t x = 0; x < channels; ++x) {
                grad_source[x] += grad_edge[x];
                grad_value[x] += scale * gate[x] * slope[x];
            }
        }
    }

    void add(const T* __restrict x, T* __restrict to) const {
        for (int64_t i = 0; i < channels; ++i) to[i] += x[i];
    }
};

// 0 if all went well, -1 if memory is short, -2 at any other exception.
template <class T>
int run(const Call& call, int backward) try {
    Gated<T> gated(call);
    backward ? gated.backward() : gated.forward();
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

int gated_sum_float(const Call* call, int backward) { return run<float>(*call, backward); }

int gated_sum_double(const Call* call, int backward) { return run<double>(*call, backward); }
}
