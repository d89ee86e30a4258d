// The product C = A B^T of two sparse matrices: its entries, if those of the factors are not negative, where entries of 0
// are left out.
//
// Rows are cut into tasks: a block of a block-diagonal matrix each, whose rows of B are read as a dense matrix, or some
// rows. A row of C is the work of one thread and is summed in the order of the entries of A: no result depends on the
// number of threads.

#include <cstdlib>
#include <numeric>
#include <utility>

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

// B^T: the entries of each column of B, in the order of their rows.
template <class T>
struct Transposed {
    struct Entry {
        int32_t row;
        T value;
    };
    std::vector<int64_t> first;
    std::vector<Entry> entries;

    Transposed() = default;
    Transposed(const Factors<T>& c, const std::vector<Column>& columns) : first(c.inner + 1), entries(c.right.rowptr[c.columns]) {
        for (int64_t u = 0; u < c.inner; ++u) first[u + 1] = first[u] + columns[u].count;
        std::vector<int64_t> next(first.begin(), first.end() - 1);
        const T* value = c.right.value;
        for (int32_t i = 0; i < c.columns; ++i)
            for (int32_t e = c.right.rowptr[i]; e < c.right.rowptr[i + 1]; ++e)
                entries[next[c.right.col[e]]++] = {i, value[e]};
    }
};

// Terms of a row of C, and the columns between which they lie.
struct Span {
    int64_t terms = 0, low = INT32_MAX, high = -1;
    template <class T>
    Span(const Factors<T>& c, const std::vector<Column>& columns, int64_t i) {
        for (int32_t e = c.left.rowptr[i]; e < c.left.rowptr[i + 1]; ++e) {
            const Column& u = columns[c.left.col[e]];
            terms += u.count, low = std::min(low, u.low), high = std::max(high, u.high);
        }
    }
    int64_t width() const { return std::max<int64_t>(high - low + 1, 0); }
    // Whether all columns between them are searched for entries, which is faster than to sort.
    bool dense() const { return width() <= 2 * terms; }
};

// Writes the places for the entries of each row.
template <class T>
void count(const Factors<T>& c) {
    const std::vector<Column> columns = columns_of(c.right, c.columns, c.inner);
    c.first[0] = 0;
    for (const Task& task : tasks_of(c, columns))
        for (int64_t i = task.from; i < task.to; ++i) {
            const Span s(c, columns, i);
            c.first[i + 1] = c.first[i] + (task.block ? task.size() : s.dense() ? s.width() : s.terms);
        }
}

template <class T>
class Product {
   public:
    explicit Product(const Factors<T>& factors)
        : c(factors), columns(columns_of(c.right, c.columns, c.inner)), tasks(tasks_of(c, columns)) {
        const bool blocks = std::all_of(tasks.begin(), tasks.end(), [](const Task& task) { return task.block; });
        if (!blocks) transposed = Transposed<T>(c, columns);
    }

    // One thread leaves no gaps, so that it touches less memory; several leave gaps between their tasks.
    // Returns the number of entries. If it exceeds 31 bits, the row pointers are wrong.
    int64_t fill() {
        const bool gaps = c.threads > 1;
        std::vector<Memory> memory(c.threads);
        std::vector<int64_t> distances(tasks.size());
        c.rowptr[0] = 0;
        int64_t end = 0;
        parallel(c.threads, tasks.size(), [&](int64_t number, int64_t thread) {
            const Task& task = tasks[number];
            int64_t to = gaps ? c.first[task.from] : end;
            if (task.block) memory[thread].block.read(c.right, task.from, task.to);
            for (int64_t i = task.from; i < task.to; ++i)
                to += c.rowptr[i + 1] = fill(i, task, to, memory[thread], distances[number]);
            if (!gaps) end = to;
        });
        *c.distance = std::accumulate(distances.begin(), distances.end(), int64_t(0));
        int64_t total = 0;
        for (int64_t i = 0; i < c.rows; ++i) c.rowptr[i + 1] = total += c.rowptr[i + 1];
        if (total > INT32_MAX) return total;
        for (size_t number = 0; gaps && number < tasks.size(); ++number) {
            const int64_t row = tasks[number].from, to = c.rowptr[row], count = c.rowptr[tasks[number].to] - to;
            std::memmove(c.col + to, c.col + c.first[row], count * sizeof(int32_t));
            std::memmove(c.value + to, c.value + c.first[row], count * sizeof(T));
        }
        return total;
    }

   private:
    struct Memory {  // of a thread
        Array<T> sums;  // of each column, 0 between two rows
        DenseBlock<T> block;
    };
    const Factors<T>& c;
    const std::vector<Column> columns;
    const std::vector<Task> tasks;
    Transposed<T> transposed;

    // Calls add(column, term) for all terms of a row of C.
    template <class F>
    INLINED void for_each_term(int64_t i, const F& add) const {
        const T* left = c.left.value;
        for (int32_t e = c.left.rowptr[i]; e < c.left.rowptr[i + 1]; ++e) {
            const int64_t u = c.left.col[e];
            const auto *p = &transposed.entries[transposed.first[u]], *last = p + columns[u].count;
            for (const T x = left[e]; p < last; ++p) add(p->row, x * p->value);
        }
    }

    // Writes the entries of a row from place `to` on, and returns their number.
    int64_t fill(int64_t i, const Task& task, int64_t to, Memory& m, int64_t& distance) const {
        int32_t* col = c.col + to;
        T* values = c.value + to;
        int64_t count = 0;
        const auto write = [&](int64_t j, T sum) {  // without a branch
            col[count] = j, values[count] = sum;
            count += sum != 0;
        };
        if (task.block) {
            const T* sums = m.block.multiply(c.left, i);
            for (int64_t j = task.from; j < task.to; ++j) write(j, sums[j - task.from]);
        } else {
            m.sums.resize(c.columns);
            in_row(i, m.sums.data(), write);
        }
        for (int64_t p = 0; p < count; ++p) distance += std::abs(i - col[p]);
        return count;
    }

    // Calls write(column, sum) for all columns in which a row has terms, in ascending order, and perhaps for others.
    template <class F>
    void in_row(int64_t i, T* sums, const F& write) const {
        const Span s(c, columns, i);
        if (s.dense()) {
            for_each_term(i, [sums](int64_t j, T term) { sums[j] += term; });
            for (int64_t j = s.low; j <= s.high; ++j) write(j, std::exchange(sums[j], T(0)));
            return;
        }
        std::vector<int32_t> met;  // columns of the row, some of them several times
        for_each_term(i, [sums, &met](int64_t j, T term) {
            if (sums[j] == 0) met.push_back(j);
            sums[j] += term;
        });
        std::sort(met.begin(), met.end());
        for (const int32_t j : met) write(j, std::exchange(sums[j], T(0)));
    }
};

}  // namespace

// Without a place for the result, writes the places of each row; else the result. -3 if there are too many entries.
EXPORTED int64_t sparse_product(const int64_t* block) {
    return for_dtype(block, ARRAYS, 1, LEFT + 2, [](const Call& call, auto zero) {
        const Factors<decltype(zero)> factors{call};
        if (!factors.rowptr) count(factors);
        return factors.rowptr && Product(factors).fill() > INT32_MAX ? -3 : 0;
    });
}
