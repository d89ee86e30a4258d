// Visits of walkers, and their sums by row, node and length. Visits are sorted by length when they are added.

#pragma once

#include <array>

#include "../array.h"

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

}  // namespace
