// Primphormer's map of queries and keys to its output, without an array of scores. For each node and each of the 2 H
// features x (queries of all heads, then keys), with f = x / |x|:
//
//   z_j   = sum_d f_d W_dj + t u_j,      t = sum_d f_d W_ds,      j < s,
//   out_h = sum over the query and the key of head h of dropout(z) M,
//
// and squares_j is the sum of z_j^2 over nodes. W has s + 1 columns, the last one for t, and u is a row of `update`.
// Dropout draws as it would for an array [2 H, N, s] (`draws.h`). The backward pass computes f and z again.
//
// A task is a range of nodes, which depends on the number of nodes alone. Its sums over nodes are added to those of the
// tasks before it: no result depends on the number of threads.

#include <cmath>

#include "../array.h"
#include "../draws.h"
#include "../product.h"

namespace {

enum {
    X, UPDATE, WEIGHT, OUT_WEIGHT, OUT, SQUARES, GRAD_OUT, GRAD_SQUARES,
    GRAD_X, GRAD_UPDATE, GRAD_WEIGHT, GRAD_OUT_WEIGHT, ARRAYS
};
enum { SEED, DROPPED, NUMBERS };

template <class T>
class Primal {
   public:
    explicit Primal(const Call& call) : call(call) {
        const T *w = call.dense<const T>(WEIGHT, {2 * H, D, s + 1}), *m = call.dense<const T>(OUT_WEIGHT, {2, s, D});
        pad(w, 2 * H, D, s + 1, S, weight);
        pad_transposed(w, 2 * H, D, s + 1, P, weight_t);
        pad(m, 2, s, D, P, out_weight);
        pad_transposed(m, 2, s, D, S, out_weight_t);
        if (grad_out) pad(call.dense<const T>(GRAD_SQUARES, {2 * H, s}), 2 * H, 1, s, S, grad_squares);
    }

    void forward() {
        const Array<T> sums = sum_tasks(2 * H * S, [&](Tile& tile, T* to) { forward(tile, to); });
        cut(sums.data(), 2 * H, 1, s, S, squares);
    }

    void backward() {
        const int64_t of_weight = 2 * H * P * S;
        const Array<T> sums = sum_tasks(of_weight + 2 * S * P, [&](Tile& tile, T* to) { backward(tile, to, to + of_weight); });
        if (grad_weight)
            for (int64_t a = 0; a < 2 * H; ++a) cut(&sums[a * P * S], 1, D, s + 1, S, grad_weight + a * D * (s + 1));
        if (grad_out_weight)
            for (int64_t half = 0; half < 2; ++half)
                cut(&sums[of_weight + half * S * P], 1, s, D, P, grad_out_weight + half * s * D);
    }

   private:
    using V = Vec<T>;
    using Numbers = typename V::type;
    static constexpr int64_t TILE = 64;  // nodes whose arrays stay in the nearest caches
    static constexpr int64_t LEAST_TASK = 16, MOST_TASKS = 64;  // tiles of a task, and tasks
    static constexpr T ZERO_NORM = T(1e-12);                    // below it, x counts as zero

    // Rows of a range of nodes, padded to whole vectors. The numbers that pad x, u and their gradients are zero.
    struct Tile {
        int64_t first, count;
        Array<T> u, f, inverse, z, left, out;  // inverse: 1 / |x|; left: z after dropout
        Array<T> grad, grad_z, grad_f, grad_u;
        Array<uint64_t> draws;
        Array<int16_t> numbers;
        Array<T> factors;  // of dropout
        Tile(int64_t P, int64_t S)
            : u(TILE * S), f(TILE * P), inverse(TILE), z(u), left(u), out(f), grad(f), grad_z(u), grad_f(f), grad_u(u),
              draws(TILE * S / PER_DRAW + 2), numbers(draws.size() * PER_DRAW), factors(numbers.size(), T(1)) {}
        int64_t rows() const { return whole_tiles(count); }
    };

    const Call& call;
    const int64_t threads = call.threads(), seed = call.integer(SEED), dropped = call.integer(DROPPED);  // 0: no dropout
    const int64_t N = call.size(X, 0), H = call.size(X, 1) / 2, D = call.size(X, 2), s = call.size(UPDATE, 1);
    const int64_t P = padded<T>(D), S = padded<T>(s + 1);
    const Rows<const T> x = call.rows<const T>(X, {N, 2 * H, D});
    const T* update = call.dense<const T>(UPDATE, {N, s});
    T *out = call.optional<T>(OUT, {N, H, D}), *squares = call.optional<T>(SQUARES, {2 * H, s});
    const T* grad_out = call.optional<const T>(GRAD_OUT, {N, H, D});
    T *grad_x = call.optional<T>(GRAD_X, {N, 2 * H, D}), *grad_update = call.optional<T>(GRAD_UPDATE, {N, s});
    T* grad_weight = call.optional<T>(GRAD_WEIGHT, {2 * H, D, s + 1});
    T* grad_out_weight = call.optional<T>(GRAD_OUT_WEIGHT, {2, s, D});
    const Kept<T> kept{dropped};
    Array<T> weight, weight_t, out_weight, out_weight_t, grad_squares;

    static T sum(const Numbers& x) {
        T total = 0;
        for (int lane = 0; lane < V::L; ++lane) total += x[lane];
        return total;
    }

    // `number` matrices [m, n] with rows of `wide` numbers.
    static void pad(const T* from, int64_t number, int64_t m, int64_t n, int64_t wide, Array<T>& to) {
        to.resize(number * m * wide);
        for (int64_t i = 0; i < number * m; ++i) std::copy_n(from + i * n, n, &to[i * wide]);
    }

    static void pad_transposed(const T* from, int64_t number, int64_t m, int64_t n, int64_t wide, Array<T>& to) {
        to.resize(number * n * wide);
        for (int64_t k = 0; k < number; ++k)
            for (int64_t i = 0; i < m; ++i)
                for (int64_t j = 0; j < n; ++j) to[(k * n + j) * wide + i] = from[(k * m + i) * n + j];
    }

    static void cut(const T* from, int64_t number, int64_t m, int64_t n, int64_t wide, T* to) {
        for (int64_t i = 0; i < number * m; ++i) std::copy_n(from + i * wide, n, to + i * n);
    }

    // Calls run(tile, sums) for all tiles, and returns the sums over all.
    template <class F>
    Array<T> sum_tasks(int64_t size, const F& run) const {
        const int64_t least = LEAST_TASK * TILE, equal = (N + MOST_TASKS - 1) / MOST_TASKS;
        const int64_t nodes = std::max(least, (equal + TILE - 1) / TILE * TILE), tasks = (N + nodes - 1) / nodes;
        std::vector<Tile> tiles(std::max<int64_t>(threads, 1), Tile(P, S));
        std::vector<Array<T>> sums(tasks);
        parallel(threads, tasks, [&](int64_t task, int64_t thread) {
            sums[task].resize(size);
            Tile& tile = tiles[thread];
            const int64_t end = std::min((task + 1) * nodes, N);
            for (tile.first = task * nodes; tile.first < end; tile.first += TILE) {
                tile.count = std::min(TILE, end - tile.first);
                for (int64_t r = 0; r < tile.count; ++r) copy(update + (tile.first + r) * s, s, &tile.u[r * S]);
                run(tile, sums[task].data());
            }
        });
        Array<T> total(size);
        for (const Array<T>& part : sums)
            for (int64_t i = 0; i < size; ++i) total[i] += part[i];
        return total;
    }

    // f and z of feature a.
    void score(int64_t a, Tile& tile) const {
        for (int64_t r = 0; r < tile.count; ++r) {
            T* f = &tile.f[r * P];
            copy(x(tile.first + r, a), D, f);
            Numbers square{};
            for (int64_t d = 0; d < P; d += V::L) square += V::load(f + d) * V::load(f + d);
            const T norm = std::sqrt(sum(square)), inverse = norm > ZERO_NORM ? T(1) / norm : T(0);
            for (int64_t d = 0; d < P; d += V::L) V::store(V::load(f + d) * inverse, f + d);
            tile.inverse[r] = inverse;
        }
        std::fill(tile.z.begin(), tile.z.end(), T(0));
        add_product(tile.f.data(), P, 1, tile.rows(), D, &weight[a * D * S], S, S, tile.z.data(), S);
        for (int64_t r = 0; r < tile.count; ++r) {
            T* z = &tile.z[r * S];
            const T t = z[s];
            for (int64_t j = 0; j < S; j += V::L) V::store(V::load(z + j) + t * V::load(&tile.u[r * S + j]), z + j);
        }
    }

    // The factors of dropout of feature a, in rows of s numbers. A row may be read beyond its end.
    const T* draw_factors(int64_t a, Tile& tile) const {
        const int64_t first = (a * N + tile.first) * s, skipped = first % PER_DRAW;
        if (dropped) {
            const int64_t draws = (skipped + tile.count * s + PER_DRAW - 1) / PER_DRAW;
            draw(uint64_t(seed), first / PER_DRAW, draws, tile.draws.data(), tile.numbers.data());
            const int16_t* numbers = tile.numbers.data();
            const Kept<T> own = kept;  // in registers
            T* __restrict factors = tile.factors.data();
            for (int64_t i = 0; i < draws * PER_DRAW; ++i) factors[i] = own.factor(numbers[i]);
        }
        return tile.factors.data() + skipped;
    }

    void forward(Tile& tile, T* of_squares) const {
        for (int64_t h = 0; h < H; ++h) {
            std::fill(tile.out.begin(), tile.out.end(), T(0));
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t a = half * H + h;
                score(a, tile);
                drop_and_square(a, tile, of_squares + a * S);
                const T* to_out = &out_weight[half * s * P];
                add_product(tile.left.data(), S, 1, tile.rows(), s, to_out, P, P, tile.out.data(), P);
            }
            for (int64_t r = 0; r < tile.count; ++r) copy(&tile.out[r * P], D, out + ((tile.first + r) * H + h) * D);
        }
    }

    void drop_and_square(int64_t a, Tile& tile, T* sums) const {
        const T* factor = draw_factors(a, tile);
        for (int64_t r = 0; r < tile.count; ++r, factor += s)
            for (int64_t j = 0; j < S; j += V::L) {
                const Numbers z = V::load(&tile.z[r * S + j]);
                V::store(z * V::load(factor + j), &tile.left[r * S + j]);
                V::store(V::load(sums + j) + z * z, sums + j);
            }
    }

    void backward(Tile& tile, T* of_weight, T* of_out_weight) const {
        std::fill(tile.grad_u.begin(), tile.grad_u.end(), T(0));
        for (int64_t h = 0; h < H; ++h) {
            for (int64_t r = 0; r < tile.count; ++r) copy(grad_out + ((tile.first + r) * H + h) * D, D, &tile.grad[r * P]);
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t a = half * H + h;
                score(a, tile);
                std::fill(tile.grad_z.begin(), tile.grad_z.end(), T(0));
                add_product(tile.grad.data(), P, 1, tile.rows(), D, &out_weight_t[half * D * S], S, S, tile.grad_z.data(), S);
                descend_scores(a, tile);
                T *of_half = of_out_weight + half * S * P, *of_feature = of_weight + a * P * S;
                add_product(tile.left.data(), 1, S, whole_tiles(s), tile.count, tile.grad.data(), P, P, of_half, P);
                add_product(tile.f.data(), 1, P, whole_tiles(D), tile.count, tile.grad_z.data(), S, S, of_feature, S);
                std::fill(tile.grad_f.begin(), tile.grad_f.end(), T(0));
                add_product(tile.grad_z.data(), S, 1, tile.rows(), s + 1, &weight_t[a * (s + 1) * P], P, P, tile.grad_f.data(), P);
                descend_norms(a, tile);
            }
        }
        if (grad_update)
            for (int64_t r = 0; r < tile.count; ++r) copy(&tile.grad_u[r * S], s, grad_update + (tile.first + r) * s);
    }

    // From the gradient of dropout(z) to that of z and t, in the same array, and of u.
    void descend_scores(int64_t a, Tile& tile) const {
        const T *factor = draw_factors(a, tile), *of_squares = &grad_squares[a * S];
        for (int64_t r = 0; r < tile.count; ++r, factor += s) {
            const T t = tile.z[r * S + s];
            Numbers of_t{};
            for (int64_t j = 0, i = r * S; j < S; j += V::L, i += V::L) {
                const Numbers z = V::load(&tile.z[i]), kept_by = V::load(factor + j);
                const Numbers grad = V::load(&tile.grad_z[i]) * kept_by + 2 * z * V::load(of_squares + j);
                V::store(z * kept_by, &tile.left[i]);
                V::store(grad, &tile.grad_z[i]);
                V::store(V::load(&tile.grad_u[i]) + t * grad, &tile.grad_u[i]);
                of_t += V::load(&tile.u[i]) * grad;
            }
            tile.grad_z[r * S + s] = sum(of_t);
        }
    }

    // From the gradient of f to that of x.
    void descend_norms(int64_t a, Tile& tile) const {
        for (int64_t r = 0; r < tile.count; ++r) {
            const T *f = &tile.f[r * P], inverse = tile.inverse[r];
            T* grad = &tile.grad_f[r * P];
            Numbers product{};
            for (int64_t d = 0; d < P; d += V::L) product += V::load(f + d) * V::load(grad + d);
            const T along = sum(product);
            for (int64_t d = 0; d < P; d += V::L)
                V::store((V::load(grad + d) - along * V::load(f + d)) * inverse, grad + d);
            if (grad_x) copy(grad, D, grad_x + ((tile.first + r) * 2 * H + a) * D);
        }
    }
};

}  // namespace

// The result, or, if there is a gradient, the gradients of those inputs that have room for one.
EXPORTED int64_t primal_map(const int64_t* block) {
    return for_dtype(block, ARRAYS, NUMBERS, X, [](const Call& call, auto zero) {
        Primal<decltype(zero)> primal(call);
        call.has(GRAD_OUT) ? primal.backward() : primal.forward();
    });
}
