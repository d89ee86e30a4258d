// Linear attention under a mask M, Y_i = sum_j M_ij k_j v_j^T and sums_i = q_i^T Y_i, without the columns k_j v_j^T of all
// features and values at once. A slice is what one value and some features give: a row of L numbers for each node.
//
// With the gradient g of the sums, the gradient of Y is Z_i = q_i g_i^T, and U = M^T Z gives
//
//   grad_q_i = Y_i g_i,   grad_k_j = U_j v_j,   grad_v_j = U_j^T k_j.

#pragma once

#include "array.h"

namespace {

constexpr int AT_LEAST = 3;  // values at once
template <int BYTES>
constexpr int AT_MOST = BYTES > 32 ? AT_LEAST : 2 * AT_LEAST;  // rows of narrow vectors are as long as those of wide ones
constexpr int FEW_BYTES = std::min(32, VECTOR_BYTES);  // of the rows of few features

// What all functions of this kind begin with; what M consists of follows, and then the numbers from SUMS on.
enum { Q, K, V, COEFFS, STRUCTURE };

template <class T>
struct Attention {
    const Call& call;
    const int64_t nodes = call.size(Q, 0), heads = call.size(Q, 1), features = call.size(Q, 2), values = call.size(V, 2);
    const T* q = call.dense<const T>(Q, {nodes, heads, features});
    const T* k = call.dense<const T>(K, {nodes, heads, features});
    const T* v = call.dense<const T>(V, {nodes, heads, values});
    const int64_t first;  // of the arrays from SUMS on
    T* sums = call.optional<T>(first, {nodes, heads, values});
    const T* grad = call.optional<const T>(first + 1, {nodes, heads, values});  // of the sums; null in the forward pass
    T* grad_q = call.optional<T>(first + 2, {ANY, nodes, heads, features});     // of each part of the values
    T* grad_k = call.optional<T>(first + 3, {ANY, nodes, heads, features});
    T* grad_v = call.optional<T>(first + 4, {nodes, heads, values});
    double* grad_coeffs = call.optional<double>(first + 5, {heads, ANY, ANY});  // of each head and part

    const int64_t* order;  // node at each position, if products are computed in another order; or null

    Attention(const Call& call, int64_t first, const int64_t* order = nullptr) : call(call), first(first), order(order) {}
    int64_t node(int64_t i) const { return order ? order[i] : i; }
};

template <class T, int BYTES>
inline T total(const typename Vector<T, BYTES>::type& v) {
    if constexpr (BYTES <= 16) {
        T sum = 0;
        for (int l = 0; l < Vector<T, BYTES>::L; ++l) sum += v[l];
        return sum;
    } else {
        typedef Vector<T, BYTES / 2> Half;
        const auto both = reinterpret_cast<const T*>(&v);
        return total<T, BYTES / 2>(Half::load(both) + Half::load(both + Half::L));
    }
}

// The rows x_i f_i of L features and W values f of a head, and what becomes of the product with them.
template <class T, int BYTES, int W, bool ORDERED = false>
class Slice {
   public:
    typedef Vector<T, BYTES> Vec;
    typedef typename Vec::type Row;
    static constexpr int64_t L = Vec::L, NUMBERS = W * L;  // of each node

    const Attention<T>& a;
    const int64_t first, count;  // of the features
    const T *x, *f;              // f: numbers of the nodes for each value, as `dots` and `weight`
    const T* other = nullptr;    // rows, whose products with the results are added to `dots`
    T* dots = nullptr;
    T* rows = nullptr;  // to which the results times `weight` are added
    const T* weight = nullptr;

    Slice(const Attention<T>& a, int64_t head, int64_t feature, const T* x, const T* f)
        : a(a), first(head * a.features + feature), count(std::min(L, a.features - feature)), x(x), f(f) {}

    // Asks for what is read of a node.
    INLINED void fetch(int64_t i) const {
        ::fetch<0>(place(x, i), L);
        if (other) ::fetch<0>(place(other, i), L);
        if (rows) ::fetch<1>(place(rows, i), L);
    }

    void begin(int64_t i, Row* to) const {
        const Row row = load(x, i);
        for (int w = 0; w < W; ++w) to[w] = row * f[w * a.nodes + i];
    }

    // The rows of `other` for each value: a derivative by a coefficient is their product with its result.
    void receive(int64_t i, Row* to) const {
        const Row row = load(other, i);
        for (int w = 0; w < W; ++w) to[w] = row * weight[w * a.nodes + i];
    }

    // Adds a result times c. Returns the derivative by c.
    INLINED T add(int64_t i, T c, const Row* result) const {
        T along = 0;
        if (other) {
            const Row row = load(other, i);
            for (int w = 0; w < W; ++w) {
                const T dot = total<T, BYTES>(row * result[w]);
                dots[w * a.nodes + i] += c * dot;
                if (weight) along += dot * weight[w * a.nodes + i];
            }
        }
        if (rows) {
            Row row = load(rows, i);
            for (int w = 0; w < W; ++w) row += (c * weight[w * a.nodes + i]) * result[w];
            store(row, rows, i);
        }
        return along;
    }

   private:
    template <class Number>
    Number* place(Number* from, int64_t i) const { return from + (ORDERED ? a.order[i] : i) * a.heads * a.features + first; }

    Row load(const T* from, int64_t i) const {
        if (count == L) return Vec::load(place(from, i));
        Row row{};
        std::memcpy(&row, place(from, i), count * sizeof(T));
        return row;
    }
    void store(const Row& row, T* to, int64_t i) const {
        if (count == L) return Vec::store(row, place(to, i));
        std::memcpy(place(to, i), &row, count * sizeof(T));
    }
};

// Calls multiply(slice, head, gradient of the coefficients, memory) for all slices; `memory` holds so many rows. The
// gradient has `size` numbers for each head and part, and is null where nobody wants it. A part of the values is the work
// of one thread, and parts are added in Python: no result depends on the number of threads.
template <int BYTES, bool ORDERED = false, class T, class F>
void for_slices(const Attention<T>& a, int64_t parts, int64_t size, int64_t rows, const F& multiply) {
    constexpr int MOST = AT_MOST<BYTES>;
    constexpr int64_t L = Vector<T, BYTES>::L;
    const int64_t stride = a.heads * a.values, area = a.nodes * a.heads * a.features;
    std::vector<Array<T>> memory(a.call.threads());
    parallel(a.call.threads(), a.heads * parts, [&](int64_t task, int64_t thread) {
        const int64_t head = task / parts, part = task % parts, each = (a.values + parts * MOST - 1) / (parts * MOST) * MOST;
        memory[thread].resize(rows * MOST * L + 3 * MOST * a.nodes);
        T *own = memory[thread].data(), *v = own + rows * MOST * L, *g = v + MOST * a.nodes, *dots = g + MOST * a.nodes;
        T *grad_q = a.grad_q ? a.grad_q + part * area : nullptr, *grad_k = a.grad_k ? a.grad_k + part * area : nullptr;
        double* by_coeff = a.grad_coeffs ? a.grad_coeffs + task * size : nullptr;
        const auto for_some = [&](auto width, int64_t d) {
            constexpr int W = decltype(width)::value;
            const auto for_values = [&](const auto& run) {  // of each node
                for (int64_t w = 0; w < std::min<int64_t>(W, a.values - d); ++w)
                    for (int64_t i = 0; i < a.nodes; ++i) run(w * a.nodes + i, a.node(i) * stride + head * a.values + d + w);
            };
            std::fill(v, dots + MOST * a.nodes, T(0));
            for_values([&](int64_t to, int64_t from) { v[to] = a.v[from], g[to] = a.grad ? a.grad[from] : T(0); });
            for (int64_t r = 0; r < a.features; r += L) {
                if (!a.grad || grad_q) {
                    Slice<T, BYTES, W, ORDERED> forth(a, head, r, a.k, v);
                    if (a.grad) forth.rows = grad_q, forth.weight = g;
                    else forth.other = a.q, forth.dots = dots;
                    multiply(forth, head, nullptr, own);
                }
                if (a.grad && (grad_k || a.grad_v || by_coeff)) {
                    Slice<T, BYTES, W, ORDERED> back(a, head, r, a.q, g);
                    back.weight = v, back.other = a.k, back.dots = dots, back.rows = grad_k;
                    multiply(back, head, by_coeff, own);
                }
            }
            T* to = a.grad ? a.grad_v : a.sums;
            if (to) for_values([&](int64_t from, int64_t i) { to[i] = dots[from]; });
        };
        const int64_t end = std::min((part + 1) * each, a.values);
        for (int64_t d = part * each; d < end; d += MOST)
            if (end - d > AT_LEAST) for_some(std::integral_constant<int, MOST>(), d);
            else for_some(std::integral_constant<int, AT_LEAST>(), d);
    });
}

}  // namespace
