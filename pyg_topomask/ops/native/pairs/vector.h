// Sums over the channels of a head, which fill whole vector registers, and exponentials of scores.

#pragma once

#include <limits>

#include "../exponential.h"
#include "../parallel.h"

namespace {

template <class T>
using Vec = Vector<T, std::min(32, VECTOR_BYTES)>;

// Number of vectors that hold `count` numbers.
template <class T>
inline int64_t vectors(int64_t count) {
    return (count + Vec<T>::L - 1) / Vec<T>::L;
}

// Makes room for `count` numbers, whose values are 0 where they were never written.
template <class V>
inline void grow(V& array, int64_t count) {
    if (int64_t(array.size()) < count) array.resize(count);
}

// Copies numbers, or adds them, as they were stored, in vectors: longer reads would have to wait until the stores are done.
template <bool ADD = false, class T>
inline void copy(const T* from, int64_t count, T* to) {
    int64_t i = 0;
    for (; i + Vec<T>::L <= count; i += Vec<T>::L) {
        const auto x = Vec<T>::load(from + i);
        Vec<T>::store(ADD ? Vec<T>::load(to + i) + x : x, to + i);
    }
    for (; i < count; ++i) to[i] = ADD ? to[i] + from[i] : from[i];
}

// Lane l of the result is the sum of the lanes of x[l]: two vectors are folded into one, until one is left.
#if defined(__clang__) || __GNUC__ >= 12
template <class V>
INLINED V sums_of_lanes(const V* x) {
    V half[4];
    if constexpr (sizeof(V) / sizeof(x[0][0]) == 8) {
        V whole[4];
        for (int i = 0; i < 4; ++i)
            whole[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
                       __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        for (int i = 0; i < 2; ++i)
            half[i] = __builtin_shufflevector(whole[2 * i], whole[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                      __builtin_shufflevector(whole[2 * i], whole[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
        return __builtin_shufflevector(half[0], half[1], 0, 2, 8, 10, 4, 6, 12, 14) +
               __builtin_shufflevector(half[0], half[1], 1, 3, 9, 11, 5, 7, 13, 15);
    } else if constexpr (sizeof(V) / sizeof(x[0][0]) == 4) {
        for (int i = 0; i < 2; ++i)
            half[i] = __builtin_shufflevector(x[i], x[i + 2], 0, 1, 4, 5) + __builtin_shufflevector(x[i], x[i + 2], 2, 3, 6, 7);
        return __builtin_shufflevector(half[0], half[1], 0, 4, 2, 6) + __builtin_shufflevector(half[0], half[1], 1, 5, 3, 7);
    } else {
        return __builtin_shufflevector(x[0], x[1], 0, 2) + __builtin_shufflevector(x[0], x[1], 1, 3);
    }
}
#else
template <class V>
INLINED V sums_of_lanes(const V* x) {
    constexpr int L = sizeof(V) / sizeof(x[0][0]);
    V sums{};
    for (int i = 0; i < L; ++i)
        for (int lane = 0; lane < L; ++lane) sums[i] += x[i][lane];
    return sums;
}
#endif

// V is the number of vectors where it is known when the code is compiled, 0 where `count` says it.
// In `dots` and `sum_rows`, row(p) is where the numbers of pair p begin. They fill `count` vectors, of which the last one
// begins at `last`.

// to[p] = x . row(p), for `total` pairs; writes whole vectors.
template <int V, class T, class Rows>
inline void dots(const T* x, const Rows& row, int64_t total, int64_t count, int64_t last, T* to) {
    constexpr int L = Vec<T>::L;
    const int64_t others = (V ? V : count) - 1;
    for (int64_t p = 0; p < total; p += L) {
        typename Vec<T>::type products[L];
#pragma GCC unroll 8
        for (int i = 0; i < L; ++i) {
            const T* from = row(std::min(p + i, total - 1));
            products[i] = Vec<T>::load(x + others * L) * Vec<T>::load(from + last);
            for (int64_t j = 0; j < others; ++j) products[i] += Vec<T>::load(x + j * L) * Vec<T>::load(from + j * L);
        }
        Vec<T>::store(sums_of_lanes(products), to + p);
    }
}

// to += x * y
template <class T>
inline void add_product(const T* x, const T* y, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) to[i] += x[i] * y[i];
}

// to += scale * x
template <int V, class T>
inline void add(T scale, const T* x, int64_t count, T* to) {
    for (int64_t i = 0; i < (V ? V : count) * Vec<T>::L; i += Vec<T>::L)
        Vec<T>::store(Vec<T>::load(to + i) + scale * Vec<T>::load(x + i), to + i);
}

// to = sum of scale[p] * row(p). Sums of every fourth pair are independent, so that none waits for the others.
template <int V, class T, class Rows>
inline void sum_rows(const T* scale, const Rows& row, int64_t total, int64_t count, int64_t last, T* to) {
    constexpr int64_t L = Vec<T>::L;
    if constexpr (V == 0) {  // four vectors at a time
        int64_t j = 0;
        const auto part = [&](int64_t p) { return row(p) + j * L; };
        for (; j + 4 <= count; j += 4)
            sum_rows<4>(scale, part, total, 4, j + 4 < count ? 3 * L : last - j * L, to + j * L);
        for (; j < count; ++j) sum_rows<1>(scale, part, total, 1, j + 1 < count ? 0 : last - j * L, to + j * L);
    } else {
        typename Vec<T>::type sum[4][V]{};
        int64_t p = 0;
        for (; p + 4 <= total; p += 4) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) sum[i][v] += scale[p + i] * Vec<T>::load(row(p + i) + (v < V - 1 ? v * L : last));
        }
        for (; p < total; ++p)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[0][v] += scale[p] * Vec<T>::load(row(p) + (v < V - 1 ? v * L : last));
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) Vec<T>::store((sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]), to + v * L);
    }
}

// The largest x[i] whose bound is not 0; 0 where there is none.
template <class T>
inline T largest(const T* x, const T* bound, int64_t count) {
    constexpr int L = Vec<T>::L;
    const T none = -std::numeric_limits<T>::infinity();
    T most[L];
    std::fill(most, most + L, none);
    typename Vec<T>::type top = Vec<T>::load(most), zero{};
    const typename Vec<T>::type low = top;
    int64_t i = 0;
    for (; i + L <= count; i += L) {
        const typename Vec<T>::type score = Vec<T>::load(bound + i) != zero ? Vec<T>::load(x + i) : low;
        top = score > top ? score : top;
    }
    Vec<T>::store(top, most);
    for (; i < count; ++i) most[0] = bound[i] != 0 ? std::max(most[0], x[i]) : most[0];
    const T found = *std::max_element(most, most + L);
    return found > none ? found : T(0);
}

// x[i] becomes e^x[i]: 0 below the range of T, and e^20 where it is more.
template <class T>
inline void exponentials(T* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = x[i] < Exp<T>::least ? T(0) : exponential(std::min(x[i], T(20)));
}

}  // namespace
