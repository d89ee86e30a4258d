// Tiles of queries by keys, and the lists of the best keys.

#pragma once

#include <cmath>
#include <limits>
#include <numeric>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "../array.h"
#include "../product.h"

namespace {

constexpr int TASK_QUERIES = 128;     // queries that a thread takes at once
constexpr int CHUNK_BYTES = 1 << 18;  // keys that stay in the second-level cache while these queries pass
constexpr int FLOOR_KEYS = 512;       // keys of a flat search from which it takes its first floors
// A register holds a vector of keys. A tile has QB queries and KV vectors of keys, and so QB * KV sums.
constexpr int QB = ROWS, KV = VECTORS;
constexpr int FIXED_DIM = 16;  // up to this width, the loop of a tile is compiled for each width

inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Bit i is set where lane i is at least `floor`.
template <class T>
inline uint32_t lanes_at_least(const typename Vec<T>::type& v, T floor) {
    [[maybe_unused]] constexpr bool narrow = sizeof(T) == sizeof(float);
#if defined(__AVX512F__)
    if constexpr (narrow) return _mm512_cmp_ps_mask(__m512(v), _mm512_set1_ps(floor), _CMP_GE_OQ);
    else return _mm512_cmp_pd_mask(__m512d(v), _mm512_set1_pd(floor), _CMP_GE_OQ);
#elif defined(__AVX__)
    if constexpr (narrow) return _mm256_movemask_ps(_mm256_cmp_ps(__m256(v), _mm256_set1_ps(floor), _CMP_GE_OQ));
    else return _mm256_movemask_pd(_mm256_cmp_pd(__m256d(v), _mm256_set1_pd(floor), _CMP_GE_OQ));
#elif defined(__SSE2__)
    if constexpr (narrow) return _mm_movemask_ps(_mm_cmpge_ps(__m128(v), _mm_set1_ps(floor)));
    else return _mm_movemask_pd(_mm_cmpge_pd(__m128d(v), _mm_set1_pd(floor)));
#else
    uint32_t mask = 0;
    for (int i = 0; i < Vec<T>::L; ++i) mask |= uint32_t(v[i] >= floor) << i;
    return mask;
#endif
}

// Inner products of QB queries, `q[j][i]`, with KV vectors. Here as in all other loops, each lane adds its products in the
// order of j, so that the score of a pair is the same wherever it is computed.
template <class T>
INLINED void multiply(const T* q, const T* const* keys, int dim, typename Vec<T>::type (&score)[QB][KV]) {
    multiply_tile<KV>(q, 1, QB, dim, [keys](int64_t j, int v) { return keys[v] + j * Vec<T>::L; }, score);
}

// Keys can be divided into classes, of which each keeps its best score. If `keep` classes reach a number, `keep` keys do.
// With twice as many classes, that number is nearly the score of the last key kept. Returns their number in vectors.
template <class T>
int64_t class_rows(int keep) { return div_up(2 * int64_t(keep), Vec<T>::L); }

// The largest score in the first vector that `keep` of the classes in `rows` vectors reach, -inf if there is none.
template <class T>
T reached_by(const T* classes, int64_t rows, int keep) {
    constexpr int L = Vec<T>::L;
    T floor = -std::numeric_limits<T>::infinity();
    for (int lane = 0; lane < L; ++lane) {
        int reached = 0;
        for (int64_t r = 0; r < rows; ++r)
            reached += __builtin_popcount(lanes_at_least(Vec<T>::load(classes + r * L), classes[lane]));
        if (reached >= keep) floor = std::max(floor, classes[lane]);
    }
    return floor;
}

// Larger of the two scores of each class; the old one where the new one is NaN.
template <class T>
void improve(T* classes, const typename Vec<T>::type& score) {
    const typename Vec<T>::type best = Vec<T>::load(classes);
    Vec<T>::store(score > best ? score : best, classes);
}

// The best keys so far of QB queries: sorted lists, larger score first, lower index first among equals.
template <class T>
struct Block {
    Block(int dim, int keep)
        : dim(dim), keep(keep), query(size_t(dim) * QB), value(size_t(keep) * QB), index(size_t(keep) * QB),
          visit_tile(visit_for(dim)) {}

    // Take `num` queries, rows `row[i]` of `q`; the places beyond them accept nothing.
    void start(const T* q, const int64_t* row, int num) {
        count = num;
        std::fill(value.begin(), value.end(), -std::numeric_limits<T>::infinity());
        std::fill(index.begin(), index.end(), std::numeric_limits<int32_t>::max());
        for (int i = 0; i < QB; ++i) {
            floor[i] = std::numeric_limits<T>::infinity() * (i < count ? -1 : 1);
            T square = 0;
            for (int j = 0; j < dim; ++j) {
                const T value = query[j * QB + i] = i < count ? q[row[i] * dim + j] : T(0);
                square += value * value;
            }
            norm[i] = std::sqrt(square + dim * std::numeric_limits<T>::min());  // squares may have vanished
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
        floor[i] = std::max(floor[i], values[keep - 1]);
    }

    // Set the floors by some of the `num` packed keys. Otherwise, nearly all keys of a small graph would be inserted.
    void raise_floors(const T* packed, int64_t num) {
        constexpr int L = Vec<T>::L;
        const int64_t vectors = std::min<int64_t>(num, FLOOR_KEYS) / L, rows = class_rows<T>(keep);
        if (vectors < rows) return;
        Array<T> classes(QB * rows * L, -std::numeric_limits<T>::infinity());
        for (int64_t at = 0; at < vectors; at += KV) {
            const T* data[KV];
            for (int v = 0; v < KV; ++v) data[v] = packed + (at + v) * L * dim;
            typename Vec<T>::type found[QB][KV];
            multiply(query.data(), data, dim, found);
            for (int v = 0; v < std::min<int64_t>(KV, vectors - at); ++v)
                for (int i = 0; i < QB; ++i) improve(&classes[(i * rows + (at + v) % rows) * L], found[i][v]);
        }
        for (int i = 0; i < count; ++i) floor[i] = reached_by(&classes[i * rows * L], rows, keep);
    }

    // Offer KV vectors of the `num` packed keys, from vector `from` on.
    void visit(const T* packed, int64_t num, int64_t from) { (this->*visit_tile)(packed, num, from); }

    // The same; D is `dim`, or 0.
    template <int D>
    void visit_of(const T* packed, int64_t num, int64_t from) {
        constexpr int L = Vec<T>::L;
        const T* data[KV];
        for (int v = 0; v < KV; ++v) data[v] = packed + (from + v) * L * dim;
        typename Vec<T>::type score[QB][KV];
        multiply(query.data(), data, D > 0 ? D : dim, score);
        uint32_t any = 0, mask[QB] = {};  // bit v * L + lane: the score is at least the query's floor
#pragma GCC unroll 8
        for (int i = 0; i < QB; ++i)
#pragma GCC unroll 2
            for (int v = 0; v < KV; ++v) any |= lanes_at_least(score[i][v], floor[i]);
        if (__builtin_expect(!any, 1)) return;
        alignas(64) T lanes[QB][KV * L];
#pragma GCC unroll 8
        for (int i = 0; i < QB; ++i)
#pragma GCC unroll 2
            for (int v = 0; v < KV; ++v) {
                Vec<T>::store(score[i][v], lanes[i] + v * L);
                mask[i] |= lanes_at_least(score[i][v], floor[i]) << v * L;
            }
        for (int i = 0; i < QB; ++i)
            for (uint32_t rest = mask[i]; rest; rest &= rest - 1) {
                const int64_t place = from * L + __builtin_ctz(rest);
                if (place < num) insert(i, lanes[i][__builtin_ctz(rest)], int32_t(place));
            }
    }

    typedef void (Block::*Visit)(const T*, int64_t, int64_t);
    template <int D = FIXED_DIM>
    static Visit visit_for(int dim) {
        if constexpr (D == 0) return &Block::visit_of<0>;
        else return dim == D ? &Block::visit_of<D> : visit_for<D - 1>(dim);
    }

    void store(const int64_t* row, int64_t key_offset, int64_t width, int64_t* out) const {
        for (int i = 0; i < count; ++i)
            for (int64_t p = 0; p < keep; ++p) out[row[i] * width + p] = key_offset + index[size_t(i) * keep + p];
    }

    int dim, keep, count = 0;
    std::vector<T> query;  // [dim][QB]
    T norm[QB];
    T floor[QB];           // a number that the k-th best score of each is known to reach
    std::vector<T> value;  // [QB][keep]
    std::vector<int32_t> index;
    Visit visit_tile;
};

// Keys in vectors, `tile[j][lane]`: rows id[0], id[1], … of `k`, or its first ones.
template <class T>
void pack(const T* k, const int32_t* id, int64_t count, int dim, T* tile) {
    for (int64_t lane = 0; lane < count; ++lane)
        for (int j = 0; j < dim; ++j) tile[j * Vec<T>::L + lane] = k[int64_t(id ? id[lane] : lane) * dim + j];
}

}  // namespace
