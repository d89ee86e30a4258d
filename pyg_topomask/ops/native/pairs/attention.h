// The attention of one head, row by row, on keys and values that fill whole vectors.

#pragma once

#include "dropout.h"
#include "segments.h"
#include "vector.h"

namespace {

enum Kernel { LINEAR = 0, SIGNED_LINEAR = 1, SOFTMAX = 2, ADDITIVE = 3 };

// The fields and their order are those of `_Call` in fused_pairs.py.
struct Call {
    // Without a bound of its own, the mask bounds itself.
    int64_t rows, columns, heads, width, channels, threads, kernel, signed_norm, has_bound;
    int64_t entry_by_pair, entry_by_head, bound_by_pair, bound_by_head;  // strides, which their gradients share
    int64_t q_by_row, q_by_head, k_by_row, k_by_head, v_by_row, v_by_head;  // strides; gradients have no gaps
    double negative_slope;  // of the leaky ReLU of additive scores
    double dropout;         // probability of zeroing a pair's weight in the numerator
    int64_t seed;           // of the dropout
    const int32_t *rowptr, *col;
    const void *q, *k, *v;       // [rows, H, R], [columns, H, R], [columns, H, D]
    const void *entry, *bound;
    // Vectors that multiply the keys of pairs, [E, H, R], and the vector of each pair; null if there are none. The first
    // `common_edges` ones belong to any number of pairs, each of the others to exactly one.
    const void* edge;
    const int32_t* edge_of_pair;
    int64_t common_edges, edge_by_row, edge_by_head;
    void* sums;                  // [rows, H, D + 1 or D + 2]
    const void* grad;            // of the sums
    // Null in the forward pass; those of entry and bound also where they are not wanted.
    void *grad_q, *grad_k, *grad_v, *grad_entry, *grad_bound, *grad_edge;

    bool backward() const { return grad_q || grad_k || grad_v; }
    bool exponential() const { return kernel == SOFTMAX || kernel == ADDITIVE; }
    bool has_size() const { return has_bound || kernel == SIGNED_LINEAR; }
    bool has_denominator() const { return signed_norm || !has_size(); }
    int64_t result() const { return channels + has_size() + has_denominator(); }
};

// What a thread keeps of the row it works on: numbers of its pairs, and of its own channels.
template <class T>
struct Row {
    int64_t place = 0, count = 0;  // of its query and its sums: row and head
    const int32_t* col = nullptr;
    const T *entry = nullptr, *bound = nullptr;
    std::vector<T> entries, bounds;  // where they do not lie side by side
    std::vector<T> kernel, size, slope, kept, pair_grad, weight;
    Array<T> query, query_size, grad, sum;
    Array<T> edge, turned, keys;  // a vector of pairs, its product with the query, and the sum of their keys
};

// Keys and values of one head side by side, each filling whole vectors, and their gradients: of all columns, or of some
// from `first` on.
template <class T>
struct Packed {
    Array<T> numbers, grads;
    std::vector<Array<T>> shared;  // gradients of each segment that shares its columns
    int64_t first = 0;

    void read(const Call& c, int64_t head, int64_t keys, int64_t stride, int64_t a, int64_t b) {
        const T* k = static_cast<const T*>(c.k) + head * c.k_by_head;
        const T* v = static_cast<const T*>(c.v) + head * c.v_by_head;
        T* to = &numbers[(a - first) * stride];
        for (int64_t j = a; j < b; ++j, to += stride) {
            copy(k + j * c.k_by_row, c.width, to);
            copy(v + j * c.v_by_row, c.channels, to + keys);
        }
    }

    void write_grads(const Call& c, int64_t head, int64_t keys, int64_t stride, int64_t a, int64_t b) const {
        T *k = static_cast<T*>(c.grad_k), *v = static_cast<T*>(c.grad_v);
        const T* from = &grads[(a - first) * stride];
        for (int64_t j = a; j < b; ++j, from += stride) {
            const int64_t place = j * c.heads + head;
            copy(from, c.width, k + place * c.width);
            copy(from + keys, c.channels, v + place * c.channels);
        }
    }

    // Adds what the segments have of columns `a` to `b`.
    void add_shared(const std::vector<Segment>& segments, int64_t stride, int64_t a, int64_t b) {
        for (size_t s = 0; s < segments.size(); ++s) {
            if (!segments[s].shared) continue;
            const int64_t first = segments[s].first * stride;
            const int64_t from = std::max(a * stride, first), to = std::min(b * stride, first + int64_t(shared[s].size()));
            for (int64_t x = from; x < to; ++x) grads[x] += shared[s][x - first];
        }
    }
};

// One head. RV and DV are the vectors that features and channels fill, 0 where they are not known to the compiler.
template <class T, int RV, int DV>
class Attention {
   public:
    // Gradients of keys and values, which for column 0 would be at `grads`, are added there, and those of common edge
    // vectors at `edge_grads`; both null in the forward pass. Columns of a row lie within `reach` of each other.
    Attention(const Call& call, int64_t head, const Packed<T>& packed, int64_t reach, T* grads, T* edge_grads)
        : c(call), h(head), rv(vectors<T>(call.width)), dv(vectors<T>(call.channels)), keys(rv * Vec<T>::L),
          kv(packed.numbers.data() - packed.first * stride()), grads(grads), edge_grads(edge_grads),
          far(reach * stride() * int64_t(sizeof(T)) > CACHE) {}

    // Compiled once, not into each caller, so that all callers round alike.
    __attribute__((noinline)) void forward(int64_t i, Row<T>& row) const {
        start(i, row);
        T* sums = static_cast<T*>(c.sums) + row.place * c.result();
        weigh(row);
        row.sum.assign(dv * Vec<T>::L, T(0));
        sum_rows<DV>(row.weight.data(), kv + keys, stride(), row.col, row.count, dv, row.sum.data());
        sums = copy(row.sum.data(), c.channels, sums);
        if (c.has_denominator()) *sums++ = total(row.entry, row.kernel.data(), row.count);
        if (c.has_size()) *sums = total(row.bound, sizes(row), row.count);
    }

    __attribute__((noinline)) void backward(int64_t i, Row<T>& row) const {
        start(i, row);
        weigh(row);
        const T size_grad = start_gradients(row);
        pair_gradients(row);
        if (c.grad_entry) entry_gradients(row, size_grad);
        score_gradients(row, size_grad);
        row.sum.assign(keys, T(0));
        if (c.edge) edge_gradients(row);
        else sum_rows<RV>(row.pair_grad.data(), kv, stride(), row.col, row.count, rv, row.sum.data());
        add_to_columns(row);
        if (c.kernel == SIGNED_LINEAR && !c.signed_norm) size_gradients(row, size_grad);
        copy(row.sum.data(), c.width, static_cast<T*>(c.grad_q) + row.place * c.width);
    }

   private:
    const Call& c;
    static constexpr int64_t AHEAD = 16;       // pairs
    static constexpr int64_t CACHE = 1 << 18;  // bytes that a cache of the second level holds at least
    const int64_t h, rv, dv, keys;
    const T* kv;
    T *grads, *edge_grads;
    const bool far;

    int64_t stride() const { return (RV ? RV + DV : rv + dv) * Vec<T>::L; }

    const T* sizes(const Row<T>& row) const { return (c.kernel == SIGNED_LINEAR ? row.size : row.kernel).data(); }

    static T total(const T* a, const T* b, int64_t count) {
        T sum = 0;
        for (int64_t p = 0; p < count; ++p) sum += a[p] * b[p];
        return sum;
    }

    // Asks for what is needed two rows later.
    void fetch_row(int64_t i) const {
        const int64_t later = std::min(i + 2, c.rows - 1);
        fetch<0>(static_cast<const T*>(c.q) + later * c.q_by_row + h * c.q_by_head, c.width);
        if (c.backward()) fetch<0>(static_cast<const T*>(c.grad) + (later * c.heads + h) * c.result(), c.result());
    }

    // Asks for the numbers of columns long before they are used; `more` pairs follow the row.
    void fetch_columns(const Row<T>& row, int64_t more) const {
        const int32_t* col = row.col + std::min(AHEAD, more);
        for (int64_t p = 0; p < row.count; ++p) {
            fetch<0>(kv + col[p] * stride(), stride());
            if (grads) fetch<1>(grads + col[p] * stride(), stride());
        }
    }

    // The query, the mask's entries and the kernel of each pair.
    void start(int64_t i, Row<T>& row) const {
        const int64_t first = c.rowptr[i];
        row.place = i * c.heads + h, row.count = c.rowptr[i + 1] - first, row.col = c.col + first;
        row.query.assign(keys, T(0)), row.kernel.resize(row.count);
        copy(static_cast<const T*>(c.q) + i * c.q_by_row + h * c.q_by_head, c.width, row.query.data());
        row.entry = read(c.entry, c.entry_by_pair, c.entry_by_head, first, row.count, row.entries);
        row.bound = c.has_bound ? read(c.bound, c.bound_by_pair, c.bound_by_head, first, row.count, row.bounds) : row.entry;
        fetch_row(i);
        if (far) fetch_columns(row, c.rowptr[c.rows] - first - row.count);
        if (c.edge) edge_scores(row);
        else dots<RV>(row.query.data(), kv, stride(), row.col, row.count, rv, row.kernel.data());
        if (c.kernel == ADDITIVE) bend(row);
        if (c.kernel == SIGNED_LINEAR) measure(row);
        if (c.exponential()) exponentials(largest(row.kernel.data(), row.bound, row.count), row.kernel.data(), row.count);
    }

    const T* read(const void* from, int64_t by_pair, int64_t by_head, int64_t first, int64_t count, std::vector<T>& to) const {
        const T* at = static_cast<const T*>(from) + h * by_head + first * by_pair;
        if (by_pair == 1) return at;
        to.resize(count);
        for (int64_t p = 0; p < count; ++p) to[p] = at[p * by_pair];
        return to.data();
    }

    // Calls run(from, to, number) for pairs that follow each other in the row and have one edge vector. `row.edge` is this
    // vector, `row.turned` its product with the query.
    template <class F>
    void for_each_edge(Row<T>& row, const F& run) const {
        const int32_t* number = c.edge_of_pair + (row.col - c.col);
        row.edge.assign(keys, T(0)), row.turned.resize(keys);
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
            dots<RV>(row.turned.data(), kv, stride(), row.col + p, until - p, rv, &row.kernel[p]);
        });
    }

    // Adds the row's share to the gradients of edge vectors and keys, and sums that of the query in `row.sum`.
    void edge_gradients(Row<T>& row) const {
        for_each_edge(row, [&](int64_t p, int64_t until, int64_t number) {
            row.keys.assign(keys, T(0));
            sum_rows<RV>(&row.pair_grad[p], kv, stride(), row.col + p, until - p, rv, row.keys.data());
            add_product(row.keys.data(), row.edge.data(), keys, row.sum.data());
            for (int64_t i = p; i < until; ++i)
                add<RV>(row.pair_grad[i], row.turned.data(), rv, grads + row.col[i] * stride());
            if (number < c.common_edges)
                return add_product(row.keys.data(), row.query.data(), keys, edge_grads + number * keys);
            T* to = static_cast<T*>(c.grad_edge) + (number * c.heads + h) * c.width;
            for (int64_t r = 0; r < c.width; ++r) to[r] = row.keys[r] * row.query[r];
        });
    }

    void measure(Row<T>& row) const {
        row.query_size.resize(keys), row.size.resize(row.count);
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
        row.slope.resize(row.count);
        const T slope = c.negative_slope;
        for (int64_t p = 0; p < row.count; ++p) row.slope[p] = row.kernel[p] > 0 ? T(1) : slope;
        for (int64_t p = 0; p < row.count; ++p) row.kernel[p] *= row.slope[p];
    }

    // Weights in the numerator.
    void weigh(Row<T>& row) const {
        row.weight.resize(row.count);
        for (int64_t p = 0; p < row.count; ++p) row.weight[p] = row.entry[p] * row.kernel[p];
        if (c.dropout == 0) return;
        row.kept.resize(row.count);
        keep_some(c.dropout, c.seed, (row.col - c.col) * c.heads + h, c.heads, row.count, row.kept.data());
        for (int64_t p = 0; p < row.count; ++p) row.weight[p] *= row.kept[p];
    }

    // Reads the gradient of the row's numerator; returns that of its size, which is a constant of signed normalisers.
    T start_gradients(Row<T>& row) const {
        const T* grad = static_cast<const T*>(c.grad) + row.place * c.result();
        row.grad.assign(dv * Vec<T>::L, T(0));
        copy(grad, c.channels, row.grad.data());
        return c.has_size() && !c.signed_norm ? grad[c.channels] : T(0);
    }

    // The gradients of the weights.
    void pair_gradients(Row<T>& row) const {
        const T* grad = static_cast<const T*>(c.grad) + row.place * c.result();
        const T denominator_grad = c.has_denominator() ? grad[c.channels] : T(0);
        row.pair_grad.resize(row.count);
        dots<DV>(row.grad.data(), kv + keys, stride(), row.col, row.count, dv, row.pair_grad.data());
        if (c.dropout != 0)
            for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] *= row.kept[p];
        for (int64_t p = 0; p < row.count; ++p) row.pair_grad[p] += denominator_grad;
    }

    void entry_gradients(const Row<T>& row, T size_grad) const {
        const int64_t first = row.col - c.col;
        T* entry = static_cast<T*>(c.grad_entry) + h * c.entry_by_head + first * c.entry_by_pair;
        for (int64_t p = 0; p < row.count; ++p) entry[p * c.entry_by_pair] += row.kernel[p] * row.pair_grad[p];
        if (size_grad == 0) return;
        const bool own = !c.has_bound;
        if (!own && !c.grad_bound) return;
        T* bound = own ? entry : static_cast<T*>(c.grad_bound) + h * c.bound_by_head + first * c.bound_by_pair;
        for (int64_t p = 0; p < row.count; ++p)
            bound[p * (own ? c.entry_by_pair : c.bound_by_pair)] += size_grad * sizes(row)[p];
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
            T* to = grads + col[p] * step;
            if (!c.edge) add<RV>(score[p], query, rv, to);
            add<DV>(weight[p], grad, dv, to + keys);
        }
    }

    // What the sizes |q| |k| add to the gradients of queries, in `row.sum`, and keys.
    void size_gradients(Row<T>& row, T size_grad) const {
        for (int64_t p = 0; p < row.count; ++p) {
            const T grad = size_grad * row.bound[p], *key = kv + row.col[p] * stride();
            T* to_key = grads + row.col[p] * stride();
            for (int64_t r = 0; r < keys; ++r) {
                row.sum[r] += row.query[r] < 0 ? -grad * std::abs(key[r]) : grad * std::abs(key[r]);
                to_key[r] += key[r] < 0 ? -grad * row.query_size[r] : grad * row.query_size[r];
            }
        }
    }
};

}  // namespace
