// Products of small matrices, tile by tile in vector registers.

#pragma once

#include "parallel.h"

namespace {

constexpr int ROWS = VECTOR_BYTES == 64 ? 8 : 4;
constexpr int VECTORS = 2;  // of each of the ROWS rows of a tile

template <class T>
using Vec = Vector<T, VECTOR_BYTES>;

// The least number from `count` on that fills whole vectors and whole tiles.
template <class T>
inline int64_t padded(int64_t count) {
    constexpr int64_t unit = std::max(Vec<T>::L, ROWS);
    return (count + unit - 1) / unit * unit;
}

// The least number from `count` on that fills whole tiles.
inline int64_t whole_tiles(int64_t count) { return (count + ROWS - 1) / ROWS * ROWS; }

// Copies a row, in vectors: a call of memcpy takes longer. The last vector may overlap the one before.
template <class T>
inline void copy(const T* from, int64_t count, T* to) {
    constexpr int64_t L = Vec<T>::L;
    int64_t i = 0;
    for (; i + L <= count; i += L) Vec<T>::store(Vec<T>::load(from + i), to + i);
    if (i < count && count >= L) return Vec<T>::store(Vec<T>::load(from + count - L), to + count - L);
    for (; i < count; ++i) to[i] = from[i];
}

// Sums of the products of ROWS rows of a with V vectors of each row of b, in their order; vector v of row p is at row(p, v).
template <int V, class T, class Row>
INLINED void multiply_tile(const T* a, int64_t by_row, int64_t by_column, int64_t depth, const Row& row,
                           typename Vec<T>::type (&sums)[ROWS][V]) {
    typename Vec<T>::type x[V];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = typename Vec<T>::type{};
    for (int64_t p = 0; p < depth; ++p, a += by_column) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) x[v] = Vec<T>::load(row(p, v));
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) sums[r][v] += a[r * by_row] * x[v];
    }
}

// A tile of V vectors in each row of C.
template <int V, class T>
inline void add_tile(const T* a, int64_t by_row, int64_t by_column, int64_t depth, const T* b, int64_t b_stride, T* c,
                     int64_t c_stride) {
    constexpr int L = Vec<T>::L;
    typename Vec<T>::type sums[ROWS][V];
    multiply_tile<V>(a, by_row, by_column, depth, [=](int64_t p, int v) { return b + p * b_stride + v * L; }, sums);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            T* to = c + r * c_stride + v * L;
            Vec<T>::store(Vec<T>::load(to) + sums[r][v], to);
        }
}

// C += A B for A [rows, depth] with any strides, B [depth, columns] and C [rows, columns]. Rows of C and columns are
// padded (`padded`).
template <class T>
inline void add_product(const T* a, int64_t by_row, int64_t by_column, int64_t rows, int64_t depth, const T* b,
                        int64_t b_stride, int64_t columns, T* c, int64_t c_stride) {
    constexpr int64_t L = Vec<T>::L;
    for (int64_t i = 0; i < rows; i += ROWS, a += ROWS * by_row, c += ROWS * c_stride) {
        int64_t j = 0;
        for (; j + VECTORS * L <= columns; j += VECTORS * L)
            add_tile<VECTORS>(a, by_row, by_column, depth, b + j, b_stride, c + j, c_stride);
        for (; j < columns; j += L) add_tile<1>(a, by_row, by_column, depth, b + j, b_stride, c + j, c_stride);
    }
}

}  // namespace
