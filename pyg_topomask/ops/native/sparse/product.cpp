// The product C = A B^T of two sparse matrices whose entries are not negative; entries of 0 are left out.
//
// A row of C is the work of one thread and is summed in the order of the entries of A: no result depends on the number of
// threads.
//
// Plain C++17 and its standard library.

#include <cstdlib>

#include "../parallel.h"

namespace {

// Rows, columns and entries, sorted by row.
struct Matrix {
    const int32_t *rowptr, *col;
    const void* value;
};

// The fields and their order are those of `_Call` in compiled.py.
struct Call {
    int64_t rows, columns, inner, threads;  // C is [rows, columns], and A has `inner` columns
    Matrix left, right;
    int64_t* first;      // [rows + 1], place for the entries of each row: written by the first call, read by the second
    int32_t *rowptr, *row, *col;  // the result; null in the first call
    void* value;
    int64_t distance;    // sum of |row - column| of all entries
};

// B^T: the entries of each column of B, in the order of their rows.
template <class T>
struct Columns {
    struct Entry {
        int32_t row;
        T value;
    };
    std::vector<int64_t> first;
    std::vector<Entry> entries;

    explicit Columns(const Call& c) : first(c.inner + 1), entries(c.right.rowptr[c.columns]) {
        const int64_t count = entries.size();
        for (int64_t e = 0; e < count; ++e) ++first[c.right.col[e] + 1];
        for (int64_t u = 0; u < c.inner; ++u) first[u + 1] += first[u];
        std::vector<int64_t> next(first.begin(), first.end() - 1);
        const T* value = static_cast<const T*>(c.right.value);
        for (int32_t i = 0; i < c.columns; ++i)
            for (int32_t e = c.right.rowptr[i]; e < c.right.rowptr[i + 1]; ++e)
                entries[next[c.right.col[e]]++] = {i, value[e]};
    }
};

// Terms of a row of C, and the columns between which they lie.
struct Span {
    int64_t terms = 0, low = INT32_MAX, high = -1;
    int64_t width() const { return std::max<int64_t>(high - low + 1, 0); }
    // Whether all columns between them are searched for entries, which is faster than to sort.
    bool dense() const { return width() <= 2 * terms; }
};

template <class T>
class Product {
   public:
    explicit Product(Call& call) : c(call), columns(call) {}

    // Places for the entries of each row.
    void count() {
        c.first[0] = 0;
        for (int64_t i = 0; i < c.rows; ++i) {
            const Span s = span(i);
            c.first[i + 1] = c.first[i] + (s.dense() ? s.width() : s.terms);
        }
    }

    void fill() {
        const int64_t tasks = (c.rows + ROWS - 1) / ROWS;
        std::vector<std::vector<T>> sums(c.threads);
        std::vector<int64_t> distances(tasks), counts(c.rows);
        parallel(c.threads, tasks, [&](int64_t task, int64_t thread) {
            if (sums[thread].empty()) sums[thread].resize(c.columns);
            for (int64_t i = task * ROWS; i < std::min((task + 1) * ROWS, c.rows); ++i)
                counts[i] = fill(i, sums[thread].data(), distances[task]);
        });
        for (const int64_t distance : distances) c.distance += distance;
        c.rowptr[0] = 0;
        for (int64_t i = 0; i < c.rows; ++i) {  // closes the gaps
            const int64_t from = c.first[i], to = c.rowptr[i], count = counts[i];
            if (from != to) std::memmove(c.col + to, c.col + from, count * sizeof(int32_t));
            if (from != to) std::memmove(value() + to, value() + from, count * sizeof(T));
            std::fill_n(c.row + to, count, int32_t(i));
            c.rowptr[i + 1] = to + count;
        }
    }

   private:
    static constexpr int64_t ROWS = 64;  // of one task
    Call& c;
    const Columns<T> columns;

    T* value() const { return static_cast<T*>(c.value); }

    Span span(int64_t i) const {
        Span s;
        for (int32_t e = c.left.rowptr[i]; e < c.left.rowptr[i + 1]; ++e) {
            const int64_t u = c.left.col[e], count = columns.first[u + 1] - columns.first[u];
            if (count == 0) continue;
            s.terms += count;
            s.low = std::min<int64_t>(s.low, columns.entries[columns.first[u]].row);
            s.high = std::max<int64_t>(s.high, columns.entries[columns.first[u + 1] - 1].row);
        }
        return s;
    }

    // Writes the entries of a row to their place, and returns their number. `sums`, one for each column, are 0 before and
    // after.
    int64_t fill(int64_t i, T* sums, int64_t& distance) const {
        const Span s = span(i);
        const T* left = static_cast<const T*>(c.left.value);
        std::vector<int32_t> met;  // columns of the row, some of them several times
        for (int32_t e = c.left.rowptr[i]; e < c.left.rowptr[i + 1]; ++e) {
            const int64_t u = c.left.col[e], last = columns.first[u + 1];
            for (int64_t p = columns.first[u]; p < last; ++p) {
                const auto& entry = columns.entries[p];
                if (!s.dense() && sums[entry.row] == 0) met.push_back(entry.row);
                sums[entry.row] += left[e] * entry.value;
            }
        }
        int32_t* col = c.col + c.first[i];
        T* to = value() + c.first[i];
        int64_t count = 0;
        const auto write = [&](int64_t j) {  // without a branch
            col[count] = j, to[count] = sums[j];
            count += sums[j] != 0;
            sums[j] = 0;
        };
        std::sort(met.begin(), met.end());
        for (const int32_t j : met) write(j);
        for (int64_t j = s.low; s.dense() && j <= s.high; ++j) write(j);
        for (int64_t p = 0; p < count; ++p) distance += std::abs(i - col[p]);
        return count;
    }
};

// 0 if all went well, -1 if memory is short, -2 at any other exception.
template <class T>
int run_safely(Call& c) try {
    Product<T> product(c);
    c.row ? product.fill() : product.count();
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

int sparse_product_float(Call* call) { return run_safely<float>(*call); }

int sparse_product_double(Call* call) { return run_safely<double>(*call); }
}
