// Linear attention under a mask that is a polynomial of a sparse matrix, sum_k c_k P_k(A), in powers or Chebyshev
// polynomials (polynomial.py). All terms of a slice are computed while its rows lie in the cache.

#include "../slices.h"

namespace {

enum { ROWPTR = STRUCTURE, COL, VALUE, BACK_ROWPTR, BACK_COL, BACK_VALUE, GROUP, SUMS, ARRAYS = SUMS + 6 };

constexpr int64_t LEAST = 64;  // nodes of a block

// The largest distance between the numbers of two neighbours.
template <class T>
int64_t reach(const Matrix<T>& m, int64_t nodes) {
    int64_t most = 0;
    for (int64_t i = 0; i < nodes; ++i)
        for (int32_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) most = std::max(most, std::abs(m.col[e] - i));
    return most;
}

// Terms are computed block by block of nodes, each one block behind the term before it, while the rows lie in the cache.
// Neighbours are at most one block apart, so that a term finds all rows of the term before, and replaces those of the
// term before that when nothing reads them any more.
template <class T, int BYTES, int W>
void multiply(
    const Call& call, const Matrix<T>& m, int64_t block, const Slice<T, BYTES, W>& slice, int64_t head, double* by_coeff, T* memory) {
    typedef Vector<T, BYTES> Vec;
    constexpr int64_t L = Vec::L, AHEAD = 32;  // entries
    const int64_t nodes = slice.a.nodes, terms = call.size(COEFFS, 0), groups = call.size(COEFFS, 1);
    const int64_t heads = call.size(COEFFS, 2), last = m.rowptr[nodes] - 1, blocks = (nodes + block - 1) / block;
    const T* coeffs = call.dense<const T>(COEFFS, {terms, groups, heads});
    const int64_t* group = call.optional<const int64_t>(GROUP, {nodes});
    const auto compute = [&](int64_t k, int64_t begin, int64_t end) {
        const bool chebyshev = call.integer(0) && k > 1;
        const T* now = memory + (k + 1) % 2 * W * L * nodes;
        for (int64_t i = begin; i < end; ++i) {
            typename Vec::type sum[W]{};
            if (k == 0) slice.begin(i, sum);
            else
                for (int32_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) {
                    __builtin_prefetch(now + int64_t(m.col[std::min<int64_t>(e + AHEAD, last)]) * W * L);
                    for (int w = 0; w < W; ++w) sum[w] += m.value[e] * Vec::load(now + (int64_t(m.col[e]) * W + w) * L);
                }
            for (int w = 0; w < W; ++w) {
                T* to = memory + ((k % 2 * nodes + i) * W + w) * L;
                if (chebyshev) sum[w] = sum[w] + sum[w] - Vec::load(to);
                Vec::store(sum[w], to);
            }
            const int64_t g = k * groups + (group ? group[i] : 0);
            const T along = slice.add(i, coeffs[g * heads + (heads > 1 ? head : 0)], sum);
            if (by_coeff) by_coeff[g] += along;
        }
    };
    for (int64_t step = 0; step < blocks + terms - 1; ++step)
        for (int64_t k = std::max<int64_t>(0, step - blocks + 1); k < std::min(terms, step + 1); ++k)
            compute(k, (step - k) * block, std::min(nodes, (step - k + 1) * block));
}

template <class T>
void run(const Call& call) {
    const Attention<T> a(call, SUMS);
    const Matrix<T> forth(call, ROWPTR, a.nodes + 1), back(call, BACK_ROWPTR, a.nodes + 1);
    const int64_t parts = call.integer(1), size = call.size(COEFFS, 0) * call.size(COEFFS, 1);
    const int64_t block = std::max({LEAST, reach(forth, a.nodes), reach(back, a.nodes)});
    const auto product = [&](const auto& slice, auto... rest) {
        multiply(call, slice.x == a.k ? forth : back, block, slice, rest...);
    };
    if (a.features * sizeof(T) <= FEW_BYTES) for_slices<FEW_BYTES>(a, parts, size, 2 * a.nodes, product);
    else for_slices<VECTOR_BYTES>(a, parts, size, 2 * a.nodes, product);
}

}  // namespace

// The sums, or, if there is a gradient, those of q, k, v and the coefficients that have room.
EXPORTED int64_t polynomial_attention(const int64_t* block) {
    return for_dtype(block, ARRAYS, 2, Q, [](const Call& call, auto zero) { run<decltype(zero)>(call); });
}
