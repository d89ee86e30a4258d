// Rows of the product of two sparse matrices, cut into tasks: a block of a block-diagonal matrix each, or some rows; and
// the rows of such a block as a dense matrix.

#pragma once

#include "../array.h"

namespace {

enum { LEFT, RIGHT = LEFT + 3, FIRST = RIGHT + 3, ROWPTR, COL, VALUE, DISTANCE, ARRAYS };

template <class T>
struct Factors {
    const Call& call;
    const int64_t rows = call.size(LEFT, 0) - 1, columns = call.size(RIGHT, 0) - 1;  // of C
    const int64_t inner = call.integer(0), threads = call.threads();                 // inner: columns of A
    const Matrix<T> left{call, LEFT}, right{call, RIGHT};
    int64_t* first = call.dense<int64_t>(FIRST, {rows + 1});  // places of each row, written by the first call
    int32_t* rowptr = call.optional<int32_t>(ROWPTR, {rows + 1});  // the result; null in the first call
    int32_t* col = call.optional<int32_t>(COL, {ANY});
    T* value = call.optional<T>(VALUE, {ANY});
    int64_t* distance = call.optional<int64_t>(DISTANCE, {1});  // sum of |row - column| of all entries
};

// The number of entries of each column of a matrix, and the first and last row that has one.
struct Column {
    int64_t count = 0, low = INT32_MAX, high = -1;
};

template <class T>
std::vector<Column> columns_of(const Matrix<T>& matrix, int64_t rows, int64_t count) {
    std::vector<Column> columns(count);
    for (int64_t i = 0; i < rows; ++i)
        for (int32_t e = matrix.rowptr[i]; e < matrix.rowptr[i + 1]; ++e) {
            Column& u = columns[matrix.col[e]];
            ++u.count, u.low = std::min(u.low, i), u.high = i;
        }
    return columns;
}

// Rows of C. In a block, no entry of A and B joins these nodes to others.
struct Task {
    int64_t from, to;
    bool block;
    int64_t size() const { return to - from; }
};

// All rows. Square matrices are searched for blocks in which dense rows of B^T are fast: small ones, whose numbers are not
// many more than the entries of B. Measured: batches of graphs of 50 and 109 nodes took half of the time.
template <class T>
std::vector<Task> tasks_of(const Factors<T>& c, const std::vector<Column>& right) {
    constexpr int64_t ROWS = 64, MOST_ROWS = 512, MOST_NUMBERS = 12;
    std::vector<Task> tasks;
    int64_t from = 0;
    const auto cut = [&](int64_t to, int64_t size, bool block) {
        for (; from < to; from += size) tasks.push_back({from, std::min(from + size, to), block});
        from = to;
    };
    if (c.rows == c.columns && c.rows == c.inner) {
        const std::vector<Column> left = columns_of(c.left, c.rows, c.inner);
        std::vector<int64_t> later(c.rows + 1, INT32_MAX);  // the first row of this column and all that follow
        for (int64_t i = c.rows; i-- > 0;) later[i] = std::min({later[i + 1], left[i].low, right[i].low});
        int64_t last = -1;
        for (int64_t i = 0, begin = 0; i < c.rows; ++i) {
            last = std::max({last, left[i].high, right[i].high});
            if (last > i || later[i + 1] <= i) continue;  // an entry joins nodes up to i to later ones
            const int64_t size = i + 1 - begin, entries = c.right.rowptr[i + 1] - c.right.rowptr[begin];
            if (size <= MOST_ROWS && size * size <= MOST_NUMBERS * entries) {
                cut(begin, ROWS, false);
                cut(i + 1, size, true);
            }
            begin = i + 1;
        }
    }
    cut(c.rows, ROWS, false);
    return tasks;
}

// Rows `from` to `to` of a matrix that has no other columns, as the columns of a dense block.
template <class T>
class DenseBlock {
   public:
    void read(const Matrix<T>& matrix, int64_t begin, int64_t end) {
        from = begin, size = end - begin, stride = (size + Vec::L - 1) / Vec::L * Vec::L;
        const T* value = matrix.value;
        block.assign(size * stride, T(0));
        for (int64_t j = 0; j < size; ++j)
            for (int32_t e = matrix.rowptr[from + j]; e < matrix.rowptr[from + j + 1]; ++e)
                block[(matrix.col[e] - from) * stride + j] += value[e];
    }

    // The products of row `i` of another matrix with all these rows. They are overwritten by the next call.
    const T* multiply(const Matrix<T>& matrix, int64_t i) {
        row.resize(stride);
        int64_t j = 0;
        for (; j + 4 * Vec::L <= stride; j += 4 * Vec::L) multiply<4>(matrix, i, j);
        for (; j + 2 * Vec::L <= stride; j += 2 * Vec::L) multiply<2>(matrix, i, j);
        if (j < stride) multiply<1>(matrix, i, j);
        return row.data();
    }

   private:
    typedef Vector<T, 64> Vec;
    int64_t from = 0, size = 0, stride = 0;
    Array<T> block, row;

    // V vectors from column `j` on.
    template <int V>
    void multiply(const Matrix<T>& matrix, int64_t i, int64_t j) {
        const T* value = matrix.value;
        typename Vec::type sum[V]{};
        for (int32_t e = matrix.rowptr[i]; e < matrix.rowptr[i + 1]; ++e) {
            const T* other = &block[(matrix.col[e] - from) * stride + j];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[v] += value[e] * Vec::load(other + v * Vec::L);
        }
        for (int v = 0; v < V; ++v) Vec::store(sum[v], &row[j + v * Vec::L]);
    }
};

}  // namespace
