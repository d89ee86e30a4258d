// Sums of masked linear attention in dense blocks, one block of the mask for each graph, or one that graphs or heads share.
//
//   numerator_i = sum_j M_ji K_ji v_j,   denominator_i = sum_j M_ji K_ji,   size_i = sum_j B_ji K_ji
//
// over all senders j of the graph of the receiver i, with K_ji = k_j . q_i and the bounding mask B >= |M|. A row of the
// result holds the numerator, the denominator if it is wanted, and the size unless the mask bounds itself. The backward
// pass computes K again.
//
// Products are computed for square tiles of a block, which stay in the cache of the first level: no array of one number
// per pair and head is formed.
//
// The graphs and heads that share a block of the mask are cut into parts, each with its own gradient of the block. Their
// number does not depend on that of threads, so no result does. Plain C++17 and its standard library.

#include "../product.h"

namespace {

constexpr int64_t TILE = 64;  // senders, and receivers, of a tile

// The fields and their order are those of `_Call` in linear_blocks.py. Rows have no gaps.
struct Call {
    int64_t graphs, heads, nodes, width, channels, threads, parts, signed_norm, has_bound;
    int64_t mask_by_graph, mask_by_head;  // strides of blocks; 0 if graphs or heads share them
    int64_t q_by_graph, q_by_head, q_by_row, k_by_graph, k_by_head, k_by_row, v_by_graph, v_by_head, v_by_row;
    const void *q, *k, *v, *entry, *bound;  // blocks [nodes, nodes] (senders, receivers); the same if there is no bound
    void* sums;                             // [graphs, nodes, heads, D + 1 or D + 2]
    const void* grad;                       // of the sums
    void *grad_q, *grad_k, *grad_v;         // as the sums; null in the forward pass
    void *grad_entry, *grad_bound;              // [parts, graphs or 1, heads or 1, nodes, nodes], zeros, or null

    bool has_denominator() const { return signed_norm || !has_bound; }
    int64_t result() const { return channels + has_denominator() + has_bound; }
};

// One head of one graph at a time; the arrays are used again.
template <class T>
class Block {
   public:
    explicit Block(const Call& call)
        : c(call), n(padded<T>(c.nodes)), kw(padded<T>(c.width)), vw(padded<T>(c.channels)), keys(n * kw), queries(n * kw),
          values(n * vw), sums(n * vw), grad_keys(n * kw), grad_queries(n * kw), grad_values(n * vw),
          queries_by_column(c.width * n), sums_by_column(c.channels * n), denominator(n), size(n), score(TILE * TILE),
          weight(TILE * TILE), slope(TILE * TILE) {}

    void forward(int64_t graph, int64_t head) {
        read(graph, head);
        for (Array<T>* x : {&sums, &denominator, &size}) std::fill(x->begin(), x->end(), T(0));
        in_tiles([&](int64_t i, int64_t j) {
            scores(i, j);
            weigh(i, j);
            add_product(weight.data(), 1, TILE, lanes(i), rows(j), values.data() + j * vw, vw, vw, sums.data() + i * vw, vw);
        });
        T* to = static_cast<T*>(c.sums) + (graph * c.nodes * c.heads + head) * c.result();
        for (int64_t i = 0; i < c.nodes; ++i, to += c.heads * c.result()) {
            copy(sums.data() + i * vw, c.channels, to);
            if (c.has_denominator()) to[c.channels] = denominator[i];
            if (c.has_bound) to[c.result() - 1] = size[i];
        }
    }

    // Gradients of the mask are added to `grad_entry` and `grad_bound`, unless they are null.
    void backward(int64_t graph, int64_t head, T* grad_entry, T* grad_bound) {
        read(graph, head);
        read_gradient(graph, head);
        for (Array<T>* x : {&grad_keys, &grad_queries, &grad_values}) std::fill(x->begin(), x->end(), T(0));
        in_tiles([&](int64_t i, int64_t j) {
            scores(i, j);
            slopes(i, j, grad_entry, grad_bound);
            add_product(weight.data(), TILE, 1, lanes(j), rows(i), sums.data() + i * vw, vw, vw, grad_values.data() + j * vw, vw);
            add_product(slope.data(), TILE, 1, lanes(j), rows(i), queries.data() + i * kw, kw, kw, grad_keys.data() + j * kw, kw);
            add_product(slope.data(), 1, TILE, lanes(i), rows(j), keys.data() + j * kw, kw, kw, grad_queries.data() + i * kw, kw);
        });
        write(grad_queries, kw, c.width, c.grad_q, graph, head);
        write(grad_keys, kw, c.width, c.grad_k, graph, head);
        write(grad_values, vw, c.channels, c.grad_v, graph, head);
    }

   private:
    const Call& c;
    const int64_t n, kw, vw;  // nodes, features and channels, which fill whole vectors
    Array<T> keys, queries, values, sums, grad_keys, grad_queries, grad_values;  // rows of nodes
    Array<T> queries_by_column, sums_by_column, denominator, size;               // `sums`, `denominator` and `size` hold
    Array<T> score, weight, slope;                                               // gradients in the backward pass
    const T *entry = nullptr, *bound = nullptr;                                  // of the graph and head

    int64_t rows(int64_t begin) const { return std::min(TILE, c.nodes - begin); }
    int64_t lanes(int64_t begin) const { return std::min(TILE, n - begin); }

    // Calls run(first receiver, first sender).
    template <class F>
    void in_tiles(const F& run) {
        for (int64_t i = 0; i < c.nodes; i += TILE)
            for (int64_t j = 0; j < c.nodes; j += TILE) run(i, j);
    }

    void read(int64_t graph, int64_t head) {
        const T* q = static_cast<const T*>(c.q) + graph * c.q_by_graph + head * c.q_by_head;
        const T* k = static_cast<const T*>(c.k) + graph * c.k_by_graph + head * c.k_by_head;
        const T* v = static_cast<const T*>(c.v) + graph * c.v_by_graph + head * c.v_by_head;
        for (int64_t i = 0; i < c.nodes; ++i) {
            copy(q + i * c.q_by_row, c.width, queries.data() + i * kw);
            copy(k + i * c.k_by_row, c.width, keys.data() + i * kw);
            copy(v + i * c.v_by_row, c.channels, values.data() + i * vw);
        }
        turn(queries, kw, c.width, queries_by_column);
        entry = static_cast<const T*>(c.entry) + graph * c.mask_by_graph + head * c.mask_by_head;
        bound = static_cast<const T*>(c.bound) + graph * c.mask_by_graph + head * c.mask_by_head;
    }

    void read_gradient(int64_t graph, int64_t head) {
        const T* from = static_cast<const T*>(c.grad) + (graph * c.nodes * c.heads + head) * c.result();
        for (int64_t i = 0; i < c.nodes; ++i, from += c.heads * c.result()) {
            copy(from, c.channels, sums.data() + i * vw);
            denominator[i] = c.has_denominator() ? from[c.channels] : T(0);
            size[i] = c.signed_norm ? T(0) : from[c.channels];  // it is a constant of signed normalisers
        }
        turn(sums, vw, c.channels, sums_by_column);
    }

    // The transpose of an array of rows.
    void turn(const Array<T>& from, int64_t stride, int64_t columns, Array<T>& to) const {
        for (int64_t d = 0; d < columns; ++d)
            for (int64_t i = 0; i < c.nodes; ++i) to[d * n + i] = from[i * stride + d];
    }

    void write(const Array<T>& from, int64_t stride, int64_t columns, void* to, int64_t graph, int64_t head) const {
        T* row = static_cast<T*>(to) + (graph * c.nodes * c.heads + head) * columns;
        for (int64_t i = 0; i < c.nodes; ++i, row += c.heads * columns) copy(from.data() + i * stride, columns, row);
    }

    void scores(int64_t i, int64_t j) {
        std::fill(score.begin(), score.end(), T(0));
        add_product(keys.data() + j * kw, kw, 1, lanes(j), c.width, queries_by_column.data() + i, n, lanes(i), score.data(), TILE);
    }

    void weigh(int64_t i, int64_t j) {
        T *den = &denominator[i], *all = &size[i];
        for (int64_t a = 0, count = rows(i); a < rows(j); ++a) {
            const T *x = &score[a * TILE], *m = entry + (j + a) * c.nodes + i, *b = bound + (j + a) * c.nodes + i;
            T* w = &weight[a * TILE];
            for (int64_t l = 0; l < count; ++l) w[l] = m[l] * x[l];
            for (int64_t l = 0; l < count; ++l) den[l] += w[l];
            for (int64_t l = 0; c.has_bound && l < count; ++l) all[l] += b[l] * x[l];
        }
    }

    // Weights, and the gradients of scores in `slope`.
    void slopes(int64_t i, int64_t j, T* grad_entry, T* grad_bound) {
        const T *den = &denominator[i], *all = &size[i];
        for (int64_t a = 0; a < rows(j); ++a) copy(den, lanes(i), &slope[a * TILE]);
        add_product(values.data() + j * vw, vw, 1, lanes(j), c.channels, sums_by_column.data() + i, n, lanes(i), slope.data(), TILE);
        for (int64_t a = 0, count = rows(i); a < rows(j); ++a) {
            const int64_t first = (j + a) * c.nodes + i;
            const T *x = &score[a * TILE], *m = entry + first, *b = bound + first;
            T *w = &weight[a * TILE], *s = &slope[a * TILE];
            for (int64_t l = 0; l < count; ++l) w[l] = m[l] * x[l];
            for (int64_t l = 0; grad_entry && l < count; ++l) grad_entry[first + l] += s[l] * x[l];
            for (int64_t l = 0; grad_bound && l < count; ++l) grad_bound[first + l] += all[l] * x[l];
            for (int64_t l = 0; l < count; ++l) s[l] *= m[l];
            for (int64_t l = 0; c.has_bound && l < count; ++l) s[l] += b[l] * all[l];
        }
    }
};

// All graphs and heads.
template <class T>
void run_all(const Call& c) {
    const int64_t own_graphs = c.mask_by_graph ? c.graphs : 1, own_heads = c.mask_by_head ? c.heads : 1;
    const int64_t blocks = own_graphs * own_heads, sharing_heads = c.heads / own_heads;
    const int64_t sharing = c.graphs / own_graphs * sharing_heads, area = c.nodes * c.nodes;
    const int64_t parts = std::min(c.parts, sharing);
    std::vector<Block<T>> arrays(std::max<int64_t>(std::min(c.threads, parts * blocks), 1), Block<T>(c));
    parallel(c.threads, parts * blocks, [&](int64_t task, int64_t thread) {  // a task is a part of a block
        const int64_t part = task / blocks, block = task % blocks;
        T* grad_entry = c.grad_entry ? static_cast<T*>(c.grad_entry) + task * area : nullptr;
        T* grad_bound = c.grad_bound ? static_cast<T*>(c.grad_bound) + task * area : nullptr;
        for (int64_t user = sharing * part / parts; user < sharing * (part + 1) / parts; ++user) {
            const int64_t graph = own_graphs > 1 ? block / own_heads : user / sharing_heads;
            const int64_t head = own_heads > 1 ? block % own_heads : user % sharing_heads;
            c.sums ? arrays[thread].forward(graph, head) : arrays[thread].backward(graph, head, grad_entry, grad_bound);
        }
    });
}

// 0 if all went well, -1 if memory is short, -2 at any other exception.
template <class T>
int run_safely(const Call& c) try {
    run_all<T>(c);
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

int block_sums_float(const Call* call) { return run_safely<float>(*call); }

int block_sums_double(const Call* call) { return run_safely<double>(*call); }
}
