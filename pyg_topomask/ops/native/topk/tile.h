// Tiles of queries by keys, and the lists of the best keys.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <vector>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../parallel.h"

namespace {

constexpr int BYTES = 64;          // of one vector of keys: 16 floats or 8 doubles
constexpr int TASK_QUERIES = 128;  // queries that a thread takes at once
constexpr int CHUNK_BYTES = 1 << 18;  // keys that stay in the second-level cache while these queries pass
#if defined(__AVX512F__)
constexpr int QB = 8;  // queries of a tile: one 64-byte accumulator each
#else
constexpr int QB = 4;
#endif

template <class T>
struct Vec {
    static constexpr int L = BYTES / sizeof(T);
    typedef T type __attribute__((vector_size(BYTES)));
    static type load(const T* p) {
        type v;
        std::memcpy(&v, p, BYTES);
        return v;
    }
};

template <class T>
struct Aligned {  // zeros, each vector on one cache line
    explicit Aligned(size_t n) : data(static_cast<T*>(::operator new(n * sizeof(T) + BYTES, std::align_val_t(BYTES)))) {
        std::fill(data, data + n, T(0));
    }
    ~Aligned() { ::operator delete(data, std::align_val_t(BYTES)); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    T* data;
};

// Bit i is set where lane i is at least `floor`.
inline uint32_t lanes_at_least(const Vec<float>::type& v, float floor) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(reinterpret_cast<const __m512&>(v), _mm512_set1_ps(floor), _CMP_GE_OQ);
#elif defined(__AVX2__)
    const __m256* half = reinterpret_cast<const __m256*>(&v);
    const __m256 f = _mm256_set1_ps(floor);
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(half[0], f, _CMP_GE_OQ))) |
           uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(half[1], f, _CMP_GE_OQ))) << 8;
#else
    uint32_t mask = 0;
    for (int i = 0; i < Vec<float>::L; ++i) mask |= uint32_t(v[i] >= floor) << i;
    return mask;
#endif
}

inline uint32_t lanes_at_least(const Vec<double>::type& v, double floor) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask(reinterpret_cast<const __m512d&>(v), _mm512_set1_pd(floor), _CMP_GE_OQ);
#elif defined(__AVX2__)
    const __m256d* half = reinterpret_cast<const __m256d*>(&v);
    const __m256d f = _mm256_set1_pd(floor);
    return uint32_t(_mm256_movemask_pd(_mm256_cmp_pd(half[0], f, _CMP_GE_OQ))) |
           uint32_t(_mm256_movemask_pd(_mm256_cmp_pd(half[1], f, _CMP_GE_OQ))) << 4;
#else
    uint32_t mask = 0;
    for (int i = 0; i < Vec<double>::L; ++i) mask |= uint32_t(v[i] >= floor) << i;
    return mask;
#endif
}

// The best keys so far of QB queries: sorted lists, larger score first, lower index first among equals.
template <class T>
struct Block {
    Block(int dim, int keep) : dim(dim), keep(keep), query(size_t(dim) * QB), value(size_t(keep) * QB), index(size_t(keep) * QB) {}

    // Take `count` queries, rows `row[i]` of `q`; the places beyond them accept nothing.
    void start(const T* q, const int64_t* row, int count) {
        std::fill(value.begin(), value.end(), -std::numeric_limits<T>::infinity());
        std::fill(index.begin(), index.end(), std::numeric_limits<int32_t>::max());
        for (int i = 0; i < QB; ++i) {
            floor[i] = std::numeric_limits<T>::infinity() * (i < count ? -1 : 1);
            for (int j = 0; j < dim; ++j) query[j * QB + i] = i < count ? q[row[i] * dim + j] : T(0);
        }
    }

    static bool better(T v, int32_t id, T other, int32_t other_id) {
        return v > other || (v == other && id < other_id);
    }

    void insert(int i, T v, int32_t id) {
        T* values = &value[size_t(i) * keep];
        int32_t* ids = &index[size_t(i) * keep];
        int place = keep - 1;
        if (!better(v, id, values[place], ids[place])) return;
        for (; place > 0 && better(v, id, values[place - 1], ids[place - 1]); --place) {
            values[place] = values[place - 1];
            ids[place] = ids[place - 1];
        }
        values[place] = v;
        ids[place] = id;
        floor[i] = values[keep - 1];
    }

    // Score one vector of keys, `keys[j][lane]`, of which the lowest `valid` count; `id` names them, or `first` on.
    void visit(const T* keys, int valid, const int32_t* id, int32_t first) {
        using V = typename Vec<T>::type;
        V score[QB] = {};
        const T* q = query.data();
        for (int j = 0; j < dim; ++j, q += QB) {
            const V key = Vec<T>::load(keys + j * Vec<T>::L);
#pragma GCC unroll 8
            for (int i = 0; i < QB; ++i) score[i] += key * q[i];
        }
        uint32_t mask[QB], any = 0;
#pragma GCC unroll 8
        for (int i = 0; i < QB; ++i) any |= mask[i] = lanes_at_least(score[i], floor[i]);
        if (!any) return;
        const uint32_t lanes = (uint32_t(1) << valid) - 1;
        for (int i = 0; i < QB; ++i) {
            if (!(mask[i] &= lanes)) continue;
            T lane_score[Vec<T>::L];
            std::memcpy(lane_score, &score[i], BYTES);
            for (uint32_t rest = mask[i]; rest; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                insert(i, lane_score[lane], id ? id[lane] : first + lane);
            }
        }
    }

    void store(const int64_t* row, int count, int64_t key_offset, int64_t width, int64_t* out) const {
        for (int i = 0; i < count; ++i)
            for (int64_t p = 0; p < keep; ++p) out[row[i] * width + p] = key_offset + index[size_t(i) * keep + p];
    }

    int dim, keep;
    std::vector<T> query;  // [dim][QB]
    T floor[QB];           // the k-th best score of each
    std::vector<T> value;  // [QB][keep]
    std::vector<int32_t> index;
};

inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
void pack(const T* k, const int32_t* id, int64_t count, int dim, T* tile) {
    for (int64_t lane = 0; lane < count; ++lane)
        for (int j = 0; j < dim; ++j) tile[j * Vec<T>::L + lane] = k[int64_t(id ? id[lane] : lane) * dim + j];
}

}  // namespace
