// Tiles of queries by keys, and the lists of the best keys.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
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
constexpr int QB = 8, KV = 2;  // a tile has QB queries and KV vectors of keys, and QB * KV accumulators of 64 bytes
#else
constexpr int QB = 4, KV = 1;
#endif
constexpr int FIXED_DIM = 16;  // up to this width, a tile's loop is compiled for each width

template <class T>
using Vec = Vector<T, BYTES>;

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

// Keys in tiles of one vector, `data[tile][j][lane]`, behind them KV - 1 tiles of zeros; `id` names them in this order,
// or their places do.
template <class T>
struct Keys {
    const T* data;
    const int32_t* id;
    int64_t num;
};

template <class T>
struct Scores {
    typename Vec<T>::type score[QB][KV];
    uint32_t mask[QB];  // bit v * L + lane: the score is at least the query's floor
};

// Score KV vectors of keys; false, and nothing in `out`, if all scores are below the floors. D is `dim`, or 0.
template <class T, int D>
bool score_tile(const T* q, const T* const* keys, int dim, const T* floor, Scores<T>& out) {
    using V = typename Vec<T>::type;
    V score[QB][KV];
#pragma GCC unroll 8
    for (int i = 0; i < QB; ++i)
#pragma GCC unroll 2
        for (int v = 0; v < KV; ++v) score[i][v] = V{};
    const int width = D > 0 ? D : dim;
    for (int j = 0; j < width; ++j, q += QB) {
        V key[KV];
#pragma GCC unroll 2
        for (int v = 0; v < KV; ++v) key[v] = Vec<T>::load(keys[v] + j * Vec<T>::L);
#pragma GCC unroll 8
        for (int i = 0; i < QB; ++i)
#pragma GCC unroll 2
            for (int v = 0; v < KV; ++v) score[i][v] += key[v] * q[i];
    }
    uint32_t any = 0;
#pragma GCC unroll 8
    for (int i = 0; i < QB; ++i)
#pragma GCC unroll 2
        for (int v = 0; v < KV; ++v) any |= lanes_at_least(score[i][v], floor[i]);
    if (__builtin_expect(!any, 1)) return false;
    for (int i = 0; i < QB; ++i) {
        out.mask[i] = 0;
        for (int v = 0; v < KV; ++v) {
            out.score[i][v] = score[i][v];
            out.mask[i] |= lanes_at_least(score[i][v], floor[i]) << v * Vec<T>::L;
        }
    }
    return true;
}

template <class T>
using ScoreTile = bool (*)(const T*, const T* const*, int, const T*, Scores<T>&);

template <class T, int D = FIXED_DIM>
ScoreTile<T> score_tile_for(int dim) {
    if constexpr (D == 0)
        return score_tile<T, 0>;
    else
        return dim == D ? score_tile<T, D> : score_tile_for<T, D - 1>(dim);
}

// The best keys so far of QB queries: sorted lists, larger score first, lower index first among equals.
template <class T>
struct Block {
    Block(int dim, int keep)
        : dim(dim), keep(keep), score(score_tile_for<T>(dim)), query(size_t(dim) * QB), value(size_t(keep) * QB), index(size_t(keep) * QB) {}

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

    // Score the keys of the given tiles; whether any floor may have risen.
    bool visit(const Keys<T>& keys, const int64_t (&tile)[KV]) {
        constexpr int L = Vec<T>::L;
        const T* data[KV];
        for (int v = 0; v < KV; ++v) data[v] = keys.data + tile[v] * L * dim;
        Scores<T> found;
        if (!score(query.data(), data, dim, floor, found)) return false;
        for (int i = 0; i < QB; ++i) {
            const T* lane_score = reinterpret_cast<const T*>(found.score[i]);
            for (uint32_t rest = found.mask[i]; rest; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                const int64_t place = tile[lane / L] * L + lane % L;
                if (place < keys.num) insert(i, lane_score[lane], keys.id ? keys.id[place] : int32_t(place));
            }
        }
        return true;
    }

    void store(const int64_t* row, int count, int64_t key_offset, int64_t width, int64_t* out) const {
        for (int i = 0; i < count; ++i)
            for (int64_t p = 0; p < keep; ++p) out[row[i] * width + p] = key_offset + index[size_t(i) * keep + p];
    }

    int dim, keep;
    ScoreTile<T> score;
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
