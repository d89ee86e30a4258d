// Sums of masked linear attention in dense blocks, one block of the mask for each graph, or one that graphs or heads share.
//
//   numerator_i = sum_j M_ji K_ji v_j,   size_i = sum_j B_ji K_ji
//
// over all senders j of the graph of the receiver i, with K_ji = k_j . q_i and the bounding mask B >= |M|. The backward
// pass computes K again.
//
// Products are computed for square tiles of a block, which stay in the cache of the first level: no array of one number
// per pair and head is formed.
//
// Plain C++17 and its standard library.

#include "../array.h"
#include "../product.h"

namespace {

constexpr int64_t TILE = 64;   // senders, and receivers, of a tile
constexpr int64_t PARTS = 16;

// Arrays of the call, in the order of `BlockSums` in blocks_cpp.py.
enum { Q, K, V, ENTRY, BOUND, SUMS, GRAD, GRAD_Q, GRAD_K, GRAD_V, GRAD_ENTRY, GRAD_BOUND, ARRAYS };

template <class T>
struct Problem {
    const int64_t threads, graphs, nodes, heads, width, channels, own_graphs, own_heads;  // the last two have blocks of their own
    const bool has_bound;         // otherwise the mask bounds itself
    const Rows<const T> q, k, v;  // [graphs, nodes, H, R], [graphs, nodes, H, D]
    const T *entry, *bound;       // [graphs or 1, heads or 1, nodes, nodes] (senders, receivers)
    T* sums;                      // [graphs, nodes, heads, D + 1]
    const T* grad;                // of the sums; null in the forward pass
    T *grad_q, *grad_k, *grad_v;  // null where they are not wanted
    T *grad_entry, *grad_bound;

    explicit Problem(const Call& c)
        : threads(c.threads()), graphs(c.size(Q, 0)), nodes(c.size(Q, 1)), heads(c.size(Q, 2)), width(c.size(Q, 3)),
          channels(c.size(V, 3)), own_graphs(c.size(ENTRY, 0) == 1 ? 1 : graphs), own_heads(c.size(ENTRY, 1) == 1 ? 1 : heads),
          has_bound(c.has(BOUND)), q(c.rows<const T>(Q, {graphs, nodes, heads, width})),
          k(c.rows<const T>(K, {graphs, nodes, heads, width})), v(c.rows<const T>(V, {graphs, nodes, heads, channels})),
          entry(c.dense<const T>(ENTRY, {own_graphs, own_heads, nodes, nodes})),
          bound(has_bound ? c.dense<const T>(BOUND, {own_graphs, own_heads, nodes, nodes}) : entry),
          sums(c.optional<T>(SUMS, {graphs, nodes, heads, channels + 1})),
          grad(c.optional<const T>(GRAD, {graphs, nodes, heads, channels + 1})),
          grad_q(c.optional<T>(GRAD_Q, {graphs, nodes, heads, width})),
          grad_k(c.optional<T>(GRAD_K, {graphs, nodes, heads, width})),
          grad_v(c.optional<T>(GRAD_V, {graphs, nodes, heads, channels})),
          grad_entry(c.optional<T>(GRAD_ENTRY, {own_graphs, own_heads, nodes, nodes})),
          grad_bound(c.optional<T>(GRAD_BOUND, {own_graphs, own_heads, nodes, nodes})) {}
};

// One head of one graph at a time; the arrays are used again.
template <class T>
class Block {
   public:
    explicit Block(const Problem<T>& call)
        : c(call), n(padded<T>(c.nodes)), kw(padded<T>(c.width)), vw(padded<T>(c.channels)), keys(n * kw), queries(n * kw),
          values(n * vw), sums(n * vw), grad_keys(n * kw), grad_queries(n * kw), grad_values(n * vw),
          queries_by_column(c.width * n), sums_by_column(c.channels * n), size(n), score(TILE * TILE),
          weight(TILE * TILE), slope(TILE * TILE) {}

    void forward(int64_t graph, int64_t head) {
        read(graph, head);
        for (Array<T>* x : {&sums, &size}) std::fill(x->begin(), x->end(), T(0));
        in_tiles([&](int64_t i, int64_t j) {
            scores(i, j);
            weigh(i, j);
            add_product(weight.data(), 1, TILE, lanes(i), rows(j), values.data() + j * vw, vw, vw, sums.data() + i * vw, vw);
        });
        T* to = c.sums + (graph * c.nodes * c.heads + head) * (c.channels + 1);
        for (int64_t i = 0; i < c.nodes; ++i, to += c.heads * (c.channels + 1)) {
            copy(sums.data() + i * vw, c.channels, to);
            to[c.channels] = size[i];
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
    const Problem<T>& c;
    const int64_t n, kw, vw;  // nodes, features and channels, which fill whole vectors
    Array<T> keys, queries, values, sums, grad_keys, grad_queries, grad_values;  // rows of nodes
    Array<T> queries_by_column, sums_by_column, size;  // `sums` and `size` hold gradients in the backward pass
    Array<T> score, weight, slope;
    const T *entry = nullptr, *bound = nullptr;  // of the graph and head

    int64_t n_squared() const { return c.nodes * c.nodes; }
    int64_t rows(int64_t begin) const { return std::min(TILE, c.nodes - begin); }
    int64_t lanes(int64_t begin) const { return std::min(TILE, n - begin); }

    // Calls run(first receiver, first sender).
    template <class F>
    void in_tiles(const F& run) {
        for (int64_t i = 0; i < c.nodes; i += TILE)
            for (int64_t j = 0; j < c.nodes; j += TILE) run(i, j);
    }

    void read(int64_t graph, int64_t head) {
        for (int64_t i = 0; i < c.nodes; ++i) {
            copy(c.q(graph, i, head), c.width, queries.data() + i * kw);
            copy(c.k(graph, i, head), c.width, keys.data() + i * kw);
            copy(c.v(graph, i, head), c.channels, values.data() + i * vw);
        }
        turn(queries, kw, c.width, queries_by_column);
        const int64_t block = (c.own_graphs > 1 ? graph * c.own_heads : 0) + (c.own_heads > 1 ? head : 0);
        entry = c.entry + block * n_squared(), bound = c.bound + block * n_squared();
    }

    void read_gradient(int64_t graph, int64_t head) {
        const T* from = c.grad + (graph * c.nodes * c.heads + head) * (c.channels + 1);
        for (int64_t i = 0; i < c.nodes; ++i, from += c.heads * (c.channels + 1)) {
            copy(from, c.channels, sums.data() + i * vw);
            size[i] = from[c.channels];
        }
        turn(sums, vw, c.channels, sums_by_column);
    }

    // The transpose of an array of rows.
    void turn(const Array<T>& from, int64_t stride, int64_t columns, Array<T>& to) const {
        for (int64_t d = 0; d < columns; ++d)
            for (int64_t i = 0; i < c.nodes; ++i) to[d * n + i] = from[i * stride + d];
    }

    void write(const Array<T>& from, int64_t stride, int64_t columns, T* to, int64_t graph, int64_t head) const {
        if (!to) return;
        T* row = to + (graph * c.nodes * c.heads + head) * columns;
        for (int64_t i = 0; i < c.nodes; ++i, row += c.heads * columns) copy(from.data() + i * stride, columns, row);
    }

    void scores(int64_t i, int64_t j) {
        std::fill(score.begin(), score.end(), T(0));
        add_product(keys.data() + j * kw, kw, 1, lanes(j), c.width, queries_by_column.data() + i, n, lanes(i), score.data(), TILE);
    }

    void weigh(int64_t i, int64_t j) {
        T* all = &size[i];
        for (int64_t a = 0, count = rows(i); a < rows(j); ++a) {
            const T *x = &score[a * TILE], *m = entry + (j + a) * c.nodes + i, *b = bound + (j + a) * c.nodes + i;
            T* w = &weight[a * TILE];
            for (int64_t l = 0; l < count; ++l) w[l] = m[l] * x[l];
            for (int64_t l = 0; l < count; ++l) all[l] += b[l] * x[l];
        }
    }

    // Weights, and the gradients of scores in `slope`.
    void slopes(int64_t i, int64_t j, T* grad_entry, T* grad_bound) {
        const T* all = &size[i];
        const T own = c.has_bound ? T(0) : T(1);
        for (int64_t a = 0; a < rows(j); ++a)
            for (int64_t l = 0; l < lanes(i); ++l) slope[a * TILE + l] = own * all[l];
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

// All graphs and heads. If graphs or heads share a block of the mask and its gradient is wanted, those that share it are
// cut into about PARTS parts of all blocks, each with its own gradient of the block: no result depends on the threads.
template <class T>
void run_all(const Problem<T>& c) {
    const int64_t blocks = c.own_graphs * c.own_heads, sharing_heads = c.heads / c.own_heads;
    const int64_t sharing = c.graphs / c.own_graphs * sharing_heads, area = c.nodes * c.nodes;
    const bool adds = c.grad_entry || c.grad_bound;
    const int64_t parts = std::min(adds ? (PARTS + blocks - 1) / blocks : c.graphs * c.heads, sharing);
    Array<T> entry_grads(c.grad_entry ? parts * blocks * area : 0), bound_grads(c.grad_bound ? parts * blocks * area : 0);
    std::vector<Block<T>> arrays(std::max<int64_t>(std::min(c.threads, parts * blocks), 1), Block<T>(c));
    parallel(c.threads, parts * blocks, [&](int64_t task, int64_t thread) {  // a task is a part of a block
        const int64_t part = task / blocks, block = task % blocks;
        T* grad_entry = c.grad_entry ? &entry_grads[task * area] : nullptr;
        T* grad_bound = c.grad_bound ? &bound_grads[task * area] : nullptr;
        for (int64_t user = sharing * part / parts; user < sharing * (part + 1) / parts; ++user) {
            const int64_t graph = c.own_graphs > 1 ? block / c.own_heads : user / sharing_heads;
            const int64_t head = c.own_heads > 1 ? block % c.own_heads : user % sharing_heads;
            c.grad ? arrays[thread].backward(graph, head, grad_entry, grad_bound) : arrays[thread].forward(graph, head);
        }
    });
    for (auto [from, to] : {std::pair(&entry_grads, c.grad_entry), std::pair(&bound_grads, c.grad_bound)})
        for (int64_t i = 0, size = blocks * area; to && i < size; ++i) {
            to[i] = T(0);
            for (int64_t part = 0; part < parts; ++part) to[i] += (*from)[part * size + i];
        }
}

}  // namespace

extern "C" {

// The sums, or, if there is a gradient, the gradients of those inputs that have room for one.
int64_t block_sums(const int64_t* block) {
    return for_dtype(block, ARRAYS, 0, Q, [](const Call& call, auto zero) {
        run_all(Problem<decltype(zero)>(call));
        return 0;
    });
}
}
