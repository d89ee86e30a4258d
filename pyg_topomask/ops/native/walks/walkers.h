// Walkers of some starts in one table, and the walk tables of all starts, made by several threads. Draws are hashes, as in
// hashing.py and walkers.py. Visits come sorted by length, and are added up by row, node and length.

#pragma once

#include <array>
#include <memory>

#include "../array.h"
#include "../draws.h"

namespace {

inline int64_t bits_of(int64_t number) { return number == 0 ? 0 : 1 + bits_of(number / 2); }

// Equal visits of rows, which are starts or blocks of walkers. The sums of row r are number first[r] to first[r + 1].
struct Sums {
    std::vector<uint32_t> first;
    std::vector<int64_t> key;  // node * 2^bits + length; equal visits of a row have equal keys
    std::vector<double> load;
    std::vector<uint32_t> visit;  // number of the first visit of each sum, and the number of all visits
};

// `x` or 0, without a branch, also if `x` is infinite. The number stays in a vector register.
inline double x_if(bool condition, double x) {
    typedef double Numbers __attribute__((vector_size(16)));
    typedef int64_t Bits __attribute__((vector_size(16)));
    const Numbers numbers = {x, 0};
    const Bits mask = {-int64_t(condition), 0};
    return ((Numbers)((Bits)numbers & mask))[0];
}

template <class T>
class Visits {
   public:
    explicit Visits(int64_t length) : bits(bits_of(length)) {}

    const int64_t bits;  // of a length

    // Forgets all visits. The next ones are those of so many walkers.
    void clear(size_t walkers) { count = 0, visits_of.assign(walkers, 0); }

    // Makes room for at most that many more visits.
    void reserve(size_t more) {
        if (count + more > UINT32_MAX) throw std::length_error("too many visits");
        if (visits.size() < count + more) nodes.resize(2 * count + more), visits.resize(2 * count + more);
    }

    void add(uint32_t node, uint32_t length, uint32_t walker, T load) {
        nodes[count] = node, visits[count++] = {walker, length, load};
        ++visits_of[walker];
    }

    void sort_by_node() {
        uint32_t high = low = nodes[0];
        for (size_t i = 0; i < count; ++i) low = std::min(low, nodes[i]), high = std::max(high, nodes[i]);
        const int64_t all = bits_of(high - low), passes = std::max<int64_t>(1, (all + DIGIT - 1) / DIGIT);
        const int64_t width = (all + passes - 1) / passes;  // of a digit, in bits
        by_node.resize(count), spare.resize(count);
        count_digits(width, passes);
        sort_by_digit(width, 0, [&](size_t i) { return uint64_t(nodes[i] - low) << 32 | i; });
        for (int64_t pass = 1; pass < passes; ++pass) sort_by_digit(width, pass, [&](size_t i) { return by_node[i]; });
    }

    // Adds up equal visits of the rows of walkers, in the order of `sort_by_node`.
    void add_up(const std::vector<uint32_t>& row_of, size_t rows, Sums& sums) {
        place_in_rows(row_of, rows);
        sums.key.resize(count), sums.load.resize(count), sums.visit.resize(count + 1), sums.first.assign(rows + 1, 0);
        int64_t n = -1, i = 0;
        for (size_t row = 0; row < rows; ++row) {
            double load = 0;
            // There is no branch, because whether two visits are equal cannot be predicted.
            for (int64_t key = -1; i < end[row]; ++i) {
                const bool equal = placed[i].key == key;
                n += !equal;
                load = x_if(equal, load) + placed[i].load;
                sums.key[n] = key = placed[i].key, sums.load[n] = load, sums.visit[n + 1] = i + 1;
            }
            sums.first[row + 1] = n + 1;
        }
        sums.visit[0] = 0;
    }

   private:
    static constexpr int64_t DIGIT = 11;  // bits by which visits are sorted in one pass, at most; nodes have 32

    struct Visit {
        uint32_t walker, length;
        T load;
    };

    struct Placed {
        int64_t key;  // as in `Sums`
        T load;
    };

    size_t count = 0;
    uint32_t low = 0;                      // lowest visited node
    std::vector<uint32_t> nodes;           // of each visit
    std::vector<Visit> visits;
    std::vector<uint32_t> visits_of;       // number of visits of each walker
    std::array<std::array<uint32_t, (1 << DIGIT) + 1>, 3> of_pass;  // see `count_digits`
    std::vector<uint64_t> by_node, spare;  // (node - low) * 2^32 + number of each visit
    std::vector<Placed> placed;            // visits in the order of rows
    std::vector<int64_t> end;              // of each row among them

    // Counts the visits with each digit of `width` bits. The count of digit d is number d + 1 of its pass. The first
    // loop serves two passes, the most frequent case.
    void count_digits(int64_t width, int64_t passes) {
        const uint32_t ones = (1 << width) - 1;
        const auto digit = [&](size_t i, int64_t pass) { return (nodes[i] - low) >> (pass * width) & ones; };
        for (auto& next : of_pass) std::fill_n(next.begin(), (1 << width) + 1, 0);
        for (size_t i = 0; i < count; ++i) ++of_pass[0][digit(i, 0) + 1], ++of_pass[1][digit(i, 1) + 1];
        for (size_t i = 0; i < count && passes > 2; ++i) ++of_pass[2][digit(i, 2) + 1];
    }

    // One pass of a radix sort of visit(0), visit(1), … into `by_node`. Visits with equal digits keep their order.
    template <class F>
    void sort_by_digit(int64_t width, int64_t pass, const F& visit) {
        auto& next = of_pass[pass];
        const int64_t shift = 32 + pass * width;
        for (int64_t i = 0; i < 1 << width; ++i) next[i + 1] += next[i];
        for (size_t i = 0; i < count; ++i) spare[next[visit(i) >> shift & ((1 << width) - 1)]++] = visit(i);
        by_node.swap(spare);
    }

    void place_in_rows(const std::vector<uint32_t>& row_of, size_t rows) {
        end.assign(rows + 1, 0);
        for (size_t walker = 0; walker < visits_of.size(); ++walker) end[row_of[walker] + 1] += visits_of[walker];
        for (size_t row = 0; row < rows; ++row) end[row + 1] += end[row];
        placed.resize(count);
        for (const uint64_t number : by_node) {
            const Visit& visit = visits[uint32_t(number)];
            placed[end[row_of[visit.walker]]++] = {(int64_t(low + (number >> 32)) << bits) + visit.length, visit.load};
        }
    }
};

enum Scheme { IID = 0, ANTITHETIC = 1, REPELLING = 2 };

enum { START, STREAM, GRAPH_ROWPTR, GRAPH_COL, FACTOR, BOUND, GAIN, HALTS_BELOW, TOTALS, MADE, WALK_ARRAYS };
enum { TABLES, WALKS, BLOCK, SCHEME, HAS_OWN, WALK_NUMBERS };

template <class T>
struct WalkCall {
    explicit WalkCall(const Call& call) : call(call) {}
    const Call call;  // a copy, whose arrays and numbers are gone when tables are written
    const int64_t tables = call.integer(TABLES), walks = call.integer(WALKS), block = call.integer(BLOCK);
    const int64_t scheme = call.integer(SCHEME), has_own = call.integer(HAS_OWN), threads = call.threads();
    const int64_t nodes = call.size(GRAPH_ROWPTR, 0) - 1, starts = call.size(START, 0), length = call.size(GAIN, 0);
    const int64_t* start = call.dense<const int64_t>(START, {starts});    // nodes
    const int64_t* stream = call.dense<const int64_t>(STREAM, {starts});  // hashes from which their draws are derived
    const int64_t* rowptr = call.dense<const int64_t>(GRAPH_ROWPTR, {nodes + 1});
    const int64_t* col = call.dense<const int64_t>(GRAPH_COL, {rowptr[nodes]});
    const int64_t* bound = call.optional<const int64_t>(BOUND, {rowptr[nodes]});  // ends of the edges' intervals; or null
    const int64_t* halts_below = call.dense<const int64_t>(HALTS_BELOW, {length});  // draws by which a walker halts
    const T* factor = call.dense<const T>(FACTOR, {rowptr[nodes]});                 // of the load on each edge
    const double* gain = call.dense<const double>(GAIN, {length});                  // factor of the load at each step
};

inline uint64_t below(uint64_t draw, uint64_t bound) { return (draw & UINT32_MAX) * bound >> 32; }

// What a walker reads of an edge lies together: its end, its factor of the load, and the edges that leave the end.
template <class T>
struct Edge {
    uint32_t node;
    T factor;
    uint32_t first, degree;
};

template <class T>
struct Walker {
    uint32_t first, degree;  // edges that leave its node
    uint32_t number;         // among the walkers of all starts
    T load;
};

// Walks from some starts together, so that the reads of many walkers are on their way.
template <class T>
class Walkers {
   public:
    Walkers(const WalkCall<T>& call, const std::vector<Edge<T>>& edges, int64_t starts)
        : visits(call.length), c(call), edges(edges) {
        for (int64_t s = 0, block = 0; s < starts; ++s)
            for (int64_t i = 0; i < c.walks; ++i) {
                const uint32_t number = pair_of.size();
                start_of.push_back(s), block_of.push_back(block);
                pair_of.push_back(number - (c.scheme == ANTITHETIC && i % 2));
                block += (i + 1) % c.block == 0 || i + 1 == c.walks;
            }
    }

    Visits<T> visits;
    Sums sums;                // of the visits of each start; rows count from the first start
    std::vector<double> own;  // of each start, products of each block's visits with themselves, in the order of `monomial`

    void walk(int64_t first, int64_t last, int64_t table) {
        begin(first, last, table);
        for (int64_t length = 1; length <= c.length && !walkers.empty(); ++length) step(length);
        visits.sort_by_node();
        if (c.has_own) add_products(last - first);
        visits.add_up(start_of, last - first, sums);
    }

   private:
    static constexpr size_t TOGETHER = 512;  // walkers whose edges are read from memory at the same time

    const WalkCall<T>& c;
    const std::vector<Edge<T>>& edges;
    std::vector<Walker<T>> walkers;      // that still go on
    std::vector<uint64_t> state, draws;  // of each of them; draws are for this step
    std::vector<int64_t> chosen;         // edges of this step
    std::vector<uint64_t> states;        // of all walkers
    std::vector<uint32_t> start_of, block_of, pair_of;  // of all walkers; of an antithetic pair, the first one

    // All walkers at their starts, which each block visits once with the load of its walkers.
    void begin(int64_t first, int64_t last, int64_t table) {
        const int64_t size = c.has_own ? c.block : c.walks;  // of walkers that visit the start together
        const size_t count = (last - first) * c.walks;
        visits.clear(count), visits.reserve(count);
        walkers.resize(count), states.resize(count), draws.resize(count), chosen.resize(count);
        uint32_t number = 0;
        for (int64_t s = first; s < last; ++s) {
            const uint32_t node = c.start[s], edge = c.rowptr[node], degree = c.rowptr[node + 1] - c.rowptr[node];
            for (int64_t i = 0; i < c.walks; i += size) visits.add(node, 0, number + i, T(std::min(size, c.walks - i)));
            for (int64_t i = 1; i <= c.walks; ++i, ++number) {
                states[number] = mix(uint64_t(c.stream[s]) + uint64_t(table * c.walks + i) * GOLDEN);
                walkers[number] = {edge, degree, number, T(1)};
            }
        }
        state = states;
    }

    void step(int64_t length) {
        const uint64_t step = uint64_t(length) * GOLDEN;
        const T gain = c.gain[length - 1];
        const size_t together = c.scheme == REPELLING ? walkers.size() : TOGETHER;
        visits.reserve(walkers.size());
        size_t kept = 0;
        for (size_t from = 0; from < walkers.size(); from += together) {
            const size_t first = kept;
            kept = keep_going(from, std::min(from + together, walkers.size()), first, length);
            if (c.scheme == REPELLING) {
                walkers.resize(kept);
                choose_distinct(step);
            }
            for (size_t i = first; i < kept && c.bound; ++i) chosen[i] = choose(walkers[i], draws[i]);
            for (size_t i = first; i < kept; ++i) {
                const Edge<T> edge = edges[chosen[i]];
                Walker<T>& one = walkers[i];
                one = {edge.first, edge.degree, one.number, one.load * edge.factor * gain};
                visits.add(edge.node, length, one.number, one.load);
            }
        }
        walkers.resize(kept);
    }

    // Draws a number for each of some walkers, and moves those that go on to numbers kept, kept + 1, …; returns their end.
    // Their edges are those of uniform steps. The second of an antithetic pair halts by the draw of the first, shifted by
    // half of the range. The first loop fills vectors. The second has no branch, because halts cannot be predicted.
    size_t keep_going(size_t from, size_t to, size_t kept, int64_t length) {
        const bool pairs = c.scheme == ANTITHETIC;
        const uint64_t step = uint64_t(length) * GOLDEN;
        const int64_t halts_below = c.halts_below[length - 1];
        for (size_t i = from; i < to; ++i) draws[i] = mix(state[i] + step);
        for (size_t i = from; i < to; ++i) {
            const Walker<T> one = walkers[i];
            const uint64_t draw = draws[i];
            uint64_t halt = draw;
            if (pairs) {
                const uint32_t pair = pair_of[one.number];
                halt = mix(states[pair] + step) ^ (uint64_t(pair != one.number) << 63);
            }
            walkers[kept] = one, state[kept] = state[i], draws[kept] = draw;
            chosen[kept] = one.first + below(draw, one.degree);
            fetch<0>(edges.data() + chosen[kept], 1);
            kept += (int64_t(halt >> 32) >= halts_below) & (one.degree > 0);
        }
        return kept;
    }

    // The interval of a node's last edge ends at (node + 1) * 2^32.
    int64_t choose(const Walker<T>& one, uint64_t draw) const {
        const int64_t *from = c.bound + one.first, *to = from + one.degree;
        return std::upper_bound(from, to, to[-1] - (int64_t(1) << 32) + int64_t(draw & UINT32_MAX)) - c.bound;
    }

    // Walkers of a block that leave a node together take distinct neighbours, until all have been taken: number r of them
    // draws one of the neighbours that the r walkers before it have left.
    void choose_distinct(uint64_t step) {
        const auto block = [&](const Walker<T>& one) { return block_of[one.number]; };
        std::stable_sort(walkers.begin(), walkers.end(), [&](const Walker<T>& a, const Walker<T>& b) {
            return block(a) != block(b) ? block(a) < block(b) : a.first < b.first;
        });
        std::vector<int64_t> drawn(walkers.size());
        for (size_t i = 0, first = 0; i < walkers.size(); ++i) {
            const Walker<T>& one = walkers[i];
            if (one.first != walkers[first].first || block(one) != block(walkers[first])) first = i;
            state[i] = states[one.number];
            const int64_t rank = int64_t(i - first) % one.degree;
            int64_t left = drawn[i] = below(mix(state[i] + step), one.degree - rank);
            for (int64_t earlier = 1; earlier <= rank; ++earlier) left += left >= drawn[i - earlier];
            chosen[i] = one.first + left;
        }
    }

    // `own`, from visits that are sorted by node and length.
    void add_products(int64_t starts) {
        const int64_t products = (c.length + 1) * (c.length + 2) / 2, lengths = (int64_t(1) << visits.bits) - 1;
        const int64_t blocks = (c.walks + c.block - 1) / c.block;
        visits.add_up(block_of, starts * blocks, sums);
        own.assign(starts * products, 0.0);
        for (int64_t row = 0; row < starts * blocks; ++row)
            for (size_t a = sums.first[row]; a < sums.first[row + 1]; ++a) {
                double* of_start = own.data() + row / blocks * products;
                const auto node = [&](size_t i) { return sums.key[i] >> visits.bits; };
                for (size_t b = a; b < sums.first[row + 1] && node(b) == node(a); ++b) {
                    const int64_t longer = sums.key[b] & lengths, shorter = sums.key[a] & lengths;
                    of_start[longer * (longer + 1) / 2 + shorter] += sums.load[a] * sums.load[b] * (a == b ? 1 : 2);
                }
            }
    }
};

// The entries of consecutive starts in one table.
template <class T>
struct Part {
    std::vector<uint32_t> entries_of_start;
    std::unique_ptr<int64_t[]> key;  // as in `Sums`
    std::unique_ptr<T[]> load, count;  // means over walkers
    std::vector<double> own;
    int64_t begin = 0, size = 0;  // entries of the table before this part, and in it
};

// Parts of a table follow each other.
template <class T>
class WalkTables {
   public:
    explicit WalkTables(const WalkCall<T>& call)
        : c(call), size(starts_of_part(call)), bits(bits_of(call.length)), parts_of_table((call.starts + size - 1) / size) {
        if (std::max(c.nodes, c.rowptr[c.nodes]) > UINT32_MAX) throw std::length_error("too many nodes or edges");
        parts.resize(c.tables * parts_of_table);
        std::vector<Edge<T>> edges(c.rowptr[c.nodes]);
        for (size_t e = 0; e < edges.size(); ++e) {
            const int64_t node = c.col[e], first = c.rowptr[node], degree = c.rowptr[node + 1] - first;
            edges[e] = {uint32_t(node), c.factor[e], uint32_t(first), uint32_t(degree)};
        }
        std::vector<Walkers<T>> of_thread(c.threads, Walkers<T>(c, edges, std::min(size, c.starts)));
        parallel(c.threads, parts.size(), [&](int64_t task, int64_t thread) {
            const int64_t first = task % parts_of_table * size, last = std::min(first + size, c.starts);
            of_thread[thread].walk(first, last, task / parts_of_table);
            fill(parts[task], of_thread[thread], last - first);
        });
    }

    // Number of entries of each table.
    void count(int64_t* totals) {
        std::fill_n(totals, c.tables, 0);
        for (size_t task = 0; task < parts.size(); ++task) {
            parts[task].begin = totals[task / parts_of_table];
            totals[task / parts_of_table] += parts[task].size;
        }
    }

    // Writes start, visited node, length, load and count of one table, and the products of its blocks. Its parts are then
    // empty.
    void write(int64_t table, int64_t* start, int64_t* node, int64_t* length, T* load, T* count, T* own) {
        const int64_t lengths = (int64_t(1) << bits) - 1, products = (c.length + 1) * (c.length + 2) / 2;
        parallel(c.threads, parts_of_table, [&](int64_t number, int64_t) {
            Part<T> part;
            std::swap(part, parts[table * parts_of_table + number]);
            int64_t* to = start + part.begin;
            for (size_t s = 0; s < part.entries_of_start.size(); ++s)
                to = std::fill_n(to, part.entries_of_start[s], c.start[number * size + s]);
            for (int64_t i = 0; i < part.size; ++i) {
                node[part.begin + i] = part.key[i] >> bits;
                length[part.begin + i] = part.key[i] & lengths;
            }
            std::copy_n(part.load.get(), part.size, load + part.begin);
            std::copy_n(part.count.get(), part.size, count + part.begin);
            const double pairs = double(c.walks) * double(c.walks);
            for (size_t i = 0; i < part.own.size(); ++i) own[number * size * products + i] = T(part.own[i] / pairs);
        });
    }

   private:
    static constexpr int64_t VISITS = 1 << 14;  // of one part, about; what is kept of them fits a core's cache

    const WalkCall<T> c;
    const int64_t size;  // starts of one part
    const int64_t bits, parts_of_table;
    std::vector<Part<T>> parts;

    static int64_t starts_of_part(const WalkCall<T>& c) {
        double visits = 1, goes_on = 1;  // of a walker
        for (int64_t i = 0; i < c.length; ++i) visits += goes_on *= 1 - c.halts_below[i] / 4294967296.0;
        return std::max<int64_t>(1, int64_t(VISITS / (double(c.walks) * visits)));
    }

    void fill(Part<T>& part, const Walkers<T>& found, int64_t starts) {
        const int64_t lengths = (int64_t(1) << bits) - 1;
        const double walks = c.walks;
        const Sums& sums = found.sums;
        for (int64_t s = 0; s < starts; ++s) part.entries_of_start.push_back(sums.first[s + 1] - sums.first[s]);
        part.size = sums.first[starts];
        part.key.reset(new int64_t[part.size]), part.load.reset(new T[part.size]), part.count.reset(new T[part.size]);
        std::copy_n(sums.key.data(), part.size, part.key.get());
        T *load = part.load.get(), *count = part.count.get();
        for (int64_t i = 0; i < part.size; ++i) load[i] = sums.load[i] / walks;
        for (int64_t i = 0; i < part.size; ++i) {
            const double visits = sums.visit[i + 1] - sums.visit[i];
            count[i] = (sums.key[i] & lengths ? visits : sums.load[i]) / walks;
        }
        part.own = found.own;
    }
};

}  // namespace
