// Keys in k-d order with bounds of their inner products with a query.

#pragma once

#include "tile.h"

namespace {

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
        std::thread other;
        try {
            other = std::thread([=] { kd_order(x, dim, first, cut, unit, units, threads / 2); });
        } catch (const std::system_error&) {  // no thread to be had
            kd_order(x, dim, first, cut, unit, units, 1);
        }
        kd_order(x, dim, first + cut, n - cut, unit, units, threads - threads / 2);
        if (other.joinable()) other.join();
    } else {
        kd_order(x, dim, first, cut, unit, units, 1);
        kd_order(x, dim, first + cut, n - cut, unit, units, 1);
    }
}

// Upper bounds of q · key over the keys of each node of one level: a box and a ball around the box's centre.
template <class T>
struct Bounds {
    static constexpr int L = Vec<T>::L;
    Bounds(int64_t nodes, int dim)
        : nodes(nodes), dim(dim), centre(div_up(nodes, L) * dim * L), half(div_up(nodes, L) * dim * L), radius(div_up(nodes, L) * L) {}

    void set(int64_t node, const T* k, const int32_t* id, int64_t count) {
        T* middle = centre.data() + (node / L) * dim * L + node % L;
        T* side = half.data() + (node / L) * dim * L + node % L;
        for (int j = 0; j < dim; ++j) {
            T low = k[int64_t(id[0]) * dim + j], high = low;
            for (int64_t i = 1; i < count; ++i) {
                const T value = k[int64_t(id[i]) * dim + j];
                low = std::min(low, value), high = std::max(high, value);
            }
            middle[j * L] = low / 2 + high / 2;
            side[j * L] = std::max(high - middle[j * L], middle[j * L] - low);
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
        radius.data()[node] = std::sqrt(largest);
    }

    // The largest norm of a centre.
    T farthest() const {
        T largest = 0;
        for (int64_t node = 0; node < nodes; ++node) {
            T square = 0;
            for (int j = 0; j < dim; ++j) {
                const T value = centre.data()[((node / L) * dim + j) * L + node % L];
                square += value * value;
            }
            largest = std::max(largest, square);
        }
        return std::sqrt(largest);
    }

    // Bounds of nodes group * L on, one a lane, for each query of a block; row i goes to out + i * stride.
    void at(int64_t group, const T* query, const T* norm, T margin, T* out, int64_t stride) const {
        using V = typename Vec<T>::type;
        const T *middle = centre.data() + group * dim * L, *side = half.data() + group * dim * L;
        V at_centre[QB] = {}, by_box[QB] = {};
        for (int j = 0; j < dim; ++j, query += QB) {
            const V m = Vec<T>::load(middle + j * L), s = Vec<T>::load(side + j * L);
#pragma GCC unroll 8
            for (int i = 0; i < QB; ++i) at_centre[i] += m * query[i], by_box[i] += s * std::abs(query[i]);
        }
        const V reach = Vec<T>::load(radius.data() + group * L);
#pragma GCC unroll 8
        for (int i = 0; i < QB; ++i) {
            const V by_ball = reach * norm[i];
            const V value = at_centre[i] + (by_box[i] < by_ball ? by_box[i] : by_ball) + margin * norm[i];
            std::memcpy(out + i * stride, &value, BYTES);
        }
    }

    int64_t nodes;
    int dim;
    Array<T> centre, half, radius;
};

template <class T>
struct Tree {
    static constexpr int L = Vec<T>::L;

    Tree(const T* k, int64_t n, int dim, int64_t threads)
        : n(n), dim(dim), leaves(div_up(n, L)), id(n), packed((leaves + KV - 1) * L * dim), leaf(leaves, dim), group(div_up(leaves, L), dim) {
        std::iota(id.begin(), id.end(), 0);
        kd_order(k, dim, id.data(), n, L, L, threads);
        parallel(threads, group.nodes, [&](int64_t g, int64_t) {
            const int64_t end = std::min((g + 1) * L * L, n);
            group.set(g, k, &id[g * L * L], end - g * L * L);
            for (int64_t a = g * L * L; a < end; a += L) {
                const int64_t count = std::min<int64_t>(L, n - a);
                std::sort(&id[a], &id[a] + count);
                leaf.set(a / L, k, &id[a], count);
                pack(k, &id[a], count, dim, packed.data() + a * dim);
            }
        });
        T largest = 0;
        for (int64_t i = 0; i < n; ++i)
            largest = std::max(largest, std::inner_product(k + i * dim, k + (i + 1) * dim, k + i * dim, T(0)));
        // Let K be the largest norm of a key, C of a centre, and u half of epsilon. A score is off by at most dim u |q| K,
        // q · centre by dim u |q| C. The rest of the bound is at most |q| (K + C), since no key is farther from a
        // centre, and off by (dim + 5) u of that; the last sums are off by 4 u |q| (K + C). Together this is less than
        // (dim + 5) epsilon |q| (K + C), of which the margin is at least the double.
        const T reach = std::sqrt(largest) + std::max(leaf.farthest(), group.farthest());
        margin = T(2 * dim + 16) * std::numeric_limits<T>::epsilon() * reach;
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
            group.at(g / L, block.query.data(), norm, margin, &bound[g], padded);
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
        leaf.at(g, block.query.data(), norm, margin, bound, L);
        uint32_t wanted = 0;
        for (int i = 0; i < QB; ++i) wanted |= lanes_at_least(Vec<T>::load(bound + i * L), block.floor[i]);
        wanted &= (uint32_t(1) << std::min<int64_t>(L, leaves - g * L)) - 1;
        const Keys<T> keys{packed.data(), id.data(), n};
        int64_t visited = 0;
        while (wanted) {
            int64_t tile[KV];
            for (int64_t& t : tile) {
                visited += wanted != 0;
                t = wanted ? g * L + __builtin_ctz(wanted) : leaves;
                wanted &= wanted - 1;
            }
            if (block.visit(keys, tile)) {
                uint32_t still = 0;
                for (int i = 0; i < QB; ++i) still |= lanes_at_least(Vec<T>::load(bound + i * L), block.floor[i]);
                wanted &= still;
            }
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
    Array<T> packed;
    Bounds<T> leaf, group;
    T margin;
};

}  // namespace
