// The product C = A B^T of two sparse matrices: its entries, if those of the factors are not negative, where entries of 0
// are left out.
//
// A row of C is the work of one thread and is summed in the order of the entries of A: no result depends on the number of
// threads.

#include <cstdlib>
#include <numeric>
#include <utility>

#include "tasks.h"

namespace {

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
