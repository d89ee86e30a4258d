// The attention of one head, row by row, on keys and values that fill whole vectors.

#pragma once

#include "dropout.h"
#include "packed.h"
#include "table.h"

namespace {

// What a thread keeps of the row it works on: numbers of its pairs, and of its own channels.
template <class T>
struct Row {
    int64_t index = 0, node = 0, place = 0;  // the row, its node, and the number of node and head
    int64_t first = 0, count = 0;            // its pairs
    T scale = 1;                                        // of the query
    const int32_t* col = nullptr;
    const T *entry = nullptr, *bound = nullptr;
    std::vector<T> entries, bounds;  // where they do not lie side by side
    std::vector<T> kernel, size, slope, kept, pair_grad, weight, entry_grad;
    Array<T> query, query_size, grad, sum;
    Array<T> edge, turned, keys, terms;  // a vector of pairs, its product with the query, the sum of their keys; of a table
};

// Where a head adds gradients: those of keys and values, at `columns` that of column 0; those of common edge vectors; and
// those of the weights of entries and bounds.
template <class T>
struct Gradients {
    T *columns = nullptr, *edge = nullptr;
    double *entry = nullptr, *bound = nullptr;
};

// One head. RV and DV are the vectors that features and channels fill, 0 where they are not known to the compiler.
template <class T, int RV, int DV>
class Attention {
   public:
    // Columns of a row lie within `reach` of each other.
    Attention(const Call& call, int64_t head, const Packed<T>& packed, int64_t reach, const Gradients<T>& grads)
        : c(call), h(head), rv(vectors<T>(call.width)), dv(vectors<T>(call.channels)), keys(rv * Vec<T>::L),
          kv(packed.numbers.data() - packed.first * stride()), grads(grads),
          entries(call.coeffs, call.terms, static_cast<const T*>(call.entry) + head * call.entry_by_head),
          bounds(call.bound_coeffs, call.terms, static_cast<const T*>(call.bound) + head * call.bound_by_head),
          far(reach * stride() * int64_t(sizeof(T)) > CACHE) {}

    // Compiled once, not into each caller, so that all callers round alike.
    __attribute__((noinline)) void forward(int64_t i, Row<T>& row) const {
        start(i, row);
        weigh(row);
        grow(row.sum, dv * Vec<T>::L);
        const auto value = [this, col = row.col](int64_t p) { return kv + col[p] * stride() + keys; };
        sum_rows<DV>(row.weight.data(), value, row.count, dv, (dv - 1) * Vec<T>::L, row.sum.data());
        const T denominator = c.has_denominator() ? total(row.entry, row.kernel.data(), row.count) : T(0);
        const T size = c.has_size() ? total(row.bound, sizes(row), row.count) : denominator;
        finish(row, c.has_denominator() ? denominator : size, size);
    }

    __attribute__((noinline)) void backward(int64_t i, Row<T>& row) const {
        start(i, row);
        weigh(row);
        const T denominator_grad = pair_gradients(row), size_grad = c.has_denominator() ? T(0) : denominator_grad;
        if (c.grad_entry || c.grad_bound) entry_gradients(row, size_grad);
        score_gradients(row, size_grad);
        grow(row.sum, std::max(rv, dv) * Vec<T>::L);
        const auto key = [this, col = row.col](int64_t p) { return kv + col[p] * stride(); };
        if (c.edge) edge_gradients(row);
        else sum_rows<RV>(row.pair_grad.data(), key, row.count, rv, (rv - 1) * Vec<T>::L, row.sum.data());
        add_to_columns(row);
        if (c.kernel == SIGNED_LINEAR && !c.signed_norm) size_gradients(row, size_grad);
        T* to = static_cast<T*>(c.grad_q) + row.place * c.width;
        copy_scaled(row.scale, row.sum.data(), c.width, to);
    }

   private:
    const Call& c;
    static constexpr int64_t AHEAD = 16;       // pairs
    static constexpr int64_t ROWS_AHEAD = 6;
    static constexpr int64_t CACHE = 1 << 18;  // bytes that a cache of the second level holds at least
    const int64_t h, rv, dv, keys;
    const T* kv;
    const Gradients<T> grads;
    const Table<T> entries, bounds;
    const bool far;

    int64_t stride() const { return (RV ? RV + DV : rv + dv) * Vec<T>::L; }

    const T* sizes(const Row<T>& row) const { return (c.kernel == SIGNED_LINEAR ? row.size : row.kernel).data(); }

    static T total(const T* a, const T* b, int64_t count) {
        T sum = 0;
        for (int64_t p = 0; p < count; ++p) sum += a[p] * b[p];
        return sum;
    }

    // Asks for what some rows later is read and written.
    INLINED void fetch_row(int64_t i) const {
        const int64_t node = c.node(std::min(i + ROWS_AHEAD, c.rows - 1)), place = node * c.heads + h;
        fetch<0>(static_cast<const T*>(c.q) + node * c.q_by_row + h * c.q_by_head, c.width);
        if (!c.backward()) return fetch<1>(static_cast<const T*>(c.sums) + place * c.numbers(), c.numbers());
        fetch<0>(static_cast<const T*>(c.grad) + place * c.numbers(), c.numbers());
        fetch<1>(static_cast<const T*>(c.grad_q) + place * c.width, c.width);
    }

    // Asks for the numbers of columns long before they are used; `more` pairs follow the row.
    INLINED void fetch_columns(const Row<T>& row, int64_t more) const {
        const int32_t* col = row.col + std::min(AHEAD, more);
        for (int64_t p = 0; p < row.count; ++p) {
            fetch<0>(kv + col[p] * stride(), stride());
            if (grads.columns) fetch<1>(grads.columns + col[p] * stride(), stride());
        }
    }

    // The query, the mask's entries and the kernel of each pair.
    void start(int64_t i, Row<T>& row) const {
        row.first = c.rowptr[i], row.count = c.rowptr[i + 1] - row.first, row.col = c.col + row.first;
        row.index = i, row.node = c.node(i), row.place = row.node * c.heads + h;
        fetch_row(i);
        if (far) fetch_columns(row, c.rowptr[c.rows] - row.first - row.count);
        read_query(row);
        row.entry = read(c.entry, c.coeffs, entries, c.entry_by_pair, c.entry_by_head, row, row.entries);
        row.bound = row.entry;
        if (c.has_bound) row.bound = read(c.bound, c.bound_coeffs, bounds, c.bound_by_pair, c.bound_by_head, row, row.bounds);
        grow(row.kernel, row.count + Vec<T>::L);
        if (c.edge) edge_scores(row);
        else scores(row.query.data(), row, 0, row.count);
        if (c.kernel == ADDITIVE) bend(row);
        if (c.kernel == SIGNED_LINEAR) measure(row);
        if (c.exponential()) exponentials(largest(row.kernel.data(), row.bound, row.count), row.kernel.data(), row.count);
    }

    void read_query(Row<T>& row) const {
        grow(row.query, keys);
        const T* query = static_cast<const T*>(c.q) + row.node * c.q_by_row + h * c.q_by_head;
        T size = 0;
        for (int64_t r = 0; c.key_scale && r < c.width; ++r) size += std::abs(query[r]);
        row.scale = power_of_two(size);
        copy_scaled(row.scale, query, c.width, row.query.data());
    }

    const T* read(const void* from, const void* coeffs, const Table<T>& table, int64_t by_pair, int64_t by_head,
                  const Row<T>& row, std::vector<T>& to) const {
        const T* at = static_cast<const T*>(from) + h * by_head + row.first * by_pair;
        if (!coeffs && by_pair == 1) return at;
        grow(to, row.count + Vec<T>::L);
        if (coeffs) table.evaluate(row.first, row.count, to.data());
        else for (int64_t p = 0; p < row.count; ++p) to[p] = at[p * by_pair];
        return to.data();
    }

    // Products of `x` with the keys of pairs `p` to `until`; writes whole vectors.
    void scores(const T* x, Row<T>& row, int64_t p, int64_t until) const {
        const auto key = [this, col = row.col + p](int64_t i) { return kv + col[i] * stride(); };
        dots<RV>(x, key, until - p, rv, (rv - 1) * Vec<T>::L, &row.kernel[p]);
    }

    // The row's sums, or its mean by the rules of `weighted_mean` in numerics.py.
    void finish(const Row<T>& row, T denominator, T size) const {
        T* to = static_cast<T*>(c.sums) + row.place * c.numbers();
        if (!c.tolerance) {
            to = copy(row.sum.data(), c.channels, to);
            *to++ = denominator;
            if (c.has_size() && c.has_denominator()) *to = size;
            return;
        }
        constexpr T least = std::numeric_limits<T>::min() * (1 << 14);
        const T tolerance = static_cast<const T*>(c.tolerance)[row.node * c.tolerance_by_row];
        const bool vanished = size < least || std::abs(denominator) <= tolerance * size;
        static_cast<T*>(c.denominator)[row.index * c.heads + h] = vanished ? T(0) : denominator;
        for (int64_t d = 0; d < c.channels; ++d) to[d] = vanished ? T(0) : row.sum[d] / denominator;
    }

    // Calls run(from, to, number) for pairs that follow each other in the row and have one edge vector. `row.edge` is this
    // vector, `row.turned` its product with the query.
    template <class F>
    void for_each_edge(Row<T>& row, const F& run) const {
        const int32_t* number = c.edge_of_pair + (row.col - c.col);
        grow(row.edge, keys), grow(row.turned, keys);
        for (int64_t p = 0, until; p < row.count; p = until) {
            for (until = p + 1; until < row.count && number[until] == number[p];) ++until;
            const T* edge = static_cast<const T*>(c.edge) + h * c.edge_by_head;
            copy(edge + number[p] * c.edge_by_row, c.width, row.edge.data());
            for (int64_t r = 0; r < keys; ++r) row.turned[r] = row.query[r] * row.edge[r];
            run(p, until, number[p]);
        }
    }

    void edge_scores(Row<T>& row) const {
        for_each_edge(row, [&](int64_t p, int64_t until, int64_t) {
            scores(row.turned.data(), row, p, until);
        });
    }

    // Adds the row's share to the gradients of edge vectors and keys, and sums that of the query in `row.sum`.
    void edge_gradients(Row<T>& row) const {
        grow(row.keys, keys);
        std::fill_n(row.sum.data(), keys, T(0));
        for_each_edge(row, [&](int64_t p, int64_t until, int64_t number) {
            const auto key = [this, col = row.col + p](int64_t i) { return kv + col[i] * stride(); };
            sum_rows<RV>(&row.pair_grad[p], key, until - p, rv, (rv - 1) * Vec<T>::L, row.keys.data());
            add_product(row.keys.data(), row.edge.data(), keys, row.sum.data());
            for (int64_t i = p; i < until; ++i)
                add<RV>(row.pair_grad[i], row.turned.data(), rv, grads.columns + row.col[i] * stride());
            if (number < c.common_edges)
                return add_product(row.keys.data(), row.query.data(), keys, grads.edge + number * keys);
            T* to = static_cast<T*>(c.grad_edge) + (number * c.heads + h) * c.width;
            for (int64_t r = 0; r < c.width; ++r) to[r] = row.keys[r] * row.query[r];
        });
    }

    void measure(Row<T>& row) const {
        grow(row.query_size, keys), grow(row.size, row.count);
        for (int64_t r = 0; r < keys; ++r) row.query_size[r] = std::abs(row.query[r]);
        for (int64_t p = 0; p < row.count; ++p) {
            const T* key = kv + row.col[p] * stride();
            T sum = 0;
            for (int64_t r = 0; r < keys; ++r) sum += row.query_size[r] * std::abs(key[r]);
            row.size[p] = sum;
        }
    }

    // The leaky ReLU of scores.
    void bend(Row<T>& row) const {
        grow(row.slope, row.count);
        const T slope = c.negative_slope;
        for (int64_t p = 0; p < row.count; ++p) row.slope[p] = row.kernel[p] > 0 ? T(1) : slope;
        for (int64_t p = 0; p < row.count; ++p) row.kernel[p] *= row.slope[p];
    }

    // Weights in the numerator.
    void weigh(Row<T>& row) const {
        grow(row.weight, row.count);
        for (int64_t p = 0; p < row.count; ++p) row.weight[p] = row.entry[p] * row.kernel[p];
        if (c.dropout == 0) return;
        grow(row.kept, row.count);
        keep_some(c.dropout, c.seed, row.first * c.heads + h, c.heads, row.count, row.kept.data());
        for (int64_t p = 0; p < row.count; ++p) row.weight[p] *= row.kept[p];
    }

    // The gradients of the weights; returns that of the denominator.
    T pair_gradients(Row<T>& row) const {
        const T* grad = static_cast<const T*>(c.grad) + row.place * c.numbers();
        grow(row.grad, dv * Vec<T>::L);
        grow(row.pair_grad, row.count + Vec<T>::L);
        copy(grad, c.channels, row.grad.data());
        const T total_sum = c.tolerance ? static_cast<const T*>(c.denominator)[row.index * c.heads + h] : T(0);
        for (int64_t d = 0; c.tolerance && d < c.channels; ++d) row.grad[d] = total_sum == 0 ? T(0) : row.grad[d] / total_sum;
        const auto value = [this, col = row.col](int64_t p) { return kv + col[p] * stride() + keys; };
        dots<DV>(row.grad.data(), value, row.count, dv, (dv - 1) * Vec<T>::L, row.pair_grad.data());
        T denominator_grad = c.tolerance ? T(0) : grad[c.channels];
        if (c.tolerance && total_sum != 0) denominator_grad = -total(row.weight.data(), row.pair_grad.data(), row.count) / total_sum;
        if (c.dropout != 0)
            for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] *= row.kept[p];
        if (c.has_denominator())
            for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] += denominator_grad;
        return denominator_grad;
    }

    void entry_gradients(Row<T>& row, T size_grad) const {
        grow(row.entry_grad, row.count);
        const T own_size_grad = c.has_bound ? T(0) : size_grad, *size = sizes(row);
        T* grad = row.entry_grad.data();
        for (int64_t p = 0; p < row.count; ++p) grad[p] = row.kernel[p] * row.pair_grad[p] + own_size_grad * size[p];
        if (c.grad_entry)
            add_entries(row, entries, c.coeffs, c.grad_entry, grads.entry, c.entry_by_pair, c.entry_by_head);
        if (!c.has_bound || size_grad == 0 || !c.grad_bound) return;
        for (int64_t p = 0; p < row.count; ++p) grad[p] = size_grad * size[p];
        add_entries(row, bounds, c.bound_coeffs, c.grad_bound, grads.bound, c.bound_by_pair, c.bound_by_head);
    }

    // Adds `row.entry_grad` to the gradients of entries or bounds, or to those of their weights.
    void add_entries(Row<T>& row, const Table<T>& table, const void* coeffs, void* grad, double* weight_grads,
                     int64_t by_pair, int64_t by_head) const {
        if (coeffs) return table.add_gradients(row.first, row.entry_grad.data(), row.count, row.terms, weight_grads);
        T* to = static_cast<T*>(grad) + h * by_head + row.first * by_pair;
        for (int64_t p = 0; p < row.count; ++p) to[p * by_pair] += row.entry_grad[p];
    }

    // The gradient of a weight becomes that of the pair's score.
    void score_gradients(Row<T>& row, T size_grad) const {
        const T of_size = c.kernel == SIGNED_LINEAR ? T(0) : size_grad;
        for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] = row.entry[p] * row.pair_grad[p] + row.bound[p] * of_size;
        if (c.exponential())
            for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] *= row.kernel[p];
        if (c.kernel == ADDITIVE)
            for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] *= row.slope[p];
    }

    // Adds the row's share to the gradients of keys and values.
    void add_to_columns(const Row<T>& row) const {
        const T *score = row.pair_grad.data(), *weight = row.weight.data(), *query = row.query.data(), *grad = row.grad.data();
        const int32_t* col = row.col;
        const int64_t count = row.count, step = stride();
        for (int64_t p = 0; p < count; ++p) {
            T* to = grads.columns + col[p] * step;
            if (!c.edge) add<RV>(score[p], query, rv, to);
            add<DV>(weight[p], grad, dv, to + keys);
        }
    }

    // What the sizes |q| |k| add to the gradients of queries, in `row.sum`, and keys.
    void size_gradients(Row<T>& row, T size_grad) const {
        for (int64_t p = 0; p < row.count; ++p) {
            const T grad = size_grad * row.bound[p], *key = kv + row.col[p] * stride();
            T* to_key = grads.columns + row.col[p] * stride();
            for (int64_t r = 0; r < keys; ++r) {
                row.sum[r] += row.query[r] < 0 ? -grad * std::abs(key[r]) : grad * std::abs(key[r]);
                to_key[r] += key[r] < 0 ? -grad * row.query_size[r] : grad * row.query_size[r];
            }
        }
    }
};

}  // namespace
