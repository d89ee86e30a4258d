// The search of a tree. A query first gets a floor, a number that its k-th best score reaches, from a few promising
// leaves. Then it visits all leaves whose bounds reach the floor. Blocks of queries share the computation of bounds,
// but each query has leaves of its own: the union over a block would be several times as many.

#pragma once

#include "tree.h"

namespace {

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
        multiply_tile<T, 0>(block.query.data(), centre, tree.dim, out);
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
