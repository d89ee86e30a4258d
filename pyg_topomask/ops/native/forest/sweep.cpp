// Products y = M x with two masks of a forest, both 0 between trees, by two sweeps over its nodes:
//
//   M_ij = product of g_e over the edges e of the path from j to i,
//   M_ij = f(number of these edges), 0 for more than K edges.
//
// Nodes are in preorder: parents come before children. Each node i, with parent p, has the sums
//
//   s_i = x_i + sum of g_c s_c over the children c                   what comes from below, children before parents;
//   u_i = x_p + sum of g_c s_c over the siblings c of i + g_p u_p    what comes to p from elsewhere, parents first;
//   z_i = s_i + g_i u_i.
//
// With weights, y = z. The function f needs sums by distance: see `Levels`.
//
// Nothing is subtracted, so growing masks lose no digits: siblings after i are summed by the first sweep, just before
// it adds i to its parent, and siblings before i by the second.
//
// A block of columns is the work of one thread. No result depends on the number of threads.

#include <memory>

#include "../slices.h"

namespace {

enum { X, WEIGHT, ORDER, ABOVE, Y, GRAD, GRAD_X, GRAD_WEIGHT, ARRAYS };
enum { BY_HOP, BLOCK, NUMBERS };

template <class T>
struct Product {
    const Call& call;
    const bool by_hop = call.integer(BY_HOP);
    const int64_t threads = call.threads(), block = call.integer(BLOCK);  // block: columns of a task
    const int64_t nodes = call.size(X, 0), heads = call.size(X, 1), channels = call.size(X, 2);
    const int64_t hops = by_hop ? call.size(WEIGHT, 1) - 1 : 0;  // K, 0 if there are weights
    const int64_t weight_heads = call.size(WEIGHT, by_hop ? 0 : 1);
    const int64_t* order = call.dense<const int64_t>(ORDER, {nodes});  // node at each position
    const int64_t* above = call.dense<const int64_t>(ABOVE, {nodes});  // position of its parent, -1 for a root
    const T* x = call.dense<const T>(X, {nodes, heads, channels});
    // Weights g of nodes, or f of hops.
    const T* weight = call.dense<const T>(WEIGHT, {by_hop ? weight_heads : nodes, by_hop ? hops + 1 : weight_heads});
    T* y = call.optional<T>(Y, {nodes, heads, channels});
    const T* grad = call.optional<const T>(GRAD, {nodes, heads, channels});  // of y; null in the forward pass
    T* grad_x = call.optional<T>(GRAD_X, {nodes, heads, channels});
    T* grad_weight = call.optional<T>(GRAD_WEIGHT, {heads, ANY, by_hop ? hops + 1 : nodes});  // of each task or part

    explicit Product(const Call& call) : call(call) {
        if ((weight_heads != 1 && weight_heads != heads) || (by_hop && hops == 0)) throw Misfit{WEIGHT};
    }
};

// Numbers of node i in the block of columns from `first` on.
template <class T, class Number>
inline Number* row(const Product<T>& c, Number* x, int64_t head, int64_t first, int64_t i) {
    return x + (c.order[i] * c.heads + head) * c.channels + first;
}

template <class T>
inline T dot(const T* a, const T* b, int64_t count) {
    T sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += a[j] * b[j];
    return sum;
}

constexpr int64_t BLOCK_BYTES = 128;  // of a row, in the tasks that are compiled for their width

// One block of columns of one head, for which `memory` holds two rows of each node. W is the number of columns where it
// is known to the compiler, else 0.
template <class T, int W>
class Sums {
   public:
    Sums(const Product<T>& call, int64_t head, int64_t first, int64_t number, T* memory)
        : c(call), head(head), first(first), some(number), inside(memory), outside(memory + c.nodes * columns()),
          reached(columns()) {}

    int64_t columns() const { return W ? W : some; }
    T* s(int64_t i) const { return inside + i * columns(); }
    T* o(int64_t i) const { return outside + i * columns(); }
    const T* u() const { return reached.data(); }

    template <class Number>
    Number* row(Number* x, int64_t i) const { return ::row(c, x, head, first, i); }

    void up(const T* x) {
        for (int64_t i = 0; i < c.nodes; ++i) std::copy_n(row(x, i), columns(), s(i));
        for (int64_t i = c.nodes; i-- > 0;) {
            if (c.above[i] < 0) {
                std::fill_n(o(i), columns(), T(0));  // nothing comes to a root from elsewhere
            } else {
                std::copy_n(s(c.above[i]), columns(), o(i));
                carry(i, s(i), s(c.above[i]));
            }
        }
    }

    // Second sweep at position i: z_i is then s(i) + o(i), and u_i is u().
    void down(int64_t i) {
        const int64_t p = c.above[i];
        if (p < 0) return;
        for (int64_t j = 0; j < columns(); ++j) reached[j] = o(i)[j] + o(p)[j];
        std::fill_n(o(i), columns(), T(0));
        carry(i, reached.data(), o(i));
        carry(i, s(i), o(p));
    }

   private:
    const Product<T>& c;
    const int64_t head, first, some;
    T *const inside, *const outside;  // s; o: later siblings at first, then g u and earlier siblings of the next child
    Array<T> reached;

    // Adds the row `from`, times the weight of the edge above position i, to the row `to`.
    void carry(int64_t i, const T* from, T* to) const {
        const T g = c.weight[c.order[i] * c.weight_heads + (c.weight_heads > 1 ? head : 0)];
        for (int64_t j = 0; j < columns(); ++j) to[j] += g * from[j];
    }
};

// Writes y, or the gradient of x, which is the product of the gradient of y with the same, symmetric mask.
template <class T, int W>
void multiply(const Product<T>& c, Sums<T, W>& sums, const T* x, T* y) {
    sums.up(x);
    for (int64_t i = 0; i < c.nodes; ++i) {
        sums.down(i);
        T* to = sums.row(y, i);
        const T *s = sums.s(i), *o = sums.o(i);
        for (int64_t j = 0; j < sums.columns(); ++j) to[j] = s[j] + o[j];
    }
}

template <class T, int W>
void run_block(const Product<T>& c, int64_t task, int64_t head, int64_t first, int64_t columns, T* memory) {
    Sums<T, W> sums(c, head, first, columns, memory);
    if (!c.grad) return multiply(c, sums, c.x, c.y);
    if (!c.grad_weight) return multiply(c, sums, c.grad, c.grad_x);
    Sums<T, W> grads(c, head, first, columns, memory + 2 * c.nodes * columns);
    T* by_node = c.grad_weight + task * c.nodes;
    sums.up(c.x);
    grads.up(c.grad);
    for (int64_t i = 0; i < c.nodes; ++i) {
        sums.down(i);
        grads.down(i);
        T* to = grads.row(c.grad_x, i);
        for (int64_t j = 0; j < columns; ++j) to[j] = grads.s(i)[j] + grads.o(i)[j];
        if (c.above[i] >= 0)
            by_node[c.order[i]] = dot(sums.u(), grads.s(i), columns) + dot(sums.s(i), grads.u(), columns);
    }
}

// The product with a function f of the number of edges: rows of sums by distance, instead of weighted sums.
//
// A row holds the sums of the nodes at 0, 1, ... K edges, its levels. It begins with x_i and zeros, an edge moves its sums
// up by one level, and y is the sum of f(k) times level k of z. The sums from below have no more levels than the subtree,
// and most subtrees are small. So only these levels are stored, of s_i and of what later siblings add; a node with one
// child shares the levels of the child. The sums from elsewhere have all levels, but are needed only for the ancestors of
// the node at hand whose children are not done: a last child takes the place of its parent.

// The levels of each node's sums, and where they are stored.
struct Levels {
    const int64_t *above, nodes, hops;
    std::vector<int32_t> below, later;  // levels of s; and of x_p with the siblings after i, 0 if there are none
    std::vector<int32_t> place;         // of the sums from elsewhere
    std::vector<int64_t> start;         // of s; the siblings lie before it
    int64_t places = 1, total = 0;      // total: of all levels

    Levels(const int64_t* above, int64_t nodes, int64_t hops)
        : above(above), nodes(nodes), hops(hops), below(nodes, 1), later(nodes), place(nodes), start(nodes) {
        std::vector<int32_t> children(nodes);
        for (int64_t i = nodes; i-- > 0;) {
            const int64_t p = above[i];
            if (p < 0) continue;
            later[i] = children[p]++ ? below[p] : 0;
            below[p] = std::max<int32_t>(below[p], std::min<int64_t>(below[i], hops) + 1);
        }
        for (int64_t i = 0; i < nodes; ++i) {
            place[i] = above[i] < 0 ? 0 : place[above[i]] + (later[i] > 0);
            places = std::max<int64_t>(places, place[i] + 1);
            start[i] = total + later[i];
            total = start[i] + (children[i] == 1 ? 1 : below[i]);
        }
        total += places * room();
    }
    int64_t room() const { return 4 * (hops + 1); }  // of a place, in which sums move
};

// The sums of some columns; W is their number where it is known to the compiler, else 0.
template <class T, int W>
class Histograms {
   public:
    Histograms(const Levels& levels, int64_t columns, T* memory)
        : levels(levels), some(columns), memory(memory), elsewhere(levels.places) {}

    int64_t columns() const { return W ? W : some; }

    // Calls read(i, to), which writes x_i, and visit(i, levels of s_i, s_i, g_i u_i) for all nodes, parents first.
    template <class Read, class Visit>
    void sweep(const Read& read, const Visit& visit) {
        up(read);
        for (int64_t i = 0; i < levels.nodes; ++i) {
            down(i);
            visit(i, levels.below[i], s(i), elsewhere[levels.place[i]]);
        }
    }

    int64_t ahead(int64_t i) const { return std::min(i + AHEAD, levels.nodes - 1); }
    static int64_t behind(int64_t i) { return std::max<int64_t>(i - AHEAD, 0); }

   private:
    static constexpr int64_t AHEAD = 16;  // nodes
    const Levels& levels;
    const int64_t some;
    T* const memory;
    std::vector<T*> elsewhere;  // the sums of each place

    T* s(int64_t i) const { return memory + levels.start[i] * columns(); }
    T* siblings(int64_t i) const { return s(i) - levels.later[i] * columns(); }

    // Asks for the sums of a node some nodes ahead: the processor itself does so only within a page.
    template <int WRITE>
    INLINED void fetch_sums(int64_t i) const {
        fetch<WRITE>(siblings(i), (levels.later[i] + 1) * columns());
    }

    template <class Read>
    void up(const Read& read) {
        const int64_t step = columns();
        for (int64_t i = levels.nodes; i-- > 0;) {
            fetch_sums<1>(behind(i));
            if (levels.below[i] == 1) read(i, s(i));
            const int64_t p = levels.above[i], count = std::min<int64_t>(levels.below[i], levels.hops);
            if (p < 0) continue;
            if (levels.later[i] > 0) {
                std::copy_n(s(p), levels.later[i] * step, siblings(i));
                move_up(count, s(i), s(p));
                continue;
            }
            read(p, s(p));
            if (s(i) == s(p) + step) continue;  // they share their levels
            std::copy_n(s(i), count * step, s(p) + step);
            std::fill(s(p) + (count + 1) * step, s(p) + levels.below[p] * step, T(0));
        }
    }

    // Writes g_i u_i, to which the children of i add themselves later, and adds i to the sums of its parent.
    void down(int64_t i) {
        const int64_t step = columns(), p = levels.above[i], hops = levels.hops, later = std::min<int64_t>(levels.later[i], hops);
        T *first = memory + (levels.total - (levels.place[i] + 1) * levels.room()) * step, *end = first + levels.room() * step;
        T*& own = elsewhere[levels.place[i]];
        fetch_sums<0>(ahead(i));
        if (p >= 0 && levels.later[i] == 0) {
            if (own == first) own = std::copy_backward(own, own + hops * step, end);
            own -= step;
            std::fill_n(own, step, T(0));
            return move_up(std::min<int64_t>(1, hops), s(p), own);
        }
        own = end - (hops + 1) * step;
        if (p < 0) return void(std::fill(own, end, T(0)));
        T *above = elsewhere[levels.place[p]], *from = siblings(i);
        std::fill_n(own, step, T(0));
        for (int64_t j = 0; j < later * step; ++j) own[j + step] = above[j] + from[j];
        std::copy(above + later * step, above + hops * step, own + (later + 1) * step);
        move_up(std::min<int64_t>(levels.below[i], hops), s(i), above);
    }

    // Adds the first `count` levels of `from`, each to the next level of `to`.
    void move_up(int64_t count, const T* from, T* to) const {
        for (int64_t j = 0; j < count * columns(); ++j) to[j + columns()] += from[j];
    }
};

// The same by histograms.
template <class T>
void count_block(const Product<T>& c, const Levels& levels, int64_t head, int64_t first, int64_t columns, T* memory) {
    constexpr int64_t PART = 16;  // columns whose gradients are summed together, however many a task has
    Histograms<T, 0> sums(levels, columns, memory);
    const int64_t hops = c.hops;
    const T* f = c.weight + (c.weight_heads > 1 ? head : 0) * (hops + 1);
    const auto sweep = [&](const T* x, const auto& visit) {
        const auto read = [&](int64_t i, T* to) {
            fetch<0>(row(c, x, head, first, sums.behind(i)), columns);
            std::copy_n(row(c, x, head, first, i), columns, to);
        };
        sums.sweep(read, visit);
    };
    T* y = c.grad ? c.grad_x : c.y;  // the mask is symmetric
    sweep(c.grad ? c.grad : c.x, [&](int64_t i, int64_t below, const T* s, const T* o) {
        fetch<1>(row(c, y, head, first, sums.ahead(i)), columns);
        T* to = row(c, y, head, first, i);
        std::fill_n(to, columns, T(0));
        for (int64_t k = 0; k < below; ++k, s += columns, o += columns)
            for (int64_t j = 0; j < columns; ++j) to[j] += f[k] * (s[j] + o[j]);
        for (int64_t k = below; k <= hops; ++k, o += columns)
            for (int64_t j = 0; j < columns; ++j) to[j] += f[k] * o[j];
    });
    if (!c.grad_weight) return;
    const int64_t part = std::min(PART, c.block), parts = (c.channels + part - 1) / part;
    T* by_hop = c.grad_weight + (head * parts + first / part) * (hops + 1);
    sweep(c.x, [&](int64_t i, int64_t below, const T* s, const T* o) {
        const T* grad = row(c, c.grad, head, first, i);
        T* to = by_hop;
        for (int64_t a = 0; a < columns; a += PART, to += hops + 1) {
            const int64_t number = std::min(PART, columns - a);
            for (int64_t k = 0; k < below; ++k) to[k] += dot(grad + a, s + k * columns + a, number);
            for (int64_t k = 0; k <= hops; ++k) to[k] += dot(grad + a, o + k * columns + a, number);
        }
    });
}

template <class T>
void run(const Product<T>& c) {
    constexpr int64_t W = BLOCK_BYTES / sizeof(T);
    const int64_t blocks = (c.channels + c.block - 1) / c.block, most = std::min(c.block, c.channels);
    const Levels levels(c.above, c.hops ? c.nodes : 0, c.hops);
    const int64_t numbers = (c.hops ? levels.total : (c.grad_weight ? 4 : 2) * c.nodes) * most;
    std::vector<std::unique_ptr<T[]>> memory(c.threads);  // not set to zero, and kept from task to task
    parallel(c.threads, c.heads * blocks, [&](int64_t task, int64_t thread) {
        if (!memory[thread]) memory[thread].reset(new T[numbers]);
        const int64_t first = task % blocks * c.block, columns = std::min(c.block, c.channels - first);
        T* own = memory[thread].get();
        if (c.hops) return count_block<T>(c, levels, task / blocks, first, columns, own);
        const auto run = columns == W ? run_block<T, W> : run_block<T, 0>;
        run(c, task, task / blocks, first, columns, own);
    });
}

enum { NODE = STRUCTURE, PARENT, SUMS, ATTENTION_ARRAYS = SUMS + 6 };

// Linear attention under a function of the number of edges.
template <class T, int BYTES>
void attend(const Call& call) {
    const int64_t nodes = call.size(Q, 0);
    const Attention<T> a(call, SUMS, call.dense<const int64_t>(NODE, {nodes}));
    const int64_t size = call.size(COEFFS, 1);
    const T* f = call.dense<const T>(COEFFS, {ANY, size});
    const Levels levels(call.dense<const int64_t>(PARENT, {nodes}), nodes, size - 1);
    for_slices<BYTES, true>(a, call.integer(0), size, levels.total, [&](const auto& slice, int64_t head, double* by_hop, T* memory) {
        using S = std::decay_t<decltype(slice)>;
        constexpr int64_t L = S::L, N = S::NUMBERS, W = N / L;
        const T* own = f + (call.size(COEFFS, 0) > 1 ? head : 0) * size;
        Histograms<T, N> sums(levels, N, memory);
        const auto read = [&](int64_t i, T* to) {
            typename S::Row x[W];
            slice.fetch(sums.behind(i));
            slice.begin(i, x);
            for (int w = 0; w < W; ++w) S::Vec::store(x[w], to + w * L);
        };
        sums.sweep(read, [&](int64_t i, int64_t below, const T* s, const T* o) {
            typename S::Row total[W]{}, receiver[W]{};
            slice.fetch(sums.ahead(i));
            if (by_hop) slice.receive(i, receiver);
            for (int64_t k = 0; k < size; ++k, s += N, o += N) {
                typename S::Row level[W], along{};
                for (int w = 0; w < W; ++w) level[w] = S::Vec::load(o + w * L);
                for (int w = 0; k < below && w < W; ++w) level[w] += S::Vec::load(s + w * L);
                for (int w = 0; w < W; ++w) total[w] += own[k] * level[w];
                if (!by_hop) continue;
                for (int w = 0; w < W; ++w) along += receiver[w] * level[w];
                by_hop[k] += ::total<T, BYTES>(along);
            }
            slice.add(i, T(1), total);
        });
    });
}

}  // namespace

// The sums of linear attention, or, if there is a gradient, those of q, k, v and the function that have room.
EXPORTED int64_t hop_attention(const int64_t* block) {
    return for_dtype(block, ATTENTION_ARRAYS, 1, Q, [](const Call& call, auto zero) {
        using T = decltype(zero);
        call.size(Q, 2) * sizeof(T) <= FEW_BYTES ? attend<T, FEW_BYTES>(call) : attend<T, VECTOR_BYTES>(call);
    });
}

// The product, or, if there is a gradient, the gradient of x and perhaps that of the weight.
EXPORTED int64_t forest_product(const int64_t* block) {
    return for_dtype(block, ARRAYS, NUMBERS, X, [](const Call& call, auto zero) { run(Product<decltype(zero)>(call)); });
}

// The numbers that a task keeps for each of its columns, for f of so many hops.
EXPORTED int64_t forest_levels(const int64_t* block) {
    return checked(block, 1, 1, [](const Call& call) {
        return Levels(call.dense<const int64_t>(0, {ANY}), call.size(0, 0), call.integer(0)).total;
    });
}

// Writes the nodes of a forest in preorder, and the position of the parent of each position.
EXPORTED int64_t forest_preorder(const int64_t* block) {
    return checked(block, 3, 0, [](const Call& call) {
        const int64_t nodes = call.size(0, 0), *parent = call.dense<const int64_t>(0, {nodes});
        int64_t *order = call.dense<int64_t>(1, {nodes}), *above = call.dense<int64_t>(2, {nodes});
        std::vector<int64_t> child(nodes + 1, -1), sibling(nodes), position(nodes);  // first child, next sibling
        for (int64_t i = nodes; i-- > 0;) {
            int64_t& first = child[parent[i] < 0 ? nodes : parent[i]];  // roots are siblings
            sibling[i] = first;
            first = i;
        }
        int64_t count = 0;
        for (int64_t i = child[nodes]; i >= 0; ++count) {
            position[i] = count;
            order[count] = i;
            above[count] = parent[i] < 0 ? -1 : position[parent[i]];
            if (child[i] >= 0) {
                i = child[i];
                continue;
            }
            while (i >= 0 && sibling[i] < 0) i = parent[i];
            if (i >= 0) i = sibling[i];
        }
        return count == nodes ? 0 : -2;  // nodes of a cycle are never reached
    });
}
