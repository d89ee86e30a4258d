// Walkers of some starts in one table, and their visits. Draws are hashes, as in hashing.py and walkers.py.

#pragma once

#include <array>

#include "../parallel.h"

namespace {

enum Scheme { IID = 0, ANTITHETIC = 1, REPELLING = 2 };

// The fields and their order are those of `_WalkCall` in compiled.py.
struct WalkCall {
    int64_t nodes, starts, tables, walks, length, block, threads, scheme, halts_below, has_own;
    const int64_t *start, *stream;  // [starts]: nodes, and the hash from which their draws are derived
    const int64_t *rowptr, *col, *bound;  // of the graph; `bound` ends the interval of each edge, null for uniform steps
    const void* factor;             // of the load on each edge
};

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;

inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

inline int64_t below(uint64_t draw, int64_t bound) { return int64_t(((draw & UINT32_MAX) * uint64_t(bound)) >> 32); }

inline int64_t bits_of(int64_t number) { return number == 0 ? 0 : 1 + bits_of(number / 2); }

// An edge as walkers read it: its end and its factor of the load lie together.
template <class T>
struct Edge {
    uint32_t node;
    T factor;
};

template <class T>
struct Walker {
    uint64_t state;
    uint32_t node;
    uint32_t number;  // among the walkers of all starts
    T load;
};

template <class T>
struct Visit {
    int64_t place;  // node * 2^bits + length
    T load;
    uint32_t number;  // of the walker
};

// Equal visits of one row, which is a start or a block.
struct Sum {
    int64_t place;
    double load;
    uint32_t row, count;
};

// `x` or 0, without a branch, also if `x` is infinite.
inline double x_if(bool condition, double x) {
    uint64_t all;
    std::memcpy(&all, &x, sizeof x);
    all &= -uint64_t(condition);
    std::memcpy(&x, &all, sizeof x);
    return x;
}

constexpr int64_t DIGIT = 11;  // bits by which visits are sorted in one pass

// Sorts by the numbers key(x), which have that many bits. Equal ones keep their order; `spare` is memory to work in.
template <class X, class F>
void sort_by(std::vector<X>& all, std::vector<X>& spare, int64_t bits, const F& key) {
    const int64_t passes = (bits + DIGIT - 1) / DIGIT, width = passes ? (bits + passes - 1) / passes : 0;
    spare.resize(all.size());
    for (int64_t shift = 0; shift < bits; shift += width) {
        std::array<size_t, (1 << DIGIT) + 1> first;
        std::fill_n(first.begin(), (1 << width) + 1, 0);
        const auto digit = [&](const X& x) { return (key(x) >> shift) & ((1 << width) - 1); };
        for (const X& x : all) ++first[digit(x) + 1];
        for (int64_t i = 0; i < 1 << width; ++i) first[i + 1] += first[i];
        for (const X& x : all) spare[first[digit(x)]++] = x;
        all.swap(spare);
    }
}

// Walks from some starts together, so that the reads of many walkers are on their way.
template <class T>
class Walkers {
   public:
    Walkers(const WalkCall& call, const std::vector<Edge<T>>& edges) : bits(bits_of(call.length)), c(call), edges(edges) {
        for (int64_t i = 0; i < c.nodes && !may_end; ++i) may_end = degree(i) == 0;
    }

    const int64_t bits;       // of a length
    std::vector<Sum> sums;    // of the visits by (start, place), the first `num_sums`; rows count from the first start
    size_t num_sums = 0;
    std::vector<double> own;  // of each start, products of each block's visits with themselves, in the order of `monomial`

    void walk(int64_t first, int64_t last, int64_t table) {
        begin(first, last, table);
        for (int64_t length = 1; length <= c.length && !walkers.empty(); ++length) step(length);
        int64_t low = c.start[first], high = low;  // nodes that were visited; visits are sorted by length already
        for (const auto& x : visits) low = std::min(low, x.place >> bits), high = std::max(high, x.place >> bits);
        sort_by(visits, spare, bits_of(high - low), [&](const Visit<T>& x) { return (x.place >> bits) - low; });
        if (c.has_own) add_products(last - first);
        const auto start = [&](const Visit<T>& x) { return start_of[x.number]; };
        sort_by(visits, spare, bits_of(last - first - 1), start);
        add_up(start);
    }

   private:
    static constexpr size_t TOGETHER = 256;  // walkers whose edges are read from memory at the same time

    const WalkCall& c;
    const std::vector<Edge<T>>& edges;
    bool may_end = false;                           // whether a node has no neighbour
    std::vector<Walker<T>> walkers;                 // that still go on
    std::vector<uint64_t> draws;                    // of each of them, for this step
    std::vector<int64_t> chosen;                    // edges of this step
    std::vector<uint64_t> states;                   // of all walkers
    std::vector<uint32_t> start_of, block_of, pair_of;  // of all walkers; of an antithetic pair, the first one
    std::vector<Visit<T>> visits, spare, by_place;

    int64_t degree(int64_t node) const { return c.rowptr[node + 1] - c.rowptr[node]; }

    // All walkers at their starts, which each block visits once with the load of its walkers.
    void begin(int64_t first, int64_t last, int64_t table) {
        const int64_t size = c.has_own ? c.block : c.walks;  // of walkers that visit the start together
        const bool pairs = c.scheme == ANTITHETIC;
        uint32_t block = 0;
        walkers.clear(), visits.clear(), states.clear(), start_of.clear(), block_of.clear(), pair_of.clear();
        for (int64_t s = first; s < last; ++s)
            for (int64_t i = 0; i < c.walks; ++i) {
                const uint32_t number = states.size(), node = c.start[s];
                states.push_back(mix(uint64_t(c.stream[s]) + uint64_t(table * c.walks + i + 1) * GOLDEN));
                start_of.push_back(s - first), block_of.push_back(block), pair_of.push_back(number - (pairs && i % 2));
                walkers.push_back({states.back(), node, number, T(1)});
                if (i % size == 0) visits.push_back({c.start[s] << bits, T(std::min(size, c.walks - i)), number});
                block += (i + 1) % c.block == 0 || i + 1 == c.walks;
            }
        draws.resize(walkers.size()), chosen.resize(walkers.size());
    }

    void step(int64_t length) {
        keep_going(uint64_t(length) * GOLDEN);
        if (c.scheme == REPELLING) choose_distinct(uint64_t(length) * GOLDEN);
        const size_t before = visits.size();
        visits.resize(before + walkers.size());
        for (size_t from = 0, to = 0; from < walkers.size(); from = to) {
            to = std::min(from + TOGETHER, walkers.size());
            for (size_t i = from; i < to; ++i) {
                if (c.scheme != REPELLING) chosen[i] = choose(walkers[i].node, draws[i]);
                fetch<0>(&edges[chosen[i]], 1);
            }
            for (size_t i = from; i < to; ++i) {
                Walker<T>& one = walkers[i];
                one.load *= edges[chosen[i]].factor;
                one.node = edges[chosen[i]].node;
                fetch<0>(&c.rowptr[one.node], 1);  // for the next step
                visits[before + i] = {(int64_t(one.node) << bits) + length, one.load, one.number};
            }
        }
    }

    // Draws a number for each walker, and keeps those that go on. The second of an antithetic pair halts by the draw of
    // the first, shifted by half of the range. The first loop fills vectors, and the second has no branch, because halts
    // cannot be predicted.
    void keep_going(uint64_t step) {
        const bool pairs = c.scheme == ANTITHETIC, ends = may_end;
        for (size_t i = 0; i < walkers.size(); ++i) draws[i] = mix(walkers[i].state + step);
        size_t kept = 0;
        for (size_t i = 0; i < walkers.size(); ++i) {
            const Walker<T> one = walkers[i];
            const uint64_t draw = draws[i];
            uint64_t halt = draw;
            if (pairs) {
                const uint32_t pair = pair_of[one.number];
                halt = mix(states[pair] + step) ^ (uint64_t(pair != one.number) << 63);
            }
            walkers[kept] = one, draws[kept] = draw;
            kept += (int64_t(halt >> 32) >= c.halts_below) & (!ends || degree(one.node) > 0);
        }
        walkers.resize(kept);
    }

    int64_t choose(int64_t node, uint64_t draw) const {
        const int64_t from = c.rowptr[node], to = c.rowptr[node + 1];
        if (!c.bound) return from + below(draw, to - from);
        return std::upper_bound(c.bound + from, c.bound + to, (node << 32) + int64_t(draw & UINT32_MAX)) - c.bound;
    }

    // Walkers of a block that leave a node together take distinct neighbours, until all have been taken: number r of them
    // draws one of the neighbours that the r walkers before it have left.
    void choose_distinct(uint64_t step) {
        const auto block = [&](const Walker<T>& one) { return block_of[one.number]; };
        std::stable_sort(walkers.begin(), walkers.end(), [&](const Walker<T>& a, const Walker<T>& b) {
            return block(a) != block(b) ? block(a) < block(b) : a.node < b.node;
        });
        std::vector<int64_t> drawn(walkers.size());
        for (size_t i = 0, first = 0; i < walkers.size(); ++i) {
            const Walker<T>& one = walkers[i];
            if (one.node != walkers[first].node || block(one) != block(walkers[first])) first = i;
            const int64_t rank = int64_t(i - first) % degree(one.node);
            int64_t left = drawn[i] = below(mix(one.state + step), degree(one.node) - rank);
            for (int64_t earlier = 1; earlier <= rank; ++earlier) left += left >= drawn[i - earlier];
            chosen[i] = c.rowptr[one.node] + left;
        }
    }

    // Adds up equal visits of a row, which follow each other. There is no branch, because whether two visits are equal
    // cannot be predicted.
    template <class F>
    void add_up(const F& row_of) {
        sums.resize(std::max(sums.size(), visits.size()));
        Sum sum = {-1, 0, 0, 0};
        num_sums = 0;
        for (const auto& visit : visits) {
            const uint32_t row = row_of(visit);
            const bool equal = (visit.place == sum.place) & (row == sum.row);
            sum = {visit.place, x_if(equal, sum.load) + visit.load, row, (sum.count & -uint32_t(equal)) + 1};
            num_sums += !equal;
            sums[num_sums - 1] = sum;
        }
    }

    // `own`, from visits that are sorted by place.
    void add_products(int64_t starts) {
        const int64_t products = (c.length + 1) * (c.length + 2) / 2, lengths = (int64_t(1) << bits) - 1;
        const int64_t blocks = (c.walks + c.block - 1) / c.block;
        const auto block = [&](const Visit<T>& x) { return block_of[x.number]; };
        by_place = visits;
        sort_by(visits, spare, bits_of(starts * blocks - 1), block);
        add_up(block);
        own.assign(starts * products, 0.0);
        for (size_t a = 0; a < num_sums; ++a) {
            double* of_start = own.data() + sums[a].row / blocks * products;
            const auto node = [&](size_t i) { return sums[i].place >> bits; };
            for (size_t b = a; b < num_sums && sums[b].row == sums[a].row && node(b) == node(a); ++b) {
                const int64_t longer = sums[b].place & lengths, shorter = sums[a].place & lengths;
                of_start[longer * (longer + 1) / 2 + shorter] += sums[a].load * sums[b].load * (a == b ? 1 : 2);
            }
        }
        visits.swap(by_place);
    }
};

}  // namespace
