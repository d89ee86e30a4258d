// The pairs of a sparse pattern in tiles: groups of four rows that have many columns in common, and four columns each.

#pragma once

#include <array>
#include <numeric>
#include <tuple>

#include "../parallel.h"

namespace {

constexpr int GROUP = 4;            // rows
constexpr int QUAD = 4;             // columns that are multiplied by a group together
constexpr int TILE = GROUP * QUAD;  // their pairs, row by row
constexpr int MIN_HASHES = 4;

// Rows in an order in which similar ones follow each other: that of the smallest hashes of their columns. Two rows share
// one with the probability |A n B| / |A u B| (Broder, On the resemblance and containment of documents, 1997).
inline std::vector<int32_t> similar_rows(int64_t rows, const int32_t* rowptr, const int32_t* col) {
    typedef std::array<uint32_t, MIN_HASHES> Key;
    std::vector<Key> keys(rows);
    for (int64_t i = 0; i < rows; ++i)
        for (int k = 0; k < MIN_HASHES; ++k) {
            const uint32_t factor = 0x9E3779B1u + 0x3C6EF372u * k;
            uint32_t least = UINT32_MAX;
            for (int64_t p = rowptr[i]; p < rowptr[i + 1]; ++p) {
                const uint32_t x = uint32_t(col[p] + 1) * factor;
                least = std::min(least, (x ^ x >> 15) * 0x2C1B3C6Du);
            }
            keys[i][k] = least;
        }
    std::vector<int32_t> order(rows);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return std::tie(keys[a], a) < std::tie(keys[b], b); });
    return order;
}

// The pairs of a group with one block of columns.
struct Strip {
    int64_t block, group, first, count;  // quads, from `first` on
};

// The pairs of some rows. They are read in the order of the columns; in another order they only fill fewer tiles.
struct Tiles {
    std::vector<int32_t> rows;   // of each group; -1 where it has fewer
    std::vector<int32_t> cols;   // of each quad; the last column is repeated until the quad is full
    std::vector<int32_t> pairs;  // of each quad, row by row; -1 where there is no such pair
    std::vector<Strip> strips;   // by block of columns, then by group

    // Rows of a group have columns in common, so that no row meets the keys of another graph.
    Tiles(const int32_t* begin, const int32_t* end, int64_t columns, int64_t block, const int32_t* rowptr, const int32_t* col) {
        std::vector<int32_t> seen(columns, -1);  // the last group that has the column
        while (begin != end) {
            const int32_t group = rows.size() / GROUP, *first = begin;
            do {
                for (int64_t p = rowptr[*begin]; p < rowptr[*begin + 1]; ++p) seen[col[p]] = group;
                rows.push_back(*begin++);
            } while (begin != end && begin - first < GROUP && meets(seen, group, *begin, rowptr, col));
            rows.resize((group + 1) * GROUP, -1);
            merge(group, block, rowptr, col);
        }
        std::stable_sort(strips.begin(), strips.end(), [](const Strip& a, const Strip& b) { return a.block < b.block; });
    }

    const int32_t* col(const Strip& strip) const { return &cols[strip.first * QUAD]; }

    // Calls run(place in the group, row).
    template <class F>
    void for_rows(const Strip& strip, const F& run) const {
        for (int g = 0; g < GROUP; ++g)
            if (const int64_t row = rows[strip.group * GROUP + g]; row >= 0) run(g, row);
    }

    // Numbers of pairs in tiles; 0 where there is no pair.
    template <class T>
    Array<T> fill(const T* from, int64_t by_pair) const {
        Array<T> numbers(from ? pairs.size() : 0);
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = pairs[i] < 0 ? T(0) : from[pairs[i] * by_pair];
        return numbers;
    }

   private:
    static bool meets(const std::vector<int32_t>& seen, int32_t group, int32_t row, const int32_t* rowptr, const int32_t* col) {
        return std::any_of(col + rowptr[row], col + rowptr[row + 1], [&](int32_t j) { return seen[j] == group; });
    }

    void merge(int64_t group, int64_t block, const int32_t* rowptr, const int32_t* col) {
        int64_t pair[GROUP], end[GROUP];
        for (int g = 0; g < GROUP; ++g) {
            const int32_t row = rows[group * GROUP + g];
            pair[g] = row < 0 ? 0 : rowptr[row], end[g] = row < 0 ? 0 : rowptr[row + 1];
        }
        int64_t last = -1, number = 0;  // block of the last column, and columns in its strip
        while (true) {
            int32_t least = INT32_MAX;
            for (int g = 0; g < GROUP; ++g)
                if (pair[g] < end[g]) least = std::min(least, col[pair[g]]);
            if (least == INT32_MAX) return;
            if (least / block != last) {
                last = least / block, number = 0;
                strips.push_back({last, group, int64_t(cols.size()) / QUAD, 0});
            }
            const int64_t place = number++ % QUAD;
            if (place == 0) {
                cols.resize(cols.size() + QUAD), pairs.resize(pairs.size() + TILE, -1);
                ++strips.back().count;
            }
            std::fill(cols.end() - QUAD + place, cols.end(), least);
            for (int g = 0; g < GROUP; ++g)
                if (pair[g] < end[g] && col[pair[g]] == least) pairs[pairs.size() - TILE + g * QUAD + place] = pair[g]++;
        }
    }
};

}  // namespace
