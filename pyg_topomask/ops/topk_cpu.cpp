// The k largest inner products of every query with the keys of its own graph, exactly, on a CPU.
//
// Flat search: tiles of QB queries by one vector of keys stay in registers; a comparison with each query's k-th best
// so far lets nearly all scores go, and the rest are inserted into a sorted list.
// Pruned search: keys in k-d order, in leaves of one vector and groups of leaves; a leaf is skipped where its ball or
// its box bounds the inner product below the k-th best of all queries of a block. Bounds carry a margin for rounding,
// and scores are summed in the same order as in the flat search, so both return the same pairs.
//
// Plain C++17 and its standard library; the vector width is that of the flags it is compiled with.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <thread>
#include <vector>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

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

template <class F>
void parallel(int64_t threads, int64_t tasks, F run) {
    std::atomic<int64_t> next(0);
    auto work = [&] {
        for (int64_t task; (task = next.fetch_add(1)) < tasks;) run(task);
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < std::min(threads, tasks); ++i) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
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

// One graph under one head: rows of q, k and out begin at the graph's first.
template <class T>
struct Problem {
    const T *q, *k;
    int64_t num_q, num_k, key_offset;
    int64_t* out;
    int keep;  // min(topk, num_k)
    T* packed;
};

template <class T>
void search_flat(const Problem<T>& p, int dim, int64_t width, int64_t a, int64_t b) {
    constexpr int L = Vec<T>::L;
    const int64_t tiles = div_up(p.num_k, L), chunk = std::max<int64_t>(1, CHUNK_BYTES / (BYTES * dim));
    std::vector<Block<T>> blocks;
    std::vector<int64_t> rows(b - a);
    std::iota(rows.begin(), rows.end(), a);
    for (int64_t at = a; at < b; at += QB) {
        blocks.emplace_back(dim, p.keep);
        blocks.back().start(p.q, &rows[at - a], int(std::min<int64_t>(QB, b - at)));
    }
    for (int64_t from = 0; from < tiles; from += chunk)
        for (auto& block : blocks)
            for (int64_t t = from; t < std::min(from + chunk, tiles); ++t)
                block.visit(p.packed + t * L * dim, int(std::min<int64_t>(L, p.num_k - t * L)), nullptr, int32_t(t * L));
    for (size_t i = 0; i < blocks.size(); ++i)
        blocks[i].store(&rows[i * QB], int(std::min<int64_t>(QB, b - a - i * QB)), p.key_offset, width, p.out);
}

// Order points by halving the widest side of their box; cuts fall on multiples of `unit`, first of `unit * units`.
template <class T>
void kd_order(const T* x, int dim, int32_t* first, int64_t n, int unit, int units, int64_t threads) {
    if (n <= unit) return;
    std::vector<T> low(x + int64_t(*first) * dim, x + int64_t(*first + 1) * dim), high(low);
    for (int64_t i = 1; i < n; ++i) {
        const T* point = x + int64_t(first[i]) * dim;
        for (int j = 0; j < dim; ++j) {
            low[j] = std::min(low[j], point[j]);
            high[j] = std::max(high[j], point[j]);
        }
    }
    int axis = 0;
    for (int j = 1; j < dim; ++j)
        if (high[j] - low[j] > high[axis] - low[axis]) axis = j;
    const int64_t step = n > int64_t(unit) * units ? int64_t(unit) * units : unit;
    const int64_t cut = std::max<int64_t>(1, n / 2 / step) * step;
    std::nth_element(first, first + cut, first + n,
                     [=](int32_t a, int32_t b) { return x[int64_t(a) * dim + axis] < x[int64_t(b) * dim + axis]; });
    if (threads > 1 && n > 10000) {
        std::thread other([=] { kd_order(x, dim, first, cut, unit, units, threads / 2); });
        kd_order(x, dim, first + cut, n - cut, unit, units, threads - threads / 2);
        other.join();
    } else {
        kd_order(x, dim, first, cut, unit, units, 1);
        kd_order(x, dim, first + cut, n - cut, unit, units, 1);
    }
}

// Upper bounds of q · key over the keys of each node of one level: a box, and a ball around its centre.
template <class T>
struct Bounds {
    static constexpr int L = Vec<T>::L;
    Bounds(int64_t nodes, int dim)
        : nodes(nodes), dim(dim), box(div_up(nodes, L) * 2 * dim * L), centre(div_up(nodes, L) * dim * L), radius(div_up(nodes, L) * L) {}

    void set(int64_t node, const T* k, const int32_t* id, int64_t count) {
        T* sides = box.data + (node / L) * 2 * dim * L + node % L;
        T* middle = centre.data + (node / L) * dim * L + node % L;
        for (int j = 0; j < dim; ++j) {
            T low = k[int64_t(id[0]) * dim + j], high = low, sum = 0;
            for (int64_t i = 0; i < count; ++i) {
                const T value = k[int64_t(id[i]) * dim + j];
                low = std::min(low, value), high = std::max(high, value), sum += value;
            }
            sides[j * L] = high, sides[(dim + j) * L] = low, middle[j * L] = sum / T(count);
        }
        T largest = 0;
        for (int64_t i = 0; i < count; ++i) {
            T square = 0;
            for (int j = 0; j < dim; ++j) {
                const T gap = k[int64_t(id[i]) * dim + j] - middle[j * L];
                square += gap * gap;
            }
            largest = std::max(largest, square);
        }
        radius.data[node] = std::sqrt(largest);
    }

    // Bounds of nodes group * L on, one a lane, for query i of a block.
    typename Vec<T>::type at(int64_t group, const T* query, T norm) const {
        using V = typename Vec<T>::type;
        const T* sides = box.data + group * 2 * dim * L;
        const T* middle = centre.data + group * dim * L;
        V by_box = {}, by_ball = Vec<T>::load(radius.data + group * L) * norm;
        for (int j = 0; j < dim; ++j) {
            const T q = query[j * QB];
            by_box += Vec<T>::load(sides + (q >= 0 ? j : dim + j) * L) * q;
            by_ball += Vec<T>::load(middle + j * L) * q;
        }
        return by_box < by_ball ? by_box : by_ball;
    }

    int64_t nodes;
    int dim;
    Aligned<T> box, centre, radius;
};

template <class T>
struct Tree {
    static constexpr int L = Vec<T>::L;

    Tree(const T* k, int64_t n, int dim, int64_t threads)
        : n(n), dim(dim), leaves(div_up(n, L)), id(n), keys(leaves * L * dim), leaf(leaves, dim), group(div_up(leaves, L), dim) {
        std::iota(id.begin(), id.end(), 0);
        kd_order(k, dim, id.data(), n, L, L, threads);
        parallel(threads, group.nodes, [&](int64_t g) {
            const int64_t end = std::min((g + 1) * L * L, n);
            group.set(g, k, &id[g * L * L], end - g * L * L);
            for (int64_t a = g * L * L; a < end; a += L) {
                const int64_t count = std::min<int64_t>(L, n - a);
                std::sort(&id[a], &id[a] + count);
                leaf.set(a / L, k, &id[a], count);
                pack(k, &id[a], count, dim, keys.data + a * dim);
            }
        });
        T largest = 0;
        for (int64_t i = 0; i < n; ++i)
            largest = std::max(largest, std::inner_product(k + i * dim, k + (i + 1) * dim, k + i * dim, T(0)));
        // A score and a bound are each off by at most dim rounding errors of |q| |k|.
        margin = T(4 * dim + 16) * std::numeric_limits<T>::epsilon() * std::sqrt(largest);
    }

    // Fill the block's lists; returns the number of leaves scored.
    int64_t search(Block<T>& block, std::vector<T>& bound, std::vector<std::pair<T, int32_t>>& order) const {
        T norm[QB];
        for (int i = 0; i < QB; ++i) {
            T square = 0;
            for (int j = 0; j < dim; ++j) square += block.query[j * QB + i] * block.query[j * QB + i];
            norm[i] = std::sqrt(square);
        }
        const int64_t padded = div_up(group.nodes, L) * L;
        bound.resize(QB * padded);
        T highest = -std::numeric_limits<T>::infinity();
        int64_t best = 0;
        for (int64_t g = 0; g < padded; g += L)
            for (int i = 0; i < QB; ++i) {
                const auto value = group.at(g / L, &block.query[i], norm[i]) + margin * norm[i];
                std::memcpy(&bound[i * padded + g], &value, BYTES);
            }
        for (int64_t g = 0; g < group.nodes; ++g) {  // begin with the most promising group, so that floors rise early
            T total = 0;
            for (int i = 0; i < QB; ++i) total += norm[i] > 0 ? bound[i * padded + g] / norm[i] : T(0);
            if (total > highest) highest = total, best = g;
        }
        int64_t visited = search_group(block, norm, best);
        order.clear();
        for (int64_t g = 0; g < padded; g += L) {
            uint32_t wanted = 0;
            for (int i = 0; i < QB; ++i) wanted |= lanes_at_least(Vec<T>::load(&bound[i * padded + g]), block.floor[i]);
            for (; wanted; wanted &= wanted - 1) {
                const int64_t node = g + __builtin_ctz(wanted);
                if (node != best && node < group.nodes) order.emplace_back(slack_of(block, &bound[node], padded), int32_t(node));
            }
        }
        std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
        for (const auto& [slack, g] : order)
            if (slack_of(block, &bound[g], padded) >= 0) visited += search_group(block, norm, g);
        return visited;
    }

    int64_t search_group(Block<T>& block, const T* norm, int64_t g) const {
        T bound[QB * L];
        uint32_t wanted = 0;
        for (int i = 0; i < QB; ++i) {
            const auto value = leaf.at(g, &block.query[i], norm[i]) + margin * norm[i];
            wanted |= lanes_at_least(value, block.floor[i]);
            std::memcpy(bound + i * L, &value, BYTES);
        }
        int64_t visited = 0;
        for (; wanted; wanted &= wanted - 1) {
            const int lane = __builtin_ctz(wanted);
            const int64_t t = g * L + lane;
            if (t >= leaves || (visited && slack_of(block, bound + lane, L) < 0)) continue;
            block.visit(keys.data + t * L * dim, int(std::min<int64_t>(L, n - t * L)), &id[t * L], 0);
            ++visited;
        }
        return visited;
    }

    // By how much the bound of one node exceeds the floor of the query that it suits best; below 0: none needs it.
    static T slack_of(const Block<T>& block, const T* bound, int64_t stride) {
        T slack = -std::numeric_limits<T>::infinity();
        for (int i = 0; i < QB; ++i) slack = std::max(slack, bound[i * stride] - block.floor[i]);
        return slack;
    }

    int64_t n;
    int dim;
    int64_t leaves;
    std::vector<int32_t> id;
    Aligned<T> keys;
    Bounds<T> leaf, group;
    T margin;
};

// Sets `share` to that of the leaves visited; false and no result where a sample visits more than `max_visit`.
template <class T>
bool search_pruned(const Problem<T>& p, int dim, int64_t width, double max_visit, int64_t threads, double& share) {
    const Tree<T> tree(p.k, p.num_k, dim, threads);
    std::vector<T> direction(p.q, p.q + p.num_q * dim);  // the best keys of a query do not depend on its length
    for (int64_t i = 0; i < p.num_q; ++i) {
        T* row = &direction[i * dim];
        const T norm = std::sqrt(std::inner_product(row, row + dim, row, T(0)));
        for (int j = 0; j < dim && norm > 0; ++j) row[j] /= norm;
    }
    std::vector<int32_t> order(p.num_q);
    std::iota(order.begin(), order.end(), 0);
    kd_order(direction.data(), dim, order.data(), p.num_q, QB, 1, threads);
    const int64_t blocks = div_up(p.num_q, QB), sample = std::min<int64_t>(blocks, 32), grain = TASK_QUERIES / QB;
    std::atomic<int64_t> visited(0);
    auto run = [&](int64_t first, int64_t last, int64_t step) {
        Block<T> block(dim, p.keep);
        std::vector<T> bound;
        std::vector<std::pair<T, int32_t>> groups;
        for (int64_t b = first; b < last; b += step) {
            const int count = int(std::min<int64_t>(QB, p.num_q - b * QB));
            int64_t row[QB];
            std::copy(&order[b * QB], &order[b * QB] + count, row);
            block.start(p.q, row, count);
            visited += tree.search(block, bound, groups);
            block.store(row, count, p.key_offset, width, p.out);
        }
    };
    if (max_visit < 1) {
        run(0, blocks, blocks / sample);
        share = double(visited) / double(div_up(blocks, blocks / sample) * tree.leaves);
        if (share > max_visit) return false;
    }
    visited = 0;
    parallel(threads, div_up(blocks, grain), [&](int64_t t) { run(t * grain, std::min((t + 1) * grain, blocks), 1); });
    share = double(visited) / double(blocks * tree.leaves);
    return true;
}

template <class T>
void search_all_flat(std::vector<Problem<T>>& problems, int dim, int64_t width, int64_t threads) {
    constexpr int L = Vec<T>::L;
    size_t size = 0;
    std::vector<int64_t> first(1, 0);  // task at which each problem begins
    for (const auto& p : problems) {
        size += size_t(div_up(p.num_k, L)) * L * dim;
        first.push_back(first.back() + div_up(p.num_q, TASK_QUERIES));
    }
    Aligned<T> packed(size);
    T* at = packed.data;
    for (auto& p : problems) {
        p.packed = at;
        for (int64_t a = 0; a < p.num_k; a += L, at += L * dim)
            pack(p.k + a * dim, nullptr, std::min<int64_t>(L, p.num_k - a), dim, at);
    }
    parallel(threads, first.back(), [&](int64_t task) {
        const size_t i = size_t(std::upper_bound(first.begin(), first.end(), task) - first.begin()) - 1;
        const int64_t a = (task - first[i]) * TASK_QUERIES;
        search_flat(problems[i], dim, width, a, std::min(a + TASK_QUERIES, problems[i].num_q));
    });
}

// q [heads, num_q, dim], k [heads, num_k, dim], out [heads, num_q, topk] filled with -1; graph g has rows
// ptr_q[g] .. ptr_q[g + 1]. Graphs of at least `prune_from` keys are pruned unless a sample visits more than
// `max_visit` of the leaves. Returns the largest share visited, 1 without pruning, -1 if memory is short.
template <class T>
double search(const T* q, const T* k, int64_t heads, int64_t num_q, int64_t num_k, int64_t dim, int64_t graphs,
              const int64_t* ptr_q, const int64_t* ptr_k, int64_t topk, int64_t prune_from, double max_visit,
              int64_t threads, int64_t* out) try {
    std::vector<Problem<T>> flat;
    double share = -1;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t g = 0; g < graphs; ++g) {
            const int64_t n = ptr_k[g + 1] - ptr_k[g], m = ptr_q[g + 1] - ptr_q[g];
            if (n == 0 || m == 0) continue;
            Problem<T> p{q + (h * num_q + ptr_q[g]) * dim, k + (h * num_k + ptr_k[g]) * dim, m, n, ptr_k[g],
                         out + (h * num_q + ptr_q[g]) * topk, int(std::min(topk, n)), nullptr};
            if (n >= prune_from) {
                double visited = 0;
                const bool done = search_pruned(p, int(dim), topk, max_visit, threads, visited);
                share = std::max(share, visited);
                if (done) continue;
            }
            flat.push_back(p);
        }
    if (!flat.empty()) search_all_flat(flat, int(dim), topk, threads);
    return share < 0 ? 1.0 : share;
} catch (const std::bad_alloc&) {
    return -1;
}

}  // namespace

extern "C" {

double topk_float(const float* q, const float* k, int64_t heads, int64_t num_q, int64_t num_k, int64_t dim,
                  int64_t graphs, const int64_t* ptr_q, const int64_t* ptr_k, int64_t topk, int64_t prune_from,
                  double max_visit, int64_t threads, int64_t* out) {
    return search(q, k, heads, num_q, num_k, dim, graphs, ptr_q, ptr_k, topk, prune_from, max_visit, threads, out);
}

double topk_double(const double* q, const double* k, int64_t heads, int64_t num_q, int64_t num_k, int64_t dim,
                   int64_t graphs, const int64_t* ptr_q, const int64_t* ptr_k, int64_t topk, int64_t prune_from,
                   double max_visit, int64_t threads, int64_t* out) {
    return search(q, k, heads, num_q, num_k, dim, graphs, ptr_q, ptr_k, topk, prune_from, max_visit, threads, out);
}

}
