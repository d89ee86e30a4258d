// The product with a function f of the number of edges: rows of sums by distance, instead of weighted sums.
//
// A row holds the sums of the nodes at 0, 1, ... K edges, its levels. It begins with x_i and zeros, an edge moves its sums
// up by one level, and y is the sum of f(k) times level k of z. The sums from below have no more levels than the subtree,
// and most subtrees are small. So only these levels are stored, of s_i and of what later siblings add. The sums from
// elsewhere have all levels, but are needed only for the ancestors of the node at hand, one row for each depth.

#pragma once

#include "call.h"

namespace {

constexpr int64_t PART = 16;  // columns whose gradients are summed together, however many a task has

// The levels of each node's sums, and where they are stored.
struct Levels {
    std::vector<int32_t> below, later, depth;  // levels of s, and of x_p with the siblings after i
    std::vector<int64_t> start;                // of the levels of each node
    int64_t path = 0, total = 0;               // levels of the rows of all depths, and of everything

    Levels(const int64_t* above, int64_t nodes, int64_t hops) : below(nodes, 1), later(nodes), depth(nodes), start(nodes) {
        for (int64_t i = nodes; i-- > 0;) {
            const int64_t p = above[i];
            if (p < 0) continue;
            later[i] = below[p];
            below[p] = std::max<int32_t>(below[p], std::min<int64_t>(below[i], hops) + 1);
        }
        for (int64_t i = 0; i < nodes; ++i) {
            depth[i] = above[i] < 0 ? 0 : depth[above[i]] + 1;
            path = std::max(path, (depth[i] + 1) * (hops + 1));
        }
        total = path;
        for (int64_t i = 0; i < nodes; ++i) start[i] = total, total += below[i] + later[i];
    }
};

// One block of columns of one head.
template <class T>
class Histograms {
   public:
    Histograms(const Product<T>& call, const Levels& levels, int64_t head, int64_t first, int64_t columns, T* memory)
        : c(call), levels(levels), head(head), first(first), columns(columns), memory(memory),
          f(c.weight + (c.weight_heads > 1 ? head : 0) * (c.hops + 1)) {}

    // Calls visit(i, levels of s_i, s_i, g_i u_i) for all nodes, parents first.
    template <class F>
    void sweep(const T* x, const F& visit) {
        up(x);
        for (int64_t i = 0; i < c.nodes; ++i) {
            down(i);
            visit(i, levels.below[i], s(i), outside(i));
        }
    }

    // Writes y, or the gradient of x.
    void multiply(const T* x, T* y) {
        sweep(x, [&](int64_t i, int64_t below, const T* s, const T* o) {
            fetch<1>(::row(c, y, head, first, ahead(i)), columns);
            T* to = ::row(c, y, head, first, i);
            std::fill_n(to, columns, T(0));
            for (int64_t k = 0; k < below; ++k, s += columns, o += columns)
                for (int64_t j = 0; j < columns; ++j) to[j] += f[k] * (s[j] + o[j]);
            for (int64_t k = below; k <= c.hops; ++k, o += columns)
                for (int64_t j = 0; j < columns; ++j) to[j] += f[k] * o[j];
        });
    }

    // Adds the gradients of f, those of each part of the columns to numbers of its own.
    void add_gradients(T* by_hop) {
        sweep(c.x, [&](int64_t i, int64_t below, const T* s, const T* o) {
            const T* grad = ::row(c, c.grad, head, first, i);
            T* to = by_hop;
            for (int64_t a = 0; a < columns; a += PART, to += c.hops + 1) {
                const int64_t number = std::min(PART, columns - a);
                for (int64_t k = 0; k < below; ++k) to[k] += dot(grad + a, s + k * columns + a, number);
                for (int64_t k = 0; k <= c.hops; ++k) to[k] += dot(grad + a, o + k * columns + a, number);
            }
        });
    }

   private:
    static constexpr int64_t AHEAD = 16;  // nodes
    const Product<T>& c;
    const Levels& levels;
    const int64_t head, first, columns;
    T* const memory;
    const T* const f;

    T* s(int64_t i) const { return memory + levels.start[i] * columns; }
    T* siblings(int64_t i) const { return s(i) + levels.below[i] * columns; }
    T* outside(int64_t i) const { return memory + levels.depth[i] * (c.hops + 1) * columns; }
    int64_t ahead(int64_t i) const { return std::min(i + AHEAD, c.nodes - 1); }

    // Asks for the sums of a node some nodes ahead: the processor itself does so only within a page.
    template <int WRITE>
    INLINED void fetch_sums(int64_t i) const {
        fetch<WRITE>(s(i), (levels.below[i] + levels.later[i]) * columns);
    }

    void up(const T* x) {
        for (int64_t i = c.nodes; i-- > 0;) {
            fetch<0>(::row(c, x, head, first, std::max<int64_t>(i - AHEAD, 0)), columns);
            fetch_sums<1>(std::max<int64_t>(i - AHEAD, 0));
            if (levels.below[i] == 1) begin(x, i);
            const int64_t p = c.above[i];
            if (p < 0) continue;
            if (levels.later[i] == 1) begin(x, p);  // i is the last child of p
            std::copy_n(s(p), levels.later[i] * columns, siblings(i));
            move_up(levels.below[i], s(i), s(p));
        }
    }

    void begin(const T* x, int64_t i) {
        std::copy_n(::row(c, x, head, first, i), columns, s(i));
        std::fill(s(i) + columns, siblings(i), T(0));
    }

    // Writes g_i u_i, to which the children of i add themselves later, and adds i to the row of its parent.
    void down(int64_t i) {
        T* own = outside(i);
        fetch_sums<0>(ahead(i));
        if (c.above[i] < 0) {
            std::fill_n(own, (c.hops + 1) * columns, T(0));
            return;
        }
        T *above = outside(c.above[i]), *from = siblings(i);
        std::fill_n(own, columns, T(0));
        std::copy_n(above, c.hops * columns, own + columns);
        move_up(levels.later[i], from, own);
        move_up(levels.below[i], s(i), above);
    }

    // Adds the first `number` levels of `from`, each to the next level of `to`. Level K has no next one.
    void move_up(int64_t number, const T* from, T* to) const {
        for (int64_t j = 0; j < std::min(number, c.hops) * columns; ++j) to[j + columns] += from[j];
    }
};

template <class T>
void count_block(const Product<T>& c, const Levels& levels, int64_t head, int64_t first, int64_t columns, T* memory) {
    Histograms<T> sums(c, levels, head, first, columns, memory);
    if (!c.grad) return sums.multiply(c.x, c.y);
    sums.multiply(c.grad, c.grad_x);
    const int64_t part = std::min(PART, c.block), parts = (c.channels + part - 1) / part;
    if (c.grad_weight) sums.add_gradients(c.grad_weight + (head * parts + first / part) * (c.hops + 1));
}

}  // namespace
