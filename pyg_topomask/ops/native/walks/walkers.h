// Walkers of one start and one table, and the table of their visits. Draws are hashes, as in hashing.py and walkers.py.

#pragma once

#include "../parallel.h"

namespace {

enum Scheme { IID = 0, ANTITHETIC = 1, REPELLING = 2 };

// The fields and their order are those of `_WalkCall` in compiled.py.
struct WalkCall {
    int64_t starts, tables, walks, length, block, threads, scheme, halts_below, has_own;
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

template <class T>
struct Walker {
    int64_t number, block, node;
    uint64_t state, draw;
    int64_t edge;
    T load;
};

struct Visit {
    int64_t key;  // node * 2^bits + length
    double load;
    bool operator<(const Visit& other) const { return key < other.key; }
};

constexpr size_t FEW = 16;  // visits, which are sorted without memory of their own

// Sorts visits by (node, length) and adds up equal ones; calls found(visit, their number) for each that is left.
template <class F>
void merge(std::vector<Visit>& visits, const F& found) {
    if (visits.size() > FEW)
        std::stable_sort(visits.begin(), visits.end());
    else
        for (size_t a = 1; a < visits.size(); ++a)
            std::rotate(std::upper_bound(visits.begin(), visits.begin() + a, visits[a]), visits.begin() + a, visits.begin() + a + 1);
    for (size_t a = 0, b; a < visits.size(); a = b) {
        Visit sum = visits[a];
        for (b = a + 1; b < visits.size() && visits[b].key == sum.key; ++b) sum.load += visits[b].load;
        found(sum, b - a);
    }
}

// Walks from one start after the other; what it found last is in its public members.
template <class T>
class Start {
   public:
    explicit Start(const WalkCall& call) : bits(bits_of(call.length)), c(call), factor(static_cast<const T*>(call.factor)) {}

    const int64_t bits;         // of a length
    std::vector<Visit> visits;  // of all walkers
    std::vector<double> own;    // products of the visits of each block with themselves, in the order of `monomial`

    void walk(int64_t s, int64_t table) {
        blocks.resize((c.walks + c.block - 1) / c.block);
        for (size_t b = 0; b < blocks.size(); ++b)  // one visit at the start, of all walkers of the block
            blocks[b].assign(1, {c.start[s] << bits, double(std::min(c.block, c.walks - int64_t(b) * c.block))});
        walkers.clear();
        for (int64_t number = 0; number < c.walks; ++number)
            walkers.push_back({number, number / c.block, c.start[s], state(s, table, number), 0, 0, T(1)});
        for (int64_t length = 1; length <= c.length && !walkers.empty(); ++length) step(s, table, length);
        visits.clear();
        for (const auto& block : blocks) visits.insert(visits.end(), block.begin(), block.end());
        if (c.has_own) add_products();
    }

   private:
    const WalkCall& c;
    const T* factor;
    std::vector<std::vector<Visit>> blocks;
    std::vector<Visit> merged;
    std::vector<Walker<T>> walkers;  // that still go on

    int64_t degree(int64_t node) const { return c.rowptr[node + 1] - c.rowptr[node]; }

    uint64_t state(int64_t s, int64_t table, int64_t number) const {
        return mix(uint64_t(c.stream[s]) + uint64_t(table * c.walks + number + 1) * GOLDEN);
    }

    // All walkers take one step. Each loop has one kind of read, so that the reads of many walkers are on their way.
    void step(int64_t s, int64_t table, int64_t length) {
        const auto stops = [&](Walker<T>& one) { return !goes_on(one, s, table, uint64_t(length) * GOLDEN); };
        walkers.erase(std::remove_if(walkers.begin(), walkers.end(), stops), walkers.end());
        if (c.scheme == REPELLING)
            choose_distinct();
        else
            for (auto& one : walkers) one.edge = choose(one);
        for (auto& one : walkers) {
            one.load *= factor[one.edge];
            one.node = c.col[one.edge];
            blocks[one.block].push_back({(one.node << bits) + length, double(one.load)});
        }
    }

    // Draws a number for the step; whether the walker goes on. The second of an antithetic pair halts by the draw of the
    // first, shifted by half of the range.
    bool goes_on(Walker<T>& one, int64_t s, int64_t table, uint64_t step) const {
        one.draw = mix(one.state + step);
        if (degree(one.node) == 0) return false;
        if (c.halts_below == 0) return true;
        uint64_t halt = one.draw;
        if (c.scheme == ANTITHETIC && one.number % 2)
            halt = mix(state(s, table, one.number - 1) + step) ^ (uint64_t(1) << 63);
        return int64_t(halt >> 32) >= c.halts_below;
    }

    int64_t choose(const Walker<T>& one) const {
        const int64_t from = c.rowptr[one.node], to = c.rowptr[one.node + 1];
        if (!c.bound) return from + below(one.draw, to - from);
        return std::upper_bound(c.bound + from, c.bound + to, (one.node << 32) + int64_t(one.draw & UINT32_MAX)) - c.bound;
    }

    // Walkers of a block that leave a node together take distinct neighbours, until all have been taken: number r of them
    // draws one of the neighbours that the r walkers before it have left.
    void choose_distinct() {
        std::stable_sort(walkers.begin(), walkers.end(), [](const Walker<T>& a, const Walker<T>& b) {
            return a.block != b.block ? a.block < b.block : a.node < b.node;
        });
        std::vector<int64_t> drawn(walkers.size());
        for (int64_t i = 0, first = 0; i < int64_t(walkers.size()); ++i) {
            Walker<T>& one = walkers[i];
            if (one.node != walkers[first].node || one.block != walkers[first].block) first = i;
            const int64_t rank = (i - first) % degree(one.node);
            int64_t left = drawn[i] = below(one.draw, degree(one.node) - rank);
            for (int64_t earlier = 1; earlier <= rank; ++earlier) left += left >= drawn[i - earlier];
            one.edge = c.rowptr[one.node] + left;
        }
    }

    void add_products() {
        own.assign((c.length + 1) * (c.length + 2) / 2, 0.0);
        for (auto& block : blocks) {
            merged.clear();
            merge(block, [&](const Visit& visit, size_t) { merged.push_back(visit); });
            add_products_of_merged();
        }
    }

    void add_products_of_merged() {
        for (size_t a = 0; a < merged.size(); ++a)
            for (size_t b = a; b < merged.size() && merged[b].key >> bits == merged[a].key >> bits; ++b) {
                const int64_t high = merged[b].key & ((int64_t(1) << bits) - 1), low = merged[a].key & ((int64_t(1) << bits) - 1);
                own[high * (high + 1) / 2 + low] += merged[a].load * merged[b].load * (a == b ? 1 : 2);
            }
    }
};

// The visits of the walkers of consecutive starts in one table.
struct Part {
    std::vector<int64_t> visits_of_start, node, length;
    std::vector<double> load, count;  // sums over walkers
    std::vector<double> own;
};

// The tables of all starts: parts of a table follow each other.
template <class T>
class WalkTables {
   public:
    explicit WalkTables(const WalkCall& call) : c(call), parts_of_table((call.starts + STARTS - 1) / STARTS) {
        parts.resize(c.tables * parts_of_table);
        std::vector<Start<T>> of_thread(c.threads, Start<T>(c));
        parallel(c.threads, parts.size(), [&](int64_t task, int64_t thread) {
            const int64_t first = task % parts_of_table * STARTS;
            for (int64_t s = first; s < std::min(first + STARTS, c.starts); ++s) add(s, task, of_thread[thread]);
        });
    }

    // Number of entries of each table.
    void count(int64_t* totals) const {
        for (size_t task = 0; task < parts.size(); ++task) totals[task / parts_of_table] += parts[task].node.size();
    }

    // Writes start, visited node, length, load and count of one table, and the products of its blocks.
    void write(int64_t table, int64_t* start, int64_t* node, int64_t* length, T* load, T* count, T* own) const {
        for (int64_t part = 0; part < parts_of_table; ++part) {
            const Part& p = parts[table * parts_of_table + part];
            for (size_t s = 0; s < p.visits_of_start.size(); ++s)
                start = std::fill_n(start, p.visits_of_start[s], c.start[part * STARTS + s]);
            node = std::copy(p.node.begin(), p.node.end(), node);
            length = std::copy(p.length.begin(), p.length.end(), length);
            load = divide(p.load, double(c.walks), load);
            count = divide(p.count, double(c.walks), count);
            if (c.has_own) own = divide(p.own, double(c.walks) * double(c.walks), own);
        }
    }

   private:
    static constexpr int64_t STARTS = 64;  // of one part
    const WalkCall c;
    const int64_t parts_of_table;
    std::vector<Part> parts;

    void add(int64_t s, int64_t task, Start<T>& start) {
        Part& part = parts[task];
        const size_t before = part.node.size();
        start.walk(s, task / parts_of_table);
        merge(start.visits, [&](const Visit& visit, size_t number) {
            const int64_t length = visit.key & ((int64_t(1) << start.bits) - 1);
            part.node.push_back(visit.key >> start.bits), part.length.push_back(length), part.load.push_back(visit.load);
            part.count.push_back(length == 0 ? visit.load : double(number));
        });
        part.visits_of_start.push_back(part.node.size() - before);
        part.own.insert(part.own.end(), start.own.begin(), start.own.end());
    }

    static T* divide(const std::vector<double>& x, double by, T* to) {
        return std::transform(x.begin(), x.end(), to, [by](double v) { return T(v / by); });
    }
};

}  // namespace
