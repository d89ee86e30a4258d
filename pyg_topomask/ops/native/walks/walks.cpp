// Random walks, their pair tables and merged visits: what compiled.py calls.

#include <cmath>

#include "walkers.h"

namespace {

// Pairs of nodes whose walks meet, and the coefficients of their mask entry in the products f_a f_b, or f_a g_b.
//
//   C_ij[a, b] = sum of load(i, u, a) load(j, u, b) over the nodes u that walks of i and of j visit; of f_a f_b, a and b
//   are in any order.
//
// A row is the work of one thread and is summed in the order of its walks: no result depends on the number of threads.

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
    const bool ordered = call.integer(1);
    const int64_t size = ordered ? lengths * lengths : lengths * (lengths + 1) / 2;
    const Table<T> left{call, LEFT}, right{call, RIGHT};
    int64_t* rowptr = call.dense<int64_t>(ROWPTR, {nodes + 1});  // written by the first call, read by the second
    int32_t *row = call.optional<int32_t>(ROW, {ANY}), *col = call.optional<int32_t>(COL, {ANY});  // null in the first call
    T* coeffs = call.optional<T>(COEFFS, {size, ANY});  // [Q, pairs]
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
        : c(call), size(call.size), keys(call.right, call.nodes), first(call.nodes + 1) {
        for (int64_t e = 0; e < c.left.count; ++e) ++first[c.left.start[e] + 1];
        for (int64_t i = 0; i < c.nodes; ++i) first[i + 1] += first[i];
        rows.resize(c.threads);
        for (int64_t a = 0; a < c.lengths; ++a)
            for (int64_t b = 0; b < c.lengths; ++b)
                monomial.push_back(c.ordered ? a * c.lengths + b : std::max(a, b) * (std::max(a, b) + 1) / 2 + std::min(a, b));
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
    std::vector<int64_t> monomial;  // number of f_a f_b or f_a g_b, for all lengths a and b

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

// The graph that walkers move on, from edges in any order: as `to_csr`, `sym_normalize` and `walk_graph` of plain torch.
enum { EDGES, WEIGHT, PTR, DRAWS, MADE_ROWPTR, MADE_COL, MADE_FACTOR, MADE_STREAM, EDGE_ARRAYS };
enum { SEED, EPOCH, GOES_ON, IMPORTANCE, EDGE_NUMBERS };

// Returns the number of distinct edges of nonzero weight, or -3 if the weights of a node add up to a negative number.
template <class T>
int64_t walk_graph(const Call& call) {
    const int64_t edges = call.size(EDGES, 1), nodes = call.size(MADE_ROWPTR, 0) - 1, graphs = call.size(PTR, 0) - 1;
    const int64_t *from = call.dense<const int64_t>(EDGES, {2, edges}), *to = from + edges;
    const int64_t *ptr = call.dense<const int64_t>(PTR, {graphs + 1}), *draws = call.optional<const int64_t>(DRAWS, {graphs});
    const double* weight = call.optional<const double>(WEIGHT, {edges});
    int64_t *rowptr = call.dense<int64_t>(MADE_ROWPTR, {nodes + 1}), *col = call.dense<int64_t>(MADE_COL, {edges});
    int64_t* stream = call.dense<int64_t>(MADE_STREAM, {nodes});
    T* factor = call.dense<T>(MADE_FACTOR, {edges});
    std::vector<uint32_t> order(edges), last(nodes + 1);  // edges by row, and the end of each row
    for (int64_t e = 0; e < edges; ++e) ++last[from[e] + 1];
    for (int64_t node = 0; node < nodes; ++node) last[node + 1] += last[node];
    for (int64_t e = 0; e < edges; ++e) order[last[from[e]]++] = e;
    std::vector<double> sum(edges), root(nodes, 1.0);
    int64_t count = 0;
    for (int64_t node = 0, i = 0; node < nodes; ++node) {
        double top = 0, strength = 0;  // the largest weight, and their sum relative to it
        std::stable_sort(order.data() + i, order.data() + last[node], [&](uint32_t a, uint32_t b) { return to[a] < to[b]; });
        for (rowptr[node] = count; i < last[node]; count += sum[count] != 0) {
            col[count] = to[order[i]];
            for (sum[count] = 0; i < last[node] && to[order[i]] == col[count]; ++i) sum[count] += weight ? weight[order[i]] : 1;
            top = std::max(top, std::abs(sum[count]));
        }
        for (int64_t e = rowptr[node]; e < count; ++e) strength += sum[e] / top;
        if (strength < 0) return -3;
        if (strength > 0) root[node] = std::sqrt(top) * std::sqrt(strength);
    }
    rowptr[nodes] = count;
    for (int64_t g = 0; g < graphs; ++g) {
        const int64_t size = ptr[g + 1] - ptr[g];
        uint64_t hash = 0;
        for (int64_t row = 0; row < size; ++row) {
            const int64_t *own = rowptr + ptr[g] + row, degree = own[1] - own[0];
            for (int64_t e = own[0]; e < own[1]; ++e) {
                const double normalized = sum[e] / root[ptr[g] + row] / root[col[e]];
                factor[e] = call.integer(IMPORTANCE) ? T(normalized) * T(degree / call.real(GOES_ON)) : T(1);
                hash += mix((row * size + col[e] - ptr[g] + 1) * GOLDEN);
            }
        }
        for (const int64_t value : {call.integer(SEED), call.integer(EPOCH), size})
            hash = mix(hash * 0xBF58476D1CE4E5B9 + value + GOLDEN);
        if (draws) hash = draws[g];
        for (int64_t row = 0; row < size; ++row) stream[ptr[g] + row] = mix(row * GOLDEN + hash + GOLDEN);
    }
    return count;
}

}  // namespace

// -3 if a walk has nodes or lengths that do not exist, -4 if the walks of queries are not sorted by start.
EXPORTED int64_t pair_table(const int64_t* block) {
    return for_dtype(block, PAIR_ARRAYS, 2, LEFT + 3, [](const Call& call, auto zero) {
        const PairCall<decltype(zero)> c{call};
        if (!within(c.left, c.nodes, c.lengths) || !within(c.right, c.nodes, c.lengths)) return -3;
        if (!std::is_sorted(c.left.start, c.left.start + c.left.count)) return -4;
        Pairs<decltype(zero)> pairs(c);
        c.row ? pairs.fill() : pairs.count();
        return 0;
    });
}

EXPORTED int64_t walk_features(const int64_t* block) {
    const auto run = [](const Call& call, auto zero) { return walk_features<decltype(zero)>(call); };
    return for_dtype(block, FEATURE_ARRAYS, 1, VISITS + 3, run);
}

EXPORTED int64_t walk_graph(const int64_t* block) {
    const auto run = [](const Call& call, auto zero) { return walk_graph<decltype(zero)>(call); };
    return for_dtype(block, EDGE_ARRAYS, EDGE_NUMBERS, MADE_FACTOR, run);
}

// Makes tables, which `write_walks` copies and `release_walks` deletes, and counts the entries of each.
EXPORTED int64_t walk_tables(const int64_t* block) {
    return for_dtype(block, WALK_ARRAYS, WALK_NUMBERS, FACTOR, [](const Call& call, auto zero) {
        const WalkCall<decltype(zero)> c(call);
        int64_t *totals = call.dense<int64_t>(TOTALS, {c.tables}), *address = call.dense<int64_t>(MADE, {1});
        auto made = std::make_unique<WalkTables<decltype(zero)>>(c);
        made->count(totals);
        *address = reinterpret_cast<int64_t>(made.release());
    });
}

// Writes one of the tables that were made: index, length, load, count and, if wanted, the products of blocks.
EXPORTED int64_t write_walks(const int64_t* block) {
    return for_dtype(block, 5, 2, 2, [](const Call& call, auto zero) {
        using T = decltype(zero);
        const int64_t total = call.size(1, 0);
        int64_t* index = call.dense<int64_t>(0, {2, total});
        reinterpret_cast<WalkTables<T>*>(call.integer(0))
            ->write(call.integer(1), index, index + total, call.dense<int64_t>(1, {total}), call.dense<T>(2, {total}),
                    call.dense<T>(3, {total}), call.optional<T>(4, {ANY, ANY}));
    });
}

EXPORTED int64_t release_walks(const int64_t* block) {
    return for_dtype(block, 1, 1, 0, [](const Call& call, auto zero) {
        delete reinterpret_cast<WalkTables<decltype(zero)>*>(call.integer(0));
    });
}
