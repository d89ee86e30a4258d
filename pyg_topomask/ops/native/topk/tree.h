// Keys in an order that puts close ones side by side, in balls that bound their inner products with a query, and their
// search. A query first gets a floor, a number that its k-th best score reaches, from a few promising leaves. Then it
// visits all leaves whose bounds reach the floor. Blocks of queries share the computation of bounds, but each query has
// leaves of its own: the union over a block would be several times as many.

#pragma once

#include "tile.h"

namespace {

constexpr int SAMPLE = 32;      // points from which the direction of a cut is found,
constexpr int POWER_STEPS = 2;  // by so many steps of the power method
constexpr int BALL_STEPS = 30;  // after which a ball is some percent larger than the smallest one

// Order keys by halving them again and again along the direction in which they spread most. Cuts fall on multiples of
// L, first of L * L.
template <class T>
struct KeyOrder {
    struct Place {
        T along;
        int32_t id;
    };

    KeyOrder(const T* k, int64_t n, int dim, int64_t threads) : k(k), dim(dim), place(n) {
        for (int64_t i = 0; i < n; ++i) place[i].id = int32_t(i);
        halve(0, n, threads);
    }

    // In double, since squares of floats may overflow. The direction decides about speed only.
    void main_direction(int64_t first, int64_t n, T* direction) const {
        const int64_t count = std::min<int64_t>(n, SAMPLE);
        std::vector<double> point(count * dim), way(dim), next(dim);
        for (int64_t i = 0; i < count; ++i)
            for (int j = 0; j < dim; ++j) {
                point[i * dim + j] = k[int64_t(place[first + i * n / count].id) * dim + j];
                next[j] += point[i * dim + j] / double(count);
            }
        double farthest = -1;
        for (int64_t i = 0; i < count; ++i) {
            double* const gap = &point[i * dim];
            for (int j = 0; j < dim; ++j) gap[j] -= next[j];
            const double square = std::inner_product(gap, gap + dim, gap, 0.0);
            if (square > farthest) farthest = square, std::copy(gap, gap + dim, way.begin());
        }
        for (int step = 0; step < POWER_STEPS; ++step) {
            std::fill(next.begin(), next.end(), 0.0);
            for (int64_t i = 0; i < count; ++i) {
                const double along = std::inner_product(way.begin(), way.end(), &point[i * dim], 0.0);
                for (int j = 0; j < dim; ++j) next[j] += along * point[i * dim + j];
            }
            const double norm = std::sqrt(std::inner_product(next.begin(), next.end(), next.begin(), 0.0));
            if (!(norm > 0)) break;
            for (int j = 0; j < dim; ++j) way[j] = next[j] / norm;
        }
        std::copy(way.begin(), way.end(), direction);
    }

    void halve(int64_t first, int64_t n, int64_t threads) {
        constexpr int L = Vec<T>::L;
        if (n <= L) return;
        std::vector<T> direction(dim);
        main_direction(first, n, direction.data());
        Place* const begin = &place[first];
        for (int64_t i = 0; i < n; ++i)
            begin[i].along = std::inner_product(direction.begin(), direction.end(), k + begin[i].id * int64_t(dim), T(0));
        const int64_t step = n > L * L ? L * L : L, cut = std::max<int64_t>(1, n / 2 / step) * step;
        std::nth_element(begin, begin + cut, begin + n,
                         [](const Place& a, const Place& b) { return a.along < b.along; });
        std::thread other;
        if (threads > 1 && n > 10000) {
            try {
                other = std::thread([=] { halve(first, cut, threads / 2); });
            } catch (const std::system_error&) {  // no thread is available
            }
        }
        if (!other.joinable()) halve(first, cut, 1);
        halve(first + cut, n - cut, other.joinable() ? threads - threads / 2 : 1);
        if (other.joinable()) other.join();
    }

    const T* k;
    int dim;
    std::vector<Place> place;
};

// A ball around the keys of each node of one level. Balls lie in vectors, as keys do.
template <class T>
struct Balls {
    static constexpr int L = Vec<T>::L;

    // Padded to whole tiles; balls beyond `nodes` hold nothing, and their bounds are minus infinity or NaN.
    Balls(int64_t nodes, int dim)
        : nodes(nodes), padded(div_up(nodes, L * KV) * L * KV), dim(dim), centre(padded * dim),
          radius(padded, -std::numeric_limits<T>::infinity()) {}

    // Enclose `count` packed keys: step by step, the centre goes 1 / 2, 1 / 3, … of the way to the farthest key
    // (Badoiu and Clarkson, Smaller core-sets for balls, 2003).
    void set(int64_t node, const T* packed, int64_t count) {
        T* const c = centre.data() + (node / L) * dim * L + node % L;
        for (int j = 0; j < dim; ++j) c[j * L] = packed[j * L];
        T square = 0;
        for (int step = 0;; ++step) {
            const int64_t key = farthest(c, packed, count, square);
            if (step == BALL_STEPS || square == 0) break;
            const T* const end = packed + (key / L) * dim * L + key % L;
            for (int j = 0; j < dim; ++j) c[j * L] += (end[j * L] - c[j * L]) / T(step + 2);
        }
        radius[node] = std::sqrt(square + dim * std::numeric_limits<T>::min());  // squares may have vanished
    }

    // The key farthest from a centre, and the square of its distance.
    int64_t farthest(const T* c, const T* packed, int64_t count, T& square) const {
        int64_t key = 0;
        square = 0;
        for (int64_t from = 0; from < count; from += L) {
            typename Vec<T>::type sum{};
            for (int j = 0; j < dim; ++j) {
                const auto gap = Vec<T>::load(packed + from * dim + j * L) - c[j * L];
                sum += gap * gap;
            }
            for (int64_t i = 0; i < std::min<int64_t>(L, count - from); ++i)
                if (sum[i] > square) square = sum[i], key = from + i;
        }
        return key;
    }

    // The largest norm of a centre.
    T reach() const {
        T largest = 0;
        for (int64_t node = 0; node < nodes; ++node) {
            const T* const c = centre.data() + (node / L) * dim * L + node % L;
            T square = 0;
            for (int j = 0; j < dim; ++j) square += c[j * L] * c[j * L];
            largest = std::max(largest, square);
        }
        return std::sqrt(largest);
    }

    int64_t nodes, padded;
    int dim;
    Array<T> centre, radius;
};

// Keys in leaves of one vector, and groups of L leaves.
template <class T>
struct Tree {
    static constexpr int L = Vec<T>::L;

    Tree(const T* k, int64_t n, int dim, int64_t threads)
        : n(n), dim(dim), id(n), packed((div_up(n, L) + 1) * L * dim), leaf(div_up(n, L), dim),
          group(div_up(n, L * L), dim) {
        const KeyOrder<T> order(k, n, dim, threads);
        std::transform(order.place.begin(), order.place.end(), id.begin(), [](const auto& place) { return place.id; });
        parallel(threads, group.nodes, [&](int64_t g, int64_t) {
            const int64_t first = g * L * L, end = std::min(first + L * L, n);
            for (int64_t a = first; a < end; a += L) {
                const int64_t count = std::min<int64_t>(L, n - a);
                std::sort(&id[a], &id[a] + count);
                pack(k, &id[a], count, dim, packed.data() + a * dim);
                leaf.set(a / L, packed.data() + a * dim, count);
            }
            group.set(g, packed.data() + first * dim, end - first);
        });
        T largest = 0;
        for (int64_t i = 0; i < n; ++i)
            largest = std::max(largest, std::inner_product(k + i * dim, k + (i + 1) * dim, k + i * dim, T(0)));
        // The bound of a ball is q · centre + |q| radius. Let K be the largest norm of a key, C of a centre, and u half
        // of epsilon. A score is off by at most dim u |q| K, q · centre by dim u |q| C. The radius is at most K + C,
        // |q| radius is off by (dim + 5) u |q| (K + C), and the last sums by 4 u |q| (K + C). Together this is less than
        // (dim + 5) epsilon |q| (K + C), of which the margin of the radius is at least the double.
        const T reach = std::sqrt(largest) + std::max(leaf.reach(), group.reach());
        const T margin = T(2 * dim + 16) * std::numeric_limits<T>::epsilon() * reach;
        for (Balls<T>* balls : {&leaf, &group})
            for (T& radius : balls->radius) radius += margin;
    }

    int64_t n;
    int dim;
    std::vector<int32_t> id;  // the key at each place
    Array<T> packed;          // behind the keys, a leaf of zeros
    Balls<T> leaf, group;
};

// The best entry so far of each lane.
template <class T>
struct BestOfLanes {
    using V = typename Vec<T>::type;
    using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    using I = typename Vec<Int>::type;

    void offer(const V& v, int64_t id) {
        const I better = v > value;  // false where v is NaN
        value = better ? v : value;
        at = better ? I{} + Int(id) : at;
    }

    V value = V{} - std::numeric_limits<T>::infinity();
    I at = I{} - 1;
};

template <class T>
struct TreeSearch {
    static constexpr int L = Vec<T>::L;
    static constexpr int LEAVES = 4;     // that one query scores at once
    static constexpr int SPAN = 64 / L;  // groups whose leaves fill a mask of 64 bits
    using V = typename Vec<T>::type;

    // Inner products of one query, `q[j][0]`, with one vector.
    V multiply(const T* q, const T* vector) const {
        V sum{};
        for (int j = 0; j < tree.dim; ++j) sum += Vec<T>::load(vector + j * L) * q[j * QB];
        return sum;
    }

    V bound(const Balls<T>& balls, int64_t vector, const T* q, T norm) const {
        return multiply(q, &balls.centre[vector * L * tree.dim]) + Vec<T>::load(&balls.radius[vector * L]) * norm;
    }

    // The same for all queries of a block and KV vectors.
    void bound_tile(const Balls<T>& balls, int64_t vector, const Block<T>& block, V (&out)[QB][KV]) const {
        const T* centre[KV];
        for (int v = 0; v < KV; ++v) centre[v] = &balls.centre[(vector + v) * L * tree.dim];
        ::multiply(block.query.data(), centre, tree.dim, out);
#pragma GCC unroll 2
        for (int v = 0; v < KV; ++v) {
            const V radius = Vec<T>::load(&balls.radius[(vector + v) * L]);
#pragma GCC unroll 8
            for (int i = 0; i < QB; ++i) out[i][v] += radius * block.norm[i];
        }
    }

    // Bounds of all groups, to `bounds[i][group]`.
    void bound_groups(const Block<T>& block) {
        bounds.resize(QB * tree.group.padded);
        for (int64_t g = 0; g < tree.group.padded; g += L * KV) {
            V value[QB][KV];
            bound_tile(tree.group, g / L, block, value);
            for (int i = 0; i < QB; ++i) std::memcpy(&bounds[i * tree.group.padded + g], value[i], sizeof(value[i]));
        }
    }

    // The most promising group of each lane, counted from the lane.
    BestOfLanes<T> best_groups(int i) const {
        BestOfLanes<T> best;
        const T* const row = &bounds[i * tree.group.padded];
        for (int64_t g = 0; g < tree.group.padded; g += L) best.offer(Vec<T>::load(row + g), g);
        return best;
    }

    // The most promising leaf of the most promising group of each query.
    void homes(const Block<T>& block, int32_t* leaf) {
        bound_groups(block);
        for (int i = 0; i < block.count; ++i) {
            BestOfLanes<T> best = best_groups(i);
            const int64_t group = top(best);
            best = {};
            best.offer(bound(tree.leaf, group, &block.query[i], block.norm[i]), 0);
            leaf[i] = int32_t(group * L + top(best));
        }
    }

    // The best entry of all lanes; 0 if there is none, because the query holds NaN.
    static int64_t top(const BestOfLanes<T>& best) {
        int lane = 0;
        for (int i = 1; i < L; ++i)
            if (best.value[i] > best.value[lane]) lane = i;
        return std::max<int64_t>(best.at[lane], 0) + lane;
    }

    // A number that the k-th best score of query i reaches. Keys of promising leaves fall into classes, of which each
    // keeps its best score: if k classes reach a number, k keys do. The number is the best of some classes.
    T first_floor(const Block<T>& block, int i) {
        const BestOfLanes<T> group = best_groups(i);
        const int64_t rows = class_rows<T>(block.keep), parts = std::min<int64_t>(rows, L);
        classes.assign(rows * L, -std::numeric_limits<T>::infinity());
        int64_t row = 0;
        for (int64_t part = 0; part < parts; ++part) {
            BestOfLanes<T> leaf;
            for (int64_t lane = part; lane < L; lane += parts)
                if (group.at[lane] >= 0) {
                    const int64_t g = group.at[lane] + lane;
                    leaf.offer(bound(tree.leaf, g, &block.query[i], block.norm[i]), g * L);
                }
            for (int64_t lane = 0; lane < L; ++lane) {
                const int64_t at = leaf.at[lane] + lane;
                if (leaf.at[lane] < 0 || (at + 1) * L > tree.n) continue;  // the last leaf may not be full
                improve(&classes[row], multiply(&block.query[i], &tree.packed[at * L * tree.dim]));
                row = (row + L) % (rows * L);
            }
        }
        // Every score is larger, but not the bound -inf of nodes that only fill up a vector.
        return std::max(std::numeric_limits<T>::lowest(), reached_by(classes.data(), rows, block.keep));
    }

    // Offer query i the leaves from `first` on whose bits are set.
    void visit(Block<T>& block, int i, int64_t first, uint64_t wanted) const {
        const T* const q = &block.query[i];
        while (wanted) {
            int64_t leaf[LEAVES];
            const T* keys[LEAVES];
            V score[LEAVES];
#pragma GCC unroll 4
            for (int v = 0; v < LEAVES; ++v) {
                leaf[v] = wanted ? first + __builtin_ctzll(wanted) : tree.leaf.nodes;
                wanted &= wanted - 1;
                keys[v] = tree.packed.data() + leaf[v] * L * tree.dim;
                score[v] = V{};
            }
            for (int j = 0; j < tree.dim; ++j)
#pragma GCC unroll 4
                for (int v = 0; v < LEAVES; ++v) score[v] += Vec<T>::load(keys[v] + j * L) * q[j * QB];
            uint64_t found = 0;
#pragma GCC unroll 4
            for (int v = 0; v < LEAVES; ++v) found |= uint64_t(lanes_at_least(score[v], block.floor[i])) << v * L;
            if (__builtin_expect(!found, 1)) continue;
            T scores[LEAVES * L];
            std::memcpy(scores, score, sizeof(scores));
            for (; found; found &= found - 1) {
                const int at = __builtin_ctzll(found);
                const int64_t place = leaf[at / L] * L + at % L;
                if (place < tree.n) block.insert(i, scores[at], tree.id[place]);
            }
        }
    }

    // Fill the lists of similar queries; returns the number of leaves that they visited, summed over the queries.
    int64_t run(std::vector<Block<T>>& blocks) {
        const int64_t groups = tree.group.padded;
        std::vector<char> near(blocks.size() * groups);  // whether a query of a block wants a group
        for (size_t b = 0; b < blocks.size(); ++b) {
            Block<T>& block = blocks[b];
            bound_groups(block);
            for (int i = 0; i < block.count; ++i) {
                block.floor[i] = first_floor(block, i);
                for (int64_t g = 0; g < groups; ++g) near[b * groups + g] |= bounds[i * groups + g] >= block.floor[i];
            }
        }
        int64_t visited = 0;
        for (int64_t g = 0; g < groups; g += SPAN)
            for (size_t b = 0; b < blocks.size(); ++b) visited += visit_span(blocks[b], g, &near[b * groups]);
        return visited;
    }

    // Visit the leaves of SPAN groups.
    int64_t visit_span(Block<T>& block, int64_t span, const char* near) const {
        uint64_t wanted[QB] = {};
        for (int64_t g = span; g < std::min(span + SPAN, tree.group.padded); g += KV) {
            if (std::none_of(near + g, near + g + KV, [](char wants) { return wants; })) continue;
            V value[QB][KV];
            bound_tile(tree.leaf, g, block, value);
#pragma GCC unroll 8
            for (int i = 0; i < QB; ++i)
#pragma GCC unroll 2
                for (int v = 0; v < KV; ++v)
                    wanted[i] |= uint64_t(lanes_at_least(value[i][v], block.floor[i])) << (g - span + v) * L;
        }
        int64_t visited = 0;
        for (int i = 0; i < block.count; ++i)
            if (wanted[i]) {
                visited += __builtin_popcountll(wanted[i]);
                visit(block, i, span * L, wanted[i]);
            }
        return visited;
    }

    const Tree<T>& tree;
    std::vector<T> bounds = {}, classes = {};
};

}  // namespace
