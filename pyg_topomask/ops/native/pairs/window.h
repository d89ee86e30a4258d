// Rows that a thread works on together, so that loops over the numbers of their pairs are long where rows are short.

#pragma once

#include "packed.h"

namespace {

// One row: its node, the number of node and head, and its pairs, of which the first is number `first` of the window.
struct Row {
    int64_t index, node, place, first, count;
    const int32_t* col;
};

// Consecutive rows and what a thread keeps of their pairs, in whole blocks, and of each row, in whole vectors. What lies
// behind the last pair or in the lanes behind the last feature does not count.
template <class T>
struct Window {
    int64_t from = 0, to = 0, first = 0, count = 0;  // rows, first pair and number of pairs
    const T *entry = nullptr, *bound = nullptr;
    Array<T> queries, grads;
    Array<T> entries, bounds;  // unless those that are given lie side by side
    Array<T> kernel, slope, kept, weight, pair_grad, entry_grad, size_grad;
    Array<T> edge, turned, keys, sum;  // of the row or edge at hand
    Array<T> last, lanes;  // of a table

    // The rows from `row` on which together have PAIRS pairs at most, or one row.
    void take(const Problem<T>& c, int64_t row, int64_t until) {
        from = row, to = row + 1, first = c.rowptr[row];
        while (to < until && to - from < ROWS && c.rowptr[to + 1] - first <= PAIRS) ++to;
        count = c.rowptr[to] - first;
    }

    // Number of pairs in whole blocks. Loops up to it have no rest, so they compute a pair in the same way wherever it lies.
    int64_t padded() const { return (count + BLOCK - 1) / BLOCK * BLOCK; }

    // Room for a number of each pair, and for a vector behind them.
    T* pairs(Array<T>& array) const {
        grow(array, padded() + Vec<T>::L);
        return array.data();
    }

    Row row(const Problem<T>& c, int64_t i, int64_t head) const {
        const int64_t node = c.node(i), begin = c.rowptr[i];
        return {i, node, node * c.heads + head, begin - first, c.rowptr[i + 1] - begin, c.col + begin};
    }

   private:
    static constexpr int64_t BLOCK = 64, PAIRS = 512, ROWS = 64;
};

}  // namespace
