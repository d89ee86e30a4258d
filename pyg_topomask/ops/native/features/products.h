// Products of the rows of a group and the columns of quads. Rows have `size` vectors each and follow each other, columns
// are `stride` numbers apart, and numbers of pairs are in tiles.

#pragma once

#include <utility>

#include "tiles.h"

namespace {

#ifdef __AVX512F__
constexpr int VECTOR_BYTES = 64;
#else
constexpr int VECTOR_BYTES = 32;
#endif

template <class T>
using Vec = Vector<T, VECTOR_BYTES>;

// Lane l of the result is the sum of the lanes of x[l], which are overwritten: two vectors are folded into one, until one
// is left.
#if defined(__clang__) || __GNUC__ >= 12
template <int HALF, class V, int... I>
inline V fold(const V& a, const V& b, std::integer_sequence<int, I...>) {
    constexpr int L = sizeof...(I);  // of 2 HALF lanes, the first half comes from a, the second one from b
    return __builtin_shufflevector(a, b, (I % (2 * HALF) < HALF ? I : I - HALF + L)...) +
           __builtin_shufflevector(a, b, (I % (2 * HALF) < HALF ? I + HALF : I + L)...);
}
template <class T, int HALF = Vec<T>::L / 2>
inline typename Vec<T>::type sums_of_lanes(typename Vec<T>::type* x) {
    if constexpr (HALF == 0) {
        return x[0];
    } else {
#pragma GCC unroll 8
        for (int i = 0; i < HALF; ++i) x[i] = fold<HALF>(x[i], x[i + HALF], std::make_integer_sequence<int, Vec<T>::L>());
        return sums_of_lanes<T, HALF / 2>(x);
    }
}
#else
template <class T>
inline typename Vec<T>::type sums_of_lanes(typename Vec<T>::type* x) {
    typename Vec<T>::type sums{};
    for (int i = 0; i < Vec<T>::L; ++i)
        for (int lane = 0; lane < Vec<T>::L; ++lane) sums[i] += x[i][lane];
    return sums;
}
#endif

// to = row . column
template <class T>
inline void dots(const T* rows, int64_t size, const T* columns, int64_t stride, const int32_t* col, int64_t quads, T* to) {
    constexpr int L = Vec<T>::L;
    for (int64_t quad = 0; quad < quads; ++quad, col += QUAD, to += TILE) {
        typename Vec<T>::type sums[TILE]{}, row[GROUP];
        for (int64_t j = 0; j < size * L; j += L) {
#pragma GCC unroll 4
            for (int g = 0; g < GROUP; ++g) row[g] = Vec<T>::load(rows + g * size * L + j);
#pragma GCC unroll 4
            for (int k = 0; k < QUAD; ++k) {
                const typename Vec<T>::type column = Vec<T>::load(columns + col[k] * stride + j);
#pragma GCC unroll 4
                for (int g = 0; g < GROUP; ++g) sums[g * QUAD + k] += row[g] * column;
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < TILE; i += L) Vec<T>::store(sums_of_lanes<T>(sums + i), to + i);
    }
}

// row += sum of weight * column, for C vectors from number `j` on
template <int C, class T>
inline void add_to_rows(const T* weight, const T* columns, int64_t stride, const int32_t* col, int64_t quads, int64_t j,
                        int64_t size, T* rows) {
    constexpr int L = Vec<T>::L;
    typename Vec<T>::type sums[GROUP][C]{}, x[C];
    for (int64_t i = 0; i < quads * QUAD; ++i) {
        const T *w = weight + i / QUAD * TILE + i % QUAD, *column = columns + col[i] * stride + j;
#pragma GCC unroll 4
        for (int k = 0; k < C; ++k) x[k] = Vec<T>::load(column + k * L);
#pragma GCC unroll 4
        for (int g = 0; g < GROUP; ++g)
#pragma GCC unroll 4
            for (int k = 0; k < C; ++k) sums[g][k] += w[g * QUAD] * x[k];
    }
#pragma GCC unroll 4
    for (int g = 0; g < GROUP; ++g)
#pragma GCC unroll 4
        for (int k = 0; k < C; ++k) {
            T* to = rows + g * size * L + j + k * L;
            Vec<T>::store(Vec<T>::load(to) + sums[g][k], to);
        }
}

// column += sum of weight * row, for C vectors from number `j` on
template <int C, class T>
inline void add_to_columns(const T* weight, const T* rows, int64_t size, int64_t j, const int32_t* col, int64_t quads,
                           int64_t stride, T* columns) {
    constexpr int L = Vec<T>::L;
    typename Vec<T>::type row[GROUP][C];
#pragma GCC unroll 4
    for (int g = 0; g < GROUP; ++g)
#pragma GCC unroll 4
        for (int k = 0; k < C; ++k) row[g][k] = Vec<T>::load(rows + g * size * L + j + k * L);
    for (int64_t i = 0; i < quads * QUAD; ++i) {
        const T* w = weight + i / QUAD * TILE + i % QUAD;
        T* column = columns + col[i] * stride + j;
#pragma GCC unroll 4
        for (int k = 0; k < C; ++k) {
            typename Vec<T>::type x = Vec<T>::load(column + k * L);
#pragma GCC unroll 4
            for (int g = 0; g < GROUP; ++g) x += w[g * QUAD] * row[g][k];
            Vec<T>::store(x, column + k * L);
        }
    }
}

// Calls run(number of vectors, first number) for parts of `size` vectors.
template <class T, class F>
inline void in_chunks(int64_t size, const F& run) {
    int64_t j = 0;
    for (; j + 4 <= size; j += 4) run(std::integral_constant<int, 4>(), j * Vec<T>::L);
    for (; j < size; ++j) run(std::integral_constant<int, 1>(), j * Vec<T>::L);
}

}  // namespace
