// Pairs of nodes whose walks meet, and the coefficients of their mask entry in the products f_a f_b.
//
//   C_ij[a, b] = sum of load(i, u, a) load(j, u, b) over the nodes u that walks of i and of j visit, a and b in any order.
//
// A row is the work of one thread and is summed in the order of its walks: no result depends on the number of threads.
// Below, the features of nodes for masks without coefficients.

#pragma once

#include <cmath>

#include "../array.h"

namespace {

// Walks sorted by start, each of `count`.
template <class T>
struct Table {
    int64_t count;
    const int32_t *start, *visited, *length;
    const T* load;
    // From four arrays, of which `first` is the first one.
    Table(const Call& call, int64_t first)
        : count(call.size(first, 0)), start(call.dense<const int32_t>(first, {count})),
          visited(call.dense<const int32_t>(first + 1, {count})), length(call.dense<const int32_t>(first + 2, {count})),
          load(call.dense<const T>(first + 3, {count})) {}
};

enum { LEFT, RIGHT = LEFT + 4, ROWPTR = RIGHT + 4, ROW, COL, COEFFS, PAIR_ARRAYS };

template <class T>
struct PairCall {
    const Call& call;
    const int64_t nodes = call.size(ROWPTR, 0) - 1, lengths = call.integer(0), threads = call.threads();
    const Table<T> left{call, LEFT}, right{call, RIGHT};
    int64_t* rowptr = call.dense<int64_t>(ROWPTR, {nodes + 1});  // written by the first call, read by the second
    int32_t *row = call.optional<int32_t>(ROW, {ANY}), *col = call.optional<int32_t>(COL, {ANY});  // null in the first call
    T* coeffs = call.optional<T>(COEFFS, {lengths * (lengths + 1) / 2, ANY});  // [Q, pairs]
};

template <class T>
struct Visitor {
    int32_t start, length;
    T load;
};

// Walks of the keys, in the order of the node they visit.
template <class T>
struct Visitors {
    std::vector<int64_t> first;
    std::vector<Visitor<T>> visits;

    Visitors(const Table<T>& table, int64_t nodes) : first(nodes + 1), visits(table.count) {
        for (int64_t e = 0; e < table.count; ++e) ++first[table.visited[e] + 1];
        for (int64_t u = 0; u < nodes; ++u) first[u + 1] += first[u];
        std::vector<int64_t> next(first.begin(), first.end() - 1);
        const T* load = table.load;
        for (int64_t e = 0; e < table.count; ++e)
            visits[next[table.visited[e]]++] = {table.start[e], table.length[e], load[e]};
    }
};

// What a thread keeps of the row it works on.
struct Row {
    std::vector<int64_t> seen, place;  // of each node: the last row that met it, and the first of its coefficients
    std::vector<int64_t> cols;
    std::vector<double> coeffs;
};

template <class T>
class Pairs {
   public:
    explicit Pairs(const PairCall<T>& call)
        : c(call), size(call.lengths * (call.lengths + 1) / 2), keys(call.right, call.nodes), first(call.nodes + 1) {
        for (int64_t e = 0; e < c.left.count; ++e) ++first[c.left.start[e] + 1];
        for (int64_t i = 0; i < c.nodes; ++i) first[i + 1] += first[i];
        rows.resize(c.threads);
        for (int64_t a = 0; a < c.lengths; ++a)
            for (int64_t b = 0; b < c.lengths; ++b)
                monomial.push_back(std::max(a, b) * (std::max(a, b) + 1) / 2 + std::min(a, b));
    }

    void count() {
        in_blocks([&](int64_t i, Row& row) { c.rowptr[i + 1] = meet(i, row); });
        c.rowptr[0] = 0;
        for (int64_t i = 0; i < c.nodes; ++i) c.rowptr[i + 1] += c.rowptr[i];
    }

    void fill() {
        in_blocks([&](int64_t i, Row& row) { fill(i, row); });
    }

   private:
    static constexpr int64_t ROWS = 64;  // of one task
    const PairCall<T>& c;
    const int64_t size;
    const Visitors<T> keys;
    std::vector<int64_t> first;  // walks of each query
    std::vector<Row> rows;       // of each thread
    std::vector<int64_t> monomial;  // number of f_a f_b, for all lengths a and b

    template <class F>
    void in_blocks(const F& run) {
        parallel(c.threads, (c.nodes + ROWS - 1) / ROWS, [&](int64_t task, int64_t thread) {
            Row& row = rows[thread];
            if (row.seen.empty()) row.seen.assign(c.nodes, -1), row.place.resize(c.nodes);
            for (int64_t i = task * ROWS; i < std::min((task + 1) * ROWS, c.nodes); ++i) run(i, row);
        });
    }

    // The nodes whose walks meet those of node i, in any order; their number.
    int64_t meet(int64_t i, Row& row) const {
        row.cols.clear();
        for (int64_t e = first[i]; e < first[i + 1]; ++e)
            for (int64_t r = keys.first[c.left.visited[e]]; r < keys.first[c.left.visited[e] + 1]; ++r) {
                const int64_t j = keys.visits[r].start;
                if (row.seen[j] == i) continue;
                row.seen[j] = i;
                row.cols.push_back(j);
            }
        return row.cols.size();
    }

    // Sorts the nodes that row i has seen. They are close to each other if graphs are small: then their range is read.
    static void sort(std::vector<int64_t>& cols, const std::vector<int64_t>& seen, int64_t i) {
        if (cols.empty()) return;
        const auto [least, most] = std::minmax_element(cols.begin(), cols.end());
        const int64_t first = *least, last = *most;
        if (last - first > 8 * int64_t(cols.size())) return std::sort(cols.begin(), cols.end());
        auto to = cols.begin();
        for (int64_t j = first; j <= last; ++j)
            if (seen[j] == i) *to++ = j;
    }

    void fill(int64_t i, Row& row) const {
        row.cols.clear(), row.coeffs.clear();
        for (int64_t e = first[i]; e < first[i + 1]; ++e) {
            const double load = c.left.load[e];
            const int64_t node = c.left.visited[e], *place = monomial.data() + c.left.length[e] * c.lengths;
            for (int64_t r = keys.first[node]; r < keys.first[node + 1]; ++r) {
                const Visitor<T>& visit = keys.visits[r];
                if (row.seen[visit.start] != i) {
                    row.seen[visit.start] = i, row.place[visit.start] = row.coeffs.size();
                    row.cols.push_back(visit.start);
                    row.coeffs.resize(row.coeffs.size() + size);
                }
                row.coeffs[row.place[visit.start] + place[visit.length]] += load * double(visit.load);
            }
        }
        sort(row.cols, row.seen, i);
        const int64_t count = row.cols.size(), from = c.rowptr[i];
        std::fill(c.row + from, c.row + from + count, i);
        std::copy(row.cols.begin(), row.cols.end(), c.col + from);
        T* out = c.coeffs + from;
        for (int64_t q = 0; q < size; ++q, out += c.rowptr[c.nodes])
            for (int64_t p = 0; p < count; ++p) out[p] = row.coeffs[row.place[row.cols[p]] + q];
    }
};

template <class T>
bool within(const Table<T>& table, int64_t nodes, int64_t lengths) {
    for (int64_t e = 0; e < table.count; ++e)
        if (table.start[e] < 0 || table.start[e] >= nodes || table.visited[e] < 0 || table.visited[e] >= nodes ||
            table.length[e] < 0 || table.length[e] >= lengths)
            return false;
    return true;
}

// The sparse features of nodes that are compared by the random walks graph-nodes kernel: visits of a node at any step
// are merged, and each row is divided by a power of its norm.
//
// DECAY: of each length. FEATURE_COL, FEATURE_VALUE: of each walk, though fewer may be written.
enum { VISITS, DECAY = VISITS + 4, FEATURE_ROWPTR, FEATURE_COL, FEATURE_VALUE, FEATURE_ARRAYS };

// -3 if a walk has nodes or lengths that do not exist, -4 if the walks are not sorted by start and visited node.
template <class T>
int64_t walk_features(const Call& call) {
    const Table<T> w(call, VISITS);
    const int64_t nodes = call.size(FEATURE_ROWPTR, 0) - 1, lengths = call.size(DECAY, 0);
    const double *decay = call.dense<const double>(DECAY, {lengths}), exponent = call.real(0);  // of the squared norm
    int32_t *rowptr = call.dense<int32_t>(FEATURE_ROWPTR, {ANY}), *col = call.dense<int32_t>(FEATURE_COL, {w.count});
    T* value = call.dense<T>(FEATURE_VALUE, {w.count});
    if (!within(w, nodes, lengths)) return -3;
    int64_t e = 0, n = 0;
    rowptr[0] = 0;
    for (int64_t i = 0; i < nodes; ++i) {
        const int64_t first = n;
        double squares = 0;
        while (e < w.count && w.start[e] == i) {
            const int64_t visited = w.visited[e];
            if (n > first && visited < col[n - 1]) return -4;
            double sum = 0;
            for (; e < w.count && w.start[e] == i && w.visited[e] == visited; ++e) sum += decay[w.length[e]] * double(w.load[e]);
            col[n] = visited, value[n++] = sum;
            squares += sum * sum;
        }
        const double scale = std::pow(squares, exponent);
        for (int64_t p = first; p < n; ++p) value[p] *= scale;
        rowptr[i + 1] = n;
    }
    return e == w.count ? 0 : -4;
}

}  // namespace
