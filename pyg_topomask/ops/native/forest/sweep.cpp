// Products y = M x with M_ij = product of g_e over the edges e of the path from j to i in a forest; 0 between trees.
//
// Nodes are in preorder: parents come before children. Two sweeps over them form, for each node i with parent p,
//
//   s_i = x_i + sum of g_c S s_c over the children c     what comes from below, children before parents;
//   u_i = x_p + sum of g_c S s_c over the siblings c + g_p S u_p     what comes to p from elsewhere, parents first;
//   y_i = s_i + g_i S u_i.
//
// S shifts a row by `shift` columns. Nothing is subtracted, so growing masks lose no digits: siblings after i are
// summed by the first sweep, just before it adds i to its parent, and siblings before i by the second.
//
// A block of columns is the work of one thread. No result depends on the number of threads.
//
// Plain C++17 and its standard library.

#include <memory>

#include "../parallel.h"

namespace {

// The fields and their order are those of `_Call` in paths.py.
struct Call {
    int64_t nodes, heads, channels, block, shift, threads;  // block: columns of a task, all if rows are shifted
    int64_t weight_heads;          // 0 if all weights are 1
    const int64_t *order, *above;  // node at each position, and position of its parent, -1 for a root
    const void *x, *weight;        // [N, H, C] and [N, weight_heads], by node
    void* y;
    const void* grad;              // of y; null in the forward pass
    void *grad_x, *grad_weight;    // the latter [tasks, N], a part for each block of each head; null if not wanted
};

constexpr int64_t BLOCK_BYTES = 128;  // of a row, in the tasks that are compiled for their width

// to[j + shift] += scale * from[j]
template <class T>
inline void carry(T scale, const T* from, int64_t width, int64_t shift, T* to) {
    const int64_t first = std::max<int64_t>(-shift, 0), last = width - std::max<int64_t>(shift, 0);
    for (int64_t j = first; j < last; ++j) to[j + shift] += scale * from[j];
}

// Sum of to[j + shift] * from[j]
template <class T>
inline T dot(const T* from, int64_t width, int64_t shift, const T* to) {
    const int64_t first = std::max<int64_t>(-shift, 0), last = width - std::max<int64_t>(shift, 0);
    T sum = 0;
    for (int64_t j = first; j < last; ++j) sum += to[j + shift] * from[j];
    return sum;
}

// One block of columns of one head, of which `memory` holds 2 N numbers each. W is the width where that is known to the
// compiler and rows are not shifted, else 0.
template <class T, int W>
class Sums {
   public:
    Sums(const Call& call, int64_t head, int64_t first, int64_t width, int64_t shift, T* memory)
        : c(call), head(head), first(first), some(width), by(shift), inside(memory), outside(memory + c.nodes * width),
          reached(width) {}

    T* row(void* x, int64_t i) const { return static_cast<T*>(x) + (c.order[i] * c.heads + head) * c.channels + first; }
    T weight(int64_t i) const {
        if (!c.weight_heads) return T(1);
        return static_cast<const T*>(c.weight)[c.order[i] * c.weight_heads + (c.weight_heads > 1 ? head : 0)];
    }

    void up(const void* x) {
        for (int64_t i = 0; i < c.nodes; ++i) std::copy_n(row(const_cast<void*>(x), i), width(), s(i));
        for (int64_t i = c.nodes; i-- > 0;) {
            if (c.above[i] < 0) {
                std::fill_n(o(i), width(), T(0));  // nothing comes to a root from outside
            } else {
                std::copy_n(s(c.above[i]), width(), o(i));
                carry(weight(i), s(i), width(), shift(), s(c.above[i]));
            }
        }
    }

    // Second sweep at position i, which writes y_i where it is wanted, and leaves u_i in `reached`.
    void down(int64_t i, void* y) {
        const int64_t p = c.above[i];
        if (p >= 0) {
            for (int64_t j = 0; j < width(); ++j) reached[j] = o(i)[j] + o(p)[j];
            std::fill_n(o(i), width(), T(0));
            carry(weight(i), reached.data(), width(), shift(), o(i));
            carry(weight(i), s(i), width(), shift(), o(p));
        }
        if (!y) return;
        T* to = row(y, i);
        for (int64_t j = 0; j < width(); ++j) to[j] = s(i)[j] + o(i)[j];
    }

    // Derivative by the weight of position i, of the inner product of y and the x of `other`, whose rows shift back.
    T derivative(int64_t i, const Sums& other) const {
        return dot(reached.data(), width(), shift(), other.s(i)) + dot(s(i), width(), shift(), other.reached.data());
    }

   private:
    const Call& c;
    const int64_t head, first, some, by;
    T *const inside, *const outside;  // s; o: later siblings at first, then g S u and earlier siblings of a child
    Array<T> reached;

    int64_t width() const { return W ? W : some; }
    int64_t shift() const { return W ? 0 : by; }
    T* s(int64_t i) const { return inside + i * width(); }
    T* o(int64_t i) const { return outside + i * width(); }
};

template <class T, int W>
void run_block(const Call& c, int64_t task, int64_t head, int64_t first, int64_t width, T* memory) {
    Sums<T, W> sums(c, head, first, width, c.shift, memory);
    if (!c.grad || c.grad_weight) sums.up(c.x);
    if (!c.grad) {
        for (int64_t i = 0; i < c.nodes; ++i) sums.down(i, c.y);
        return;
    }
    Sums<T, W> grads(c, head, first, width, -c.shift, memory + 2 * c.nodes * width);
    grads.up(c.grad);
    T* grad_weight = static_cast<T*>(c.grad_weight) + task * c.nodes;
    for (int64_t i = 0; i < c.nodes; ++i) {
        grads.down(i, c.grad_x);
        if (!c.grad_weight) continue;
        sums.down(i, c.y);
        grad_weight[c.order[i]] = c.above[i] < 0 ? T(0) : sums.derivative(i, grads);
    }
}

template <class T>
int run(const Call& c) try {
    constexpr int64_t W = BLOCK_BYTES / sizeof(T);
    const int64_t blocks = (c.channels + c.block - 1) / c.block;
    std::vector<std::unique_ptr<T[]>> memory(c.threads);  // not set to zero, and kept from task to task
    parallel(c.threads, c.heads * blocks, [&](int64_t task, int64_t thread) {
        if (!memory[thread]) memory[thread].reset(new T[(c.grad ? 4 : 2) * c.nodes * std::min(c.block, c.channels)]);
        const int64_t first = task % blocks * c.block, width = std::min(c.block, c.channels - first);
        const auto run = width == W && !c.shift ? run_block<T, W> : run_block<T, 0>;
        run(c, task, task / blocks, first, width, memory[thread].get());
    });
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

int forest_product_float(const Call* call) { return run<float>(*call); }

int forest_product_double(const Call* call) { return run<double>(*call); }

// Writes the nodes of a forest in preorder, and the position of the parent of each position.
int forest_preorder(const int64_t* parent, int64_t nodes, int64_t* order, int64_t* above) try {
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
} catch (...) {
    return error_code();
}
}
