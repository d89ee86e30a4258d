// Masked linear and softmax attention within the graphs of a batch. The mask is a dense block for each graph, which graphs
// or heads may share, or there is none.
//
//   out_i = sum_j M_ji K_ji v_j / S_i,   S_i = sum_j B_ji K_ji
//
// over all senders j of the graph of the receiver i, or those with the largest scores k_j . q_i, with K_ji a multiple of
// the score or its exponential, and the bounding mask B >= |M|. The exponential is divided by that of the largest score of
// the receiver, which cancels. The backward pass computes K again.
//
// Products are computed for square tiles of a block, which stay in the cache of the first level: no array of one number
// per pair and head is formed. Every graph is computed by itself, so that no bit of it depends on the others.

#include <cmath>
#include <limits>

#include "../array.h"
#include "../exponential.h"
#include "../product.h"

namespace {

constexpr int64_t TILE = 64;   // senders, and receivers, of a tile
constexpr int64_t PARTS = 16;

// Arrays of the call, in the order of `BlockMeans` in block_means.py.
enum {
    Q, K, V, ENTRY, BOUND, ERRORS, TABLE, OUT, SIZE,
    GRAD, GRAD_SIZE, GRAD_Q, GRAD_K, GRAD_V, GRAD_ENTRY, GRAD_BOUND, ARRAYS
};

struct Graph {
    int64_t first, nodes;  // first node, and number of nodes
    int64_t start, width;  // first entry of its block, and distance between the block's rows
};

template <class T>
struct Problem {
    const Call& call;
    const bool is_softmax = call.integer(0), has_bound = call.has(BOUND);  // has_bound: or the mask bounds itself
    const T scale = call.real(1);
    const int64_t topk = call.integer(2);  // senders that a receiver reads; 0 for all
    const int64_t total = call.size(Q, 0), heads = call.size(Q, 1), width = call.size(Q, 2), channels = call.size(V, 2);
    const int64_t count = call.size(TABLE, 0), entries = call.size(ENTRY, 1);
    // Heads with numbers of their own.
    const int64_t own_heads = call.has(ENTRY) ? call.size(ENTRY, 0) : 1, error_heads = call.size(ERRORS, 1) == heads ? heads : 1;
    const Rows<const T> q = call.rows<const T>(Q, {total, heads, width}), k = call.rows<const T>(K, {total, heads, width});
    const Rows<const T> v = call.rows<const T>(V, {total, heads, channels});
    // Blocks [width, width] (senders, receivers); null for ones.
    const T* entry = call.optional<const T>(ENTRY, {own_heads, entries});
    const T* bound = has_bound ? call.dense<const T>(BOUND, {own_heads, entries}) : entry;
    const T* errors = call.optional<const T>(ERRORS, {total, error_heads});  // of entries by row; null if they are exact
    // Those that share a block lie side by side.
    const Graph* graphs = reinterpret_cast<const Graph*>(call.dense<const int64_t>(TABLE, {count, 4}));
    T* out = call.optional<T>(OUT, {total, heads, channels});
    T* size = call.optional<T>(SIZE, {total, heads});                        // size 0 marks a row that vanishes
    const T* grad = call.optional<const T>(GRAD, {total, heads, channels});  // of `out`; null in the forward pass
    const T* grad_size = call.optional<const T>(GRAD_SIZE, {total, heads});
    T* grad_q = call.optional<T>(GRAD_Q, {total, heads, width});             // null where they are not wanted
    T* grad_k = call.optional<T>(GRAD_K, {total, heads, width});
    T* grad_v = call.optional<T>(GRAD_V, {total, heads, channels});
    T* grad_entry = call.optional<T>(GRAD_ENTRY, {own_heads, entries});
    T* grad_bound = call.optional<T>(GRAD_BOUND, {own_heads, entries});
    int64_t most_nodes = 0;

    explicit Problem(const Call& c) : call(c) {
        for (int64_t g = 0; g < count; ++g) {
            const Graph& x = graphs[g];
            const bool inside = x.first >= 0 && x.nodes >= 0 && x.first + x.nodes <= total;
            const bool has_block = !entry || (x.start >= 0 && x.nodes <= x.width && x.start + x.width * x.width <= entries);
            if (!inside || !has_block || (own_heads != 1 && own_heads != heads)) throw Misfit{TABLE};
            most_nodes = std::max(most_nodes, x.nodes);
        }
        if (topk && (!is_softmax || most_nodes > TILE)) throw Misfit{TABLE};
    }
};

// One head of one graph at a time; the arrays are used again.
template <class T>
class Block {
   public:
    Block(const Problem<T>& call, int64_t most)
        : c(call), kw(padded<T>(c.width)), vw(padded<T>(c.channels)), keys(most * kw), queries(most * kw), values(most * vw),
          sums(most * vw), grad_keys(most * kw), grad_queries(most * kw), grad_values(most * vw),
          queries_by_column(c.width * most), sums_by_column(c.channels * most), size(most), top(most), norm(most),
          score(TILE * TILE), weight(TILE * TILE), slope(TILE * TILE), factor(TILE), ones(TILE, T(1)), largest(vw) {}

    void forward(const Graph& graph, int64_t head) {
        read(graph, head);
        for (Array<T>* x : {&sums, &size, &norm}) std::fill(x->begin(), x->end(), T(0));
        in_tiles([&](int64_t i, int64_t j) {
            scores(i, j);
            if (c.is_softmax) {
                raise(i, j);
                rescale(i);
                exponentiate(i, j);
            }
            weigh(i, j);
            add_product(weight.data(), 1, TILE, lanes(i), rows(j), values.data() + j * vw, vw, vw, sums.data() + i * vw, vw);
        });
        write_means(head);
    }

    // Gradients of the mask are added to `grad_entry` and `grad_bound`, unless they are null.
    void backward(const Graph& graph, int64_t head, T* grad_entry, T* grad_bound) {
        read(graph, head);
        read_gradient(head);
        for (Array<T>* x : {&grad_keys, &grad_queries, &grad_values}) std::fill(x->begin(), x->end(), T(0));
        if (c.is_softmax)
            in_tiles([&](int64_t i, int64_t j) {
                scores(i, j);
                raise(i, j);
            });
        in_tiles([&](int64_t i, int64_t j) {
            if (!c.is_softmax || nodes > TILE) scores(i, j);
            if (c.is_softmax) exponentiate(i, j);
            slopes(i, j, grad_entry, grad_bound);
            add_product(weight.data(), TILE, 1, lanes(j), rows(i), sums.data() + i * vw, vw, vw, grad_values.data() + j * vw, vw);
            add_product(slope.data(), TILE, 1, lanes(j), rows(i), queries.data() + i * kw, kw, kw, grad_keys.data() + j * kw, kw);
            add_product(slope.data(), 1, TILE, lanes(i), rows(j), keys.data() + j * kw, kw, kw, grad_queries.data() + i * kw, kw);
        });
        write(grad_queries, kw, c.width, c.grad_q, head);
        write(grad_keys, kw, c.width, c.grad_k, head);
        write(grad_values, vw, c.channels, c.grad_v, head);
    }

   private:
    static constexpr T NONE = -std::numeric_limits<T>::infinity();
    const Problem<T>& c;
    int64_t nodes = 0, n = 0, first = 0, stride = 0;  // of the graph: nodes, and as many as fill whole vectors
    const int64_t kw, vw;                             // features and channels, which fill whole vectors
    Array<T> keys, queries, values, sums, grad_keys, grad_queries, grad_values;  // rows of nodes
    Array<T> queries_by_column, sums_by_column, size;  // `sums` and `size` hold gradients in the backward pass
    Array<T> top, norm, score, weight, slope, factor, ones, largest;
    const T *entry = nullptr, *bound = nullptr;  // of the graph and head

    int64_t rows(int64_t begin) const { return std::min(TILE, nodes - begin); }
    int64_t lanes(int64_t begin) const { return std::min(TILE, n - begin); }
    const T* of(const T* mask, int64_t i, int64_t j) const { return mask ? mask + j * stride + i : ones.data(); }

    // Calls run(first receiver, first sender).
    template <class F>
    void in_tiles(const F& run) {
        for (int64_t i = 0; i < nodes; i += TILE)
            for (int64_t j = 0; j < nodes; j += TILE) run(i, j);
    }

    void read(const Graph& graph, int64_t head) {
        nodes = graph.nodes, n = padded<T>(nodes), first = graph.first, stride = graph.width;
        for (int64_t i = 0; i < nodes; ++i) {
            copy(c.q(first + i, head), c.width, queries.data() + i * kw);
            copy(c.k(first + i, head), c.width, keys.data() + i * kw);
            copy(c.v(first + i, head), c.channels, values.data() + i * vw);
        }
        turn(queries, kw, c.width, queries_by_column);
        const int64_t start = graph.start + (c.own_heads > 1 ? head * c.entries : 0);
        entry = c.entry ? c.entry + start : nullptr, bound = c.bound ? c.bound + start : nullptr;
        std::fill(top.begin(), top.end(), NONE);
    }

    // Gradients of the numerator and of the denominator.
    void read_gradient(int64_t head) {
        for (int64_t i = 0; i < nodes; ++i) {
            const int64_t row = (first + i) * c.heads + head;
            const T *from = c.grad + row * c.channels, *out = c.out + row * c.channels;
            const T scale = c.size[row] == T(0) ? T(0) : T(1) / c.size[row];
            T dot = T(0);
            for (int64_t d = 0; d < c.channels; ++d) dot += from[d] * out[d];
            for (int64_t d = 0; d < c.channels; ++d) sums[i * vw + d] = scale * from[d];
            size[i] = c.size[row] == T(0) ? T(0) : c.grad_size[row] - scale * dot;
        }
        turn(sums, vw, c.channels, sums_by_column);
    }

    // The transpose of an array of rows.
    void turn(const Array<T>& from, int64_t stride, int64_t columns, Array<T>& to) const {
        for (int64_t d = 0; d < columns; ++d)
            for (int64_t i = 0; i < nodes; ++i) to[d * n + i] = from[i * stride + d];
    }

    void write(const Array<T>& from, int64_t stride, int64_t columns, T* to, int64_t head) const {
        if (!to) return;
        T* row = to + (first * c.heads + head) * columns;
        for (int64_t i = 0; i < nodes; ++i, row += c.heads * columns) copy(from.data() + i * stride, columns, row);
    }

    // The rules of `Problem.finish`.
    void write_means(int64_t head) {
        std::fill(largest.begin(), largest.end(), T(0));
        for (int64_t i = 0; c.errors && i < nodes; ++i)
            for (int64_t d = 0; d < c.channels; ++d) largest[d] = std::max(largest[d], std::abs(values[i * vw + d]));
        for (int64_t i = 0; i < nodes; ++i) {
            const int64_t row = (first + i) * c.heads + head;
            bool vanished = size[i] < (1 << 14) * std::numeric_limits<T>::min();
            if (c.errors) vanished |= size[i] <= std::sqrt(norm[i]) * c.errors[c.error_heads > 1 ? row : first + i];
            T *to = c.out + row * c.channels, *sum = sums.data() + i * vw;
            for (int64_t d = 0; d < c.channels; ++d) to[d] = vanished ? T(0) : sum[d] / size[i];
            for (int64_t d = 0; c.errors && d < c.channels; ++d) to[d] = std::max(std::min(to[d], largest[d]), -largest[d]);
            c.size[row] = vanished ? T(0) : size[i];
        }
    }

    void scores(int64_t i, int64_t j) {
        std::fill(score.begin(), score.end(), T(0));
        add_product(keys.data() + j * kw, kw, 1, lanes(j), c.width, queries_by_column.data() + i, n, lanes(i), score.data(), TILE);
        if (c.topk && c.topk < nodes) select();
        for (int64_t l = 0; c.scale != T(1) && l < rows(j) * TILE; ++l) score[l] *= c.scale;
    }

    // Only the `topk` largest scores of each receiver remain, the lower sender among equals; all are in one tile.
    void select() {
        typedef typename Vec<T>::type Lanes;
        for (int64_t l = 0; l < n; l += Vec<T>::L)
            for (int64_t a = 0; a < nodes; ++a) {
                const Lanes own = Vec<T>::load(&score[a * TILE + l]);
                decltype(own > own) better = {};  // number of senders that come first; comparisons give 0 or -1
                for (int64_t b = 0; b < a; ++b) better -= Vec<T>::load(&score[b * TILE + l]) >= own;
                for (int64_t b = a + 1; b < nodes; ++b) better -= Vec<T>::load(&score[b * TILE + l]) > own;
                Vec<T>::store(better < int32_t(c.topk) ? own : Lanes{} + NONE, &weight[a * TILE + l]);
            }
        std::swap(score, weight);
    }

    // The largest scores of receivers so far. Those before it remain in `factor`.
    void raise(int64_t i, int64_t j) {
        T* high = &top[i];
        for (int64_t l = 0, count = rows(i); l < count; ++l) factor[l] = high[l];
        for (int64_t a = 0, count = rows(i); a < rows(j); ++a) {
            const T *x = &score[a * TILE], *b = of(bound, i, j + a);
            for (int64_t l = 0; l < count; ++l) high[l] = (b[l] != T(0)) & (x[l] > high[l]) ? x[l] : high[l];
        }
    }

    // Sums of earlier tiles, for a larger top.
    void rescale(int64_t i) {
        for (int64_t l = 0, count = rows(i); l < count; ++l) {
            const T scale = factor[l] == top[i + l] ? T(1) : exponential(factor[l] - top[i + l]);
            size[i + l] *= scale, norm[i + l] *= scale * scale;
            for (int64_t d = 0; scale != T(1) && d < vw; ++d) sums[(i + l) * vw + d] *= scale;
        }
    }

    // Pairs with bound 0 may exceed the top, which is -inf for receivers without pairs: see `exp_below`. Weights below 1e-27
    // of the largest are 0: otherwise, small masks would make them underflow, and the rounding of sums would change.
    void exponentiate(int64_t i, int64_t j) {
        for (int64_t l = 0, count = rows(i); l < count; ++l) factor[l] = top[i + l] == NONE ? T(0) : top[i + l];
        for (int64_t a = 0, count = rows(i); a < rows(j); ++a) {
            T* x = &score[a * TILE];
            for (int64_t l = 0; l < count; ++l) {
                const T below = x[l] - factor[l];
                x[l] = below < T(-64) ? T(0) : exponential(std::min(below, T(20)));
            }
        }
    }

    void weigh(int64_t i, int64_t j) {
        T *all = &size[i], *squares = &norm[i];
        for (int64_t a = 0, count = rows(i); a < rows(j); ++a) {
            const T *x = &score[a * TILE], *m = of(entry, i, j + a), *b = of(bound, i, j + a);
            T* w = &weight[a * TILE];
            for (int64_t l = 0; l < count; ++l) w[l] = m[l] * x[l];
            for (int64_t l = 0; l < count; ++l) all[l] += b[l] * x[l];
            for (int64_t l = 0; c.errors && l < count; ++l) squares[l] += b[l] != T(0) ? x[l] * x[l] : T(0);
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
            const int64_t place = (j + a) * stride + i;
            const T *x = &score[a * TILE], *m = of(entry, i, j + a), *b = of(bound, i, j + a);
            T *w = &weight[a * TILE], *s = &slope[a * TILE];
            for (int64_t l = 0; l < count; ++l) w[l] = m[l] * x[l];
            for (int64_t l = 0; grad_entry && l < count; ++l) grad_entry[place + l] += s[l] * x[l];
            for (int64_t l = 0; grad_bound && l < count; ++l) grad_bound[place + l] += all[l] * x[l];
            for (int64_t l = 0; l < count; ++l) s[l] *= m[l];
            for (int64_t l = 0; c.has_bound && l < count; ++l) s[l] += b[l] * all[l];
            for (int64_t l = 0; l < count; ++l) s[l] *= c.is_softmax ? x[l] * c.scale : c.scale;
        }
    }
};

// Graphs and heads, from `user` to `end`, of those that share a block of the mask; `part` is the place of their gradient.
struct Task {
    int64_t graph, own_head, user, end, part;
};

// If graphs or heads share a block of the mask and its gradient is wanted, those that share it are cut into about PARTS
// parts of all blocks, each with its own gradient of the block: no result depends on the threads.
template <class T>
void run_all(const Problem<T>& c) {
    std::vector<int64_t> runs;  // the first graph of each block
    for (int64_t g = 0; g < c.count; ++g)
        if (!c.entry || g == 0 || c.graphs[g].start != c.graphs[g - 1].start) runs.push_back(g);
    const bool adds = c.grad_entry || c.grad_bound;
    const int64_t blocks = std::max<int64_t>(runs.size() * c.own_heads, 1), sharing_heads = c.heads / c.own_heads;
    int64_t most_parts = 1;
    std::vector<Task> tasks;
    for (size_t r = 0; r < runs.size(); ++r)
        for (int64_t own_head = 0; own_head < c.own_heads; ++own_head) {
            const int64_t users = ((r + 1 < runs.size() ? runs[r + 1] : c.count) - runs[r]) * sharing_heads;
            const int64_t parts = std::min(adds ? (PARTS + blocks - 1) / blocks : users, users);
            for (int64_t part = 0; part < parts; ++part)
                tasks.push_back({runs[r], own_head, users * part / parts, users * (part + 1) / parts, part});
            most_parts = std::max(most_parts, parts);
        }
    const int64_t room = c.own_heads * c.entries, kept = most_parts > 1 ? most_parts * room : 0;
    Array<T> entry_grads(c.grad_entry ? kept : 0), bound_grads(c.grad_bound ? kept : 0);
    for (T* to : {c.grad_entry, c.grad_bound})
        if (to) std::fill(to, to + room, T(0));
    T *entry_to = kept && c.grad_entry ? entry_grads.data() : c.grad_entry;
    T *bound_to = kept && c.grad_bound ? bound_grads.data() : c.grad_bound;
    const int64_t most = padded<T>(c.most_nodes), threads = std::min<int64_t>(c.call.threads(), tasks.size());
    std::vector<Block<T>> arrays(std::max<int64_t>(threads, 1), Block<T>(c, most));
    parallel(threads, tasks.size(), [&](int64_t number, int64_t thread) {
        const Task& task = tasks[number];
        for (int64_t user = task.user; user < task.end; ++user) {
            const Graph& graph = c.graphs[task.graph + user / sharing_heads];
            const int64_t head = c.own_heads > 1 ? task.own_head : user % sharing_heads;
            if (!c.grad) {
                arrays[thread].forward(graph, head);
                continue;
            }
            const int64_t place = (task.part * c.own_heads + task.own_head) * c.entries + graph.start;
            arrays[thread].backward(graph, head, entry_to ? entry_to + place : nullptr, bound_to ? bound_to + place : nullptr);
        }
    });
    for (auto [from, to] : {std::pair(&entry_grads, c.grad_entry), std::pair(&bound_grads, c.grad_bound)})
        for (int64_t part = 0; to && kept && part < most_parts; ++part)
            for (int64_t i = 0; i < room; ++i) to[i] += (*from)[part * room + i];
}

}  // namespace

// The means, or, if there is a gradient, the gradients of those inputs that have room for one.
EXPORTED int64_t block_means(const int64_t* block) {
    return for_dtype(block, ARRAYS, 3, Q, [](const Call& call, auto zero) { run_all(Problem<decltype(zero)>(call)); });
}
