// Linear attention without a mask: means over the nodes j of each node's own graph,
//
//   out_i = sum_j (q_i . k_j) v_j / size_i,   size_i = sum_j q_i . k_j,
//
// for features that are not negative. With w_j = (v_j, 1), both sums are columns of q_i^T S, where S = sum_j k_j w_j^T is
// the state of a graph and head. The output is 0 where the size is close to underflow.
//
// The gradients g of the output and s of the size give h_i = (g_i / size_i, s_i - g_i . out_i / size_i), and with
// G = sum_i q_i h_i^T, the gradient of the state, grad_q_i = S h_i,   grad_k_j = G w_j,   grad_v_j = G^T k_j (without its
// last number).
//
// A graph is cut into parts, whose number depends on its own size alone, and sums of parts are added in their order: no
// result depends on the number of threads, or on other graphs.

#include <limits>

#include "../array.h"
#include "../product.h"

namespace {

enum { Q, K, V, PTR, OUT, SIZE, GRAD, GRAD_SIZE, GRAD_Q, GRAD_K, GRAD_V, ARRAYS };

template <class T>
class LinearMeans {
   public:
    explicit LinearMeans(const Call& call) : call(call) {
        for (const bool large : {false, true}) {
            for (int64_t g = 0; g < graphs; ++g) {
                const int64_t size = ptr[g + 1] - ptr[g], equal = (size + MOST_PARTS - 1) / MOST_PARTS, first = parts.size();
                const int64_t step = std::max(LEAST_PART, (equal + TILE - 1) / TILE * TILE);
                for (int64_t i = 0; i < size && large == (size > step); i += step)
                    parts.push_back({first, ptr[g] + i, ptr[g] + std::min(i + step, size)});
            }
            if (!large) whole = parts.size();
        }
    }

    // A graph of one part stays with one thread, and its states in the caches.
    void run() {
        parallel(call.threads(), whole, [&](int64_t p, int64_t thread) { run({p, p + 1, 1, thread}); });
        if (whole < int64_t(parts.size())) run({whole, int64_t(parts.size()), call.threads(), 0});
    }

   private:
    struct Range {  // parts, and the threads that compute them
        int64_t begin, end, threads, first_thread;
    };

    void run(const Range& range) { grad ? backward(range) : forward(range); }

    void forward(const Range& range) {
        const Array<T> state = sum_products(range, k, &LinearMeans::read_values);
        for_tiles(range, [&](int64_t, const Tile& tile, Work& w) {
            read(q, R, tile, wide_r, w.r.data());
            multiply(w.r, wide_r, R, &state[tile.state], wide_d, tile.count, w.d);
            divide(tile, w.d.data());
        });
    }

    void backward(const Range& range) {
        const Array<T> state_t = transposed(sum_products(range, k, &LinearMeans::read_values));
        const Array<T> grad_state = sum_products(range, q, &LinearMeans::read_gradients);
        const Array<T> grad_state_t = transposed(grad_state);
        for_tiles(range, [&](int64_t, const Tile& tile, Work& w) {
            const int64_t first = tile.state;
            read_gradients(tile, w.d.data());
            multiply(w.d, wide_d, D + 1, &state_t[first], wide_r, tile.count, w.r);
            write(w.r.data(), wide_r, R, grad_q, tile);
            read_values(tile, w.d.data());
            multiply(w.d, wide_d, D + 1, &grad_state_t[first], wide_r, tile.count, w.r);
            write(w.r.data(), wide_r, R, grad_k, tile);
            read(k, R, tile, wide_r, w.r.data());
            multiply(w.r, wide_r, R, &grad_state[first], wide_d, tile.count, w.d);
            write(w.d.data(), wide_d, D, grad_v, tile);
        });
    }

    static constexpr int64_t TILE = 64;  // nodes whose arrays stay in the nearest caches
    static constexpr int64_t LEAST_PART = 1024, MOST_PARTS = 64;
    static constexpr T LEAST_SIZE = std::numeric_limits<T>::min() * T(1 << 14);  // as in `Problem.finish`

    struct Part {  // nodes of a graph, and the first part of the graph
        int64_t first, begin, end;
    };
    struct Tile {  // nodes of a graph, a head, and the place of their state
        int64_t head, begin, count, state;
    };
    struct Work {  // rows of a tile, padded to whole vectors
        Array<T> r, d;
        Work(int64_t wide_r, int64_t wide_d) : r(TILE * wide_r), d(TILE * wide_d) {}
    };
    using Reader = void (LinearMeans::*)(const Tile&, T*) const;

    const Call& call;
    const int64_t graphs = call.size(PTR, 0) - 1;
    const int64_t N = call.size(Q, 0), H = call.size(Q, 1), R = call.size(Q, 2), D = call.size(V, 2);
    const int64_t wide_r = padded<T>(R), wide_d = padded<T>(D + 1), area = wide_r * wide_d;
    const int64_t* ptr = call.dense<const int64_t>(PTR, {ANY});  // first node of each graph, and the number of nodes
    const Rows<const T> q = call.rows<const T>(Q, {N, H, R}), k = call.rows<const T>(K, {N, H, R});
    const Rows<const T> v = call.rows<const T>(V, {N, H, D});
    T *out = call.dense<T>(OUT, {N, H, D}), *sizes = call.dense<T>(SIZE, {N, H});  // results; inputs of the backward pass
    const T* grad = call.optional<const T>(GRAD, {N, H, D});  // of the output; null in the forward pass, like what follows
    const T* grad_size = call.optional<const T>(GRAD_SIZE, {N, H});
    T *grad_q = call.optional<T>(GRAD_Q, {N, H, R}), *grad_k = call.optional<T>(GRAD_K, {N, H, R});
    T* grad_v = call.optional<T>(GRAD_V, {N, H, D});
    std::vector<Part> parts;  // first those of graphs of one part, which are `whole`
    int64_t whole = 0;
    std::vector<Work> work{size_t(std::max<int64_t>(call.threads(), 1)), Work(wide_r, wide_d)};  // of each thread

    // Calls run(number of the part, tile, work) for all tiles; those of a part in their order.
    template <class F>
    void for_tiles(const Range& range, const F& run) {
        parallel(range.threads, range.end - range.begin, [&](int64_t number, int64_t thread) {
            const Part& part = parts[range.begin + number];
            for (int64_t i = part.begin; i < part.end; i += TILE)
                for (int64_t h = 0; h < H; ++h) {
                    const int64_t state = ((part.first - range.begin) * H + h) * area;
                    run(number, Tile{h, i, std::min(TILE, part.end - i), state}, work[range.first_thread + thread]);
                }
        });
    }

    int64_t number(const Tile& tile, int64_t r) const { return (tile.begin + r) * H + tile.head; }

    static void read(const Rows<const T>& from, int64_t count, const Tile& tile, int64_t wide, T* to) {
        for (int64_t r = 0; r < tile.count; ++r) copy(from(tile.begin + r, tile.head), count, to + r * wide);
    }

    // Values and a one.
    void read_values(const Tile& tile, T* to) const {
        read(v, D, tile, wide_d, to);
        for (int64_t r = 0; r < tile.count; ++r) to[r * wide_d + D] = 1;
    }

    // h, or 0 where the size counts as 0.
    void read_gradients(const Tile& tile, T* to) const {
        for (int64_t r = 0; r < tile.count; ++r, to += wide_d) {
            const int64_t i = number(tile, r);
            const T *g = grad + i * D, *mean = out + i * D, inverse = sizes[i] == 0 ? T(0) : T(1) / sizes[i];
            T along = 0;
            for (int64_t d = 0; d < D; ++d) along += g[d] * mean[d];
            for (int64_t d = 0; d < D; ++d) to[d] = g[d] * inverse;
            to[D] = sizes[i] == 0 ? T(0) : grad_size[i] - along * inverse;
        }
    }

    // The sums over each graph of a^T b for rows of R numbers and of D + 1, [wide_r, wide_d], each at its place.
    Array<T> sum_products(const Range& range, const Rows<const T>& a, Reader read_b) {
        Array<T> sums((range.end - range.begin) * H * area);
        for_tiles(range, [&](int64_t number, const Tile& tile, Work& w) {
            read(a, R, tile, wide_r, w.r.data()), (this->*read_b)(tile, w.d.data());
            T* to = &sums[(number * H + tile.head) * area];
            add_product(w.r.data(), 1, wide_r, whole_tiles(R), tile.count, w.d.data(), wide_d, wide_d, to, wide_d);
        });
        for (int64_t p = range.begin; p < range.end; ++p) {
            T *to = &sums[(parts[p].first - range.begin) * H * area], *from = &sums[(p - range.begin) * H * area];
            for (int64_t i = 0; to != from && i < H * area; ++i) to[i] += from[i];
        }
        return sums;
    }

    Array<T> transposed(const Array<T>& from) const {
        Array<T> to(from.size());
        for (size_t m = 0; m < from.size(); m += area)
            for (int64_t i = 0; i < R; ++i)
                for (int64_t j = 0; j <= D; ++j) to[m + j * wide_r + i] = from[m + i * wide_d + j];
        return to;
    }

    // Rows of `a`, of which `depth` numbers count, times a matrix with rows of `wide` numbers.
    static void multiply(const Array<T>& a, int64_t wide_a, int64_t depth, const T* matrix, int64_t wide, int64_t count,
                         Array<T>& to) {
        std::fill(to.begin(), to.end(), T(0));
        add_product(a.data(), wide_a, 1, whole_tiles(count), depth, matrix, wide, wide, to.data(), wide);
    }

    void divide(const Tile& tile, const T* sums) const {
        for (int64_t r = 0; r < tile.count; ++r, sums += wide_d) {
            const bool vanishes = sums[D] < LEAST_SIZE;  // false for NaN
            sizes[number(tile, r)] = vanishes ? T(0) : sums[D];
            T* to = out + number(tile, r) * D;
            for (int64_t i = 0; i < D; ++i) to[i] = vanishes ? T(0) : sums[i] / sums[D];
        }
    }

    void write(const T* from, int64_t wide, int64_t count, T* to, const Tile& tile) const {
        for (int64_t r = 0; to && r < tile.count; ++r) copy(from + r * wide, count, to + number(tile, r) * count);
    }
};

}  // namespace

// The means and their sizes, or, if there is a gradient, the gradients of those inputs that have room for one.
EXPORTED int64_t linear_means(const int64_t* block) {
    return for_dtype(block, ARRAYS, 0, Q, [](const Call& call, auto zero) {
        LinearMeans<decltype(zero)>(call).run();
    });
}
