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
// With weights, y = z. For the function f, see histograms.h.
//
// Nothing is subtracted, so growing masks lose no digits: siblings after i are summed by the first sweep, just before
// it adds i to its parent, and siblings before i by the second.
//
// A block of columns is the work of one thread. No result depends on the number of threads.

#include <memory>

#include "histograms.h"

namespace {

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

}  // namespace

// The product, or, if there is a gradient, the gradient of x and perhaps that of the weight.
EXPORTED int64_t forest_product(const int64_t* block) {
    return for_dtype(block, ARRAYS, NUMBERS, X, [](const Call& call, auto zero) {
        run(Product<decltype(zero)>(call));
        return 0;
    });
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
