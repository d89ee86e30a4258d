// The attention of one head, on keys and values that fill whole vectors.

#pragma once

#include <numeric>

#include "../draws.h"
#include "packed.h"

namespace {

// Where a head adds gradients: those of keys and values, at `columns` that of column 0; those of common edge vectors; and
// those of the numbers of entries and bounds that do not belong to pairs.
template <class T>
struct Gradients {
    T *columns = nullptr, *edge = nullptr;
    double* masks[2] = {};
};

// One head. RV and DV are the vectors that features and channels fill, 0 where they are not known to the compiler.
template <class T, int RV, int DV>
class Attention {
   public:
    // Columns of a row lie within `reach` of each other.
    Attention(const Problem<T>& call, int64_t head, const Packed<T>& packed, int64_t reach, const Gradients<T>& grads)
        : c(call), h(head), features(vectors<T>(call.width)), channels(vectors<T>(call.channels)),
          kv(packed.numbers.data() - packed.first * stride()), grads(grads), far(reach * stride() * int64_t(sizeof(T)) > CACHE) {}

    // Compiled once, not into each caller, so that all callers round alike.
    __attribute__((noinline)) void forward(Window<T>& w) const {
        start(w);
        weigh(w);
        grow(w.sum, dv() * L);
        for (int64_t i = w.from; i < w.to; ++i) {
            const Row row = w.row(c, i, h);
            const auto value = [this, &row](int64_t p) { return kv + row.col[p] * stride() + rv() * L; };
            sum_rows<DV>(&w.weight[row.first], value, row.count, dv(), (dv() - 1) * L, w.sum.data());
            finish(row, w.sum.data(), total(w.bound, w.kernel, row));
        }
    }

    __attribute__((noinline)) void backward(Window<T>& w) const {
        start(w);
        weigh(w);
        pair_gradients(w);
        if (c.masks[0].grad || c.masks[1].grad) entry_gradients(w);
        score_gradients(w);
        grow(w.sum, std::max(rv(), dv()) * L);
        for (int64_t i = w.from; i < w.to; ++i) {
            const Row row = w.row(c, i, h);
            const auto key = [this, &row](int64_t p) { return kv + row.col[p] * stride(); };
            if (c.edge) edge_gradients(w, row);
            else sum_rows<RV>(&w.pair_grad[row.first], key, row.count, rv(), (rv() - 1) * L, w.sum.data());
            add_to_columns(w, row);
            if (c.grad_q) copy(w.sum.data(), c.width, c.grad_q + row.place * c.width);
        }
    }

   private:
    static constexpr int64_t L = Vec<T>::L;
    static constexpr int64_t AHEAD = 32;       // pairs
    static constexpr int64_t ROWS_AHEAD = 24;
    static constexpr int64_t CACHE = 1 << 18;  // bytes that a cache of the second level holds at least
    const Problem<T>& c;
    const int64_t h, features, channels;
    const T* kv;
    const Gradients<T> grads;
    const bool far;

    int64_t rv() const { return RV ? RV : features; }
    int64_t dv() const { return DV ? DV : channels; }
    int64_t stride() const { return (rv() + dv()) * L; }
    const T* query(const Window<T>& w, const Row& row) const { return &w.queries[(row.index - w.from) * rv() * L]; }

    static T total(const T* a, const Array<T>& b, const Row& row) {
        T sum = 0;
        for (int64_t p = row.first; p < row.first + row.count; ++p) sum += a[p] * b[p];
        return sum;
    }

    // Asks for what some rows later is read and written.
    INLINED void fetch_row(int64_t i) const {
        const int64_t node = c.node(std::min(i + ROWS_AHEAD, c.rows - 1)), place = node * c.heads + h;
        fetch<0>(c.q(node, h), c.width);
        if (!c.backward()) return fetch<1>(c.out + place * c.channels, c.channels);
        fetch<0>(c.grad + place * c.channels, c.channels);
        if (c.grad_q) fetch<1>(c.grad_q + place * c.width, c.width);
    }

    // Asks for the numbers of columns long before they are used.
    INLINED void fetch_columns(const Row& row) const {
        const int32_t* col = row.col + std::min(AHEAD, c.col + c.pairs - row.col - row.count);
        for (int64_t p = 0; p < row.count; ++p) {
            fetch<0>(kv + col[p] * stride(), stride());
            if (grads.columns) fetch<1>(grads.columns + col[p] * stride(), stride());
        }
    }

    // The queries, the mask's entries and the kernel of each pair.
    void start(Window<T>& w) const {
        w.entry = w.bound = read(c.masks[0], w, w.entries);
        if (c.has_bound) w.bound = read(c.masks[1], w, w.bounds);
        grow(w.queries, (w.to - w.from) * rv() * L);
        T* kernel = w.pairs(w.kernel);
        for (int64_t i = w.from; i < w.to; ++i) {
            const Row row = w.row(c, i, h);
            fetch_row(i);
            if (far) fetch_columns(row);
            copy(c.q(row.node, h), c.width, &w.queries[(row.index - w.from) * rv() * L]);
            if (c.edge) edge_scores(w, row);
            else scores(query(w, row), row, 0, row.count, kernel);
            if (c.kernel == ADDITIVE) bend(w, row);
            if (!c.exponential()) continue;
            const T top = largest(kernel + row.first, w.bound + row.first, row.count);
            for (int64_t p = row.first; p < row.first + row.count; ++p) kernel[p] -= top;
        }
        if (c.exponential()) exponentials(kernel, w.padded());
    }

    // Entries or bounds, which may be read up to the end of the last block.
    const T* read(const Entries<T>& x, Window<T>& w, Array<T>& array) const {
        const T* at = x.numbers + h * x.by_head + w.first * x.by_pair;
        if (x.by_pair && w.first + w.padded() <= c.pairs) return at;
        T* to = w.pairs(array);
        if (x.coeffs) x.evaluate(h, w.first, w.count, to, w.last);
        else for (int64_t p = 0; p < w.count; ++p) to[p] = at[p * x.by_pair];
        return to;
    }

    // Products of `x` with the keys of pairs `p` to `until` of the row; writes whole vectors.
    void scores(const T* x, const Row& row, int64_t p, int64_t until, T* kernel) const {
        const auto key = [this, col = row.col + p](int64_t i) { return kv + col[i] * stride(); };
        dots<RV>(x, key, until - p, rv(), (rv() - 1) * L, kernel + row.first + p);
    }

    // The row's mean, 0 where the denominator vanishes, as in `Problem.finish` in problem.py.
    void finish(const Row& row, const T* sum, T size) const {
        const bool vanished = size < std::numeric_limits<T>::min() * (1 << 14);
        c.size[row.place] = vanished ? T(0) : size;
        T* to = c.out + row.place * c.channels;
        for (int64_t d = 0; d < c.channels; ++d) to[d] = vanished ? T(0) : sum[d] / size;
    }

    // Calls run(from, to, number) for pairs that follow each other in the row and have one edge vector. `w.edge` is this
    // vector, `w.turned` its product with the query.
    template <class F>
    void for_each_edge(Window<T>& w, const Row& row, const F& run) const {
        const int32_t* number = c.edge_of_pair + (row.col - c.col);
        grow(w.edge, rv() * L), grow(w.turned, rv() * L);
        for (int64_t p = 0, until; p < row.count; p = until) {
            for (until = p + 1; until < row.count && number[until] == number[p];) ++until;
            const T* of_row = query(w, row);
            copy(c.edge + (number[p] * c.heads + h) * c.width, c.width, w.edge.data());
            for (int64_t r = 0; r < rv() * L; ++r) w.turned[r] = of_row[r] * w.edge[r];
            run(p, until, number[p]);
        }
    }

    void edge_scores(Window<T>& w, const Row& row) const {
        for_each_edge(w, row, [&](int64_t p, int64_t until, int64_t) {
            scores(w.turned.data(), row, p, until, w.kernel.data());
        });
    }

    // Adds the row's share to the gradients of edge vectors and keys, and sums that of the query in `w.sum`.
    void edge_gradients(Window<T>& w, const Row& row) const {
        const int64_t keys = rv() * L;
        const T* pair_grad = &w.pair_grad[row.first];
        grow(w.keys, keys);
        std::fill_n(w.sum.data(), keys, T(0));
        for_each_edge(w, row, [&](int64_t p, int64_t until, int64_t number) {
            const auto key = [this, col = row.col + p](int64_t i) { return kv + col[i] * stride(); };
            sum_rows<RV>(pair_grad + p, key, until - p, rv(), (rv() - 1) * L, w.keys.data());
            add_product(w.keys.data(), w.edge.data(), keys, w.sum.data());
            for (int64_t i = p; i < until; ++i)
                add<RV>(pair_grad[i], w.turned.data(), rv(), grads.columns + row.col[i] * stride());
            if (!c.grad_edge) return;
            if (number < c.common_edges)
                return add_product(w.keys.data(), query(w, row), keys, grads.edge + number * keys);
            T* to = c.grad_edge + (number * c.heads + h) * c.width;
            for (int64_t r = 0; r < c.width; ++r) to[r] = w.keys[r] * query(w, row)[r];
        });
    }

    // The leaky ReLU of scores.
    void bend(Window<T>& w, const Row& row) const {
        T *slope = w.pairs(w.slope), *kernel = w.kernel.data();
        const T below = T(c.negative_slope);
        for (int64_t p = row.first; p < row.first + row.count; ++p) {
            slope[p] = kernel[p] > 0 ? T(1) : below;
            kernel[p] *= slope[p];
        }
    }

    // Weights in the numerator.
    void weigh(Window<T>& w) const {
        T* weight = w.pairs(w.weight);
        for (int64_t p = 0; p < w.padded(); ++p) weight[p] = w.entry[p] * w.kernel[p];
        if (c.dropout == 0) return;
        keep_some(c.dropout, *c.seed, w.first * c.heads + h, c.heads, w.count, w.pairs(w.kept));
        for (int64_t p = 0; p < w.padded(); ++p) weight[p] *= w.kept[p];
    }

    // The gradients of the weights. That of each row's denominator belongs to all entries of the row, or to all bounds.
    void pair_gradients(Window<T>& w) const {
        T *pair_grad = w.pairs(w.pair_grad), *size_grad = w.pairs(w.size_grad);
        grow(w.grads, (w.to - w.from) * dv() * L);
        for (int64_t i = w.from; i < w.to; ++i) {
            const Row row = w.row(c, i, h);
            T *grad = &w.grads[(i - w.from) * dv() * L], *to = pair_grad + row.first;
            copy(c.grad + row.place * c.channels, c.channels, grad);
            const T size = c.size[row.place], inverse = size == 0 ? T(0) : 1 / size;
            for (int64_t d = 0; d < dv() * L; ++d) grad[d] *= inverse;
            const auto value = [this, &row](int64_t p) { return kv + row.col[p] * stride() + rv() * L; };
            dots<DV>(grad, value, row.count, dv(), (dv() - 1) * L, to);
            const T of_size = size == 0 ? T(0) : c.grad_size[row.place] - total(w.weight.data(), w.pair_grad, row) / size;
            if (c.dropout != 0)
                for (int64_t p = 0; p < row.count; ++p) to[p] *= w.kept[row.first + p];
            if (c.has_bound) std::fill_n(size_grad + row.first, row.count, of_size);
            else for (int64_t p = 0; p < row.count; ++p) to[p] += of_size;
        }
    }

    void entry_gradients(Window<T>& w) const {
        T* grad = w.pairs(w.entry_grad);
        for (int64_t p = 0; p < w.padded(); ++p) grad[p] = w.kernel[p] * w.pair_grad[p];
        if (c.masks[0].grad) add_entries(w, c.masks[0], grads.masks[0]);
        if (!c.masks[1].grad) return;
        for (int64_t p = 0; p < w.padded(); ++p) grad[p] = w.size_grad[p] == 0 ? T(0) : w.size_grad[p] * w.kernel[p];
        add_entries(w, c.masks[1], grads.masks[1]);
    }

    // Adds `w.entry_grad` to the gradients of entries or bounds, or to those of their numbers.
    void add_entries(Window<T>& w, const Entries<T>& x, double* sums) const {
        std::fill(w.entry_grad.begin() + w.count, w.entry_grad.begin() + w.padded(), T(0));
        const T* from = w.entry_grad.data();
        if (x.coeffs) return x.add_gradients(w.first, w.count, from, w.last, w.lanes, sums);
        if (!x.by_pair) *sums = std::accumulate(from, from + w.count, *sums);
        T* to = x.grad + h * x.by_head + w.first;
        for (int64_t p = 0; x.by_pair && p < w.count; ++p) to[p] += from[p];
    }

    // The gradient of a weight becomes that of the pair's score.
    void score_gradients(Window<T>& w) const {
        T* grad = w.pair_grad.data();
        for (int64_t p = 0; p < w.padded(); ++p) grad[p] *= w.entry[p];
        if (c.has_bound)
            for (int64_t p = 0; p < w.padded(); ++p) grad[p] += w.bound[p] * w.size_grad[p];
        if (c.exponential())
            for (int64_t p = 0; p < w.padded(); ++p) grad[p] *= w.kernel[p];
        if (c.kernel == ADDITIVE)
            for (int64_t p = 0; p < w.count; ++p) grad[p] *= w.slope[p];
    }

    // Adds the row's share to the gradients of keys and values.
    void add_to_columns(const Window<T>& w, const Row& row) const {
        const T *score = &w.pair_grad[row.first], *weight = &w.weight[row.first];
        const T *of_keys = query(w, row), *of_values = &w.grads[(row.index - w.from) * dv() * L];
        for (int64_t p = 0; p < row.count; ++p) {
            T* to = grads.columns + row.col[p] * stride();
            if (!c.edge) add<RV>(score[p], of_keys, rv(), to);
            add<DV>(weight[p], of_values, dv(), to + rv() * L);
        }
    }
};

}  // namespace
