// The k largest inner products of every query with the keys of its own graph, exactly, on a CPU.
//
// Flat search: tiles of QB queries by KV vectors of keys stay in registers; a comparison with each query's k-th best
// so far discards nearly all scores, and the rest are inserted into a sorted list.
// Pruned search: close keys lie in leaves of one vector, and leaves in groups; a query visits the leaves whose balls
// bound its inner products by no less than a number that its k-th best is known to reach. Bounds carry a margin for
// rounding, and scores are summed in the same order as in the flat search, so both return the same pairs.

#include "tree.h"

namespace {

constexpr int SAMPLE_QUERIES = 128;  // from which the share of visited leaves is estimated

// One graph under one head: rows of q, k and out begin at the graph's first.
template <class T>
struct Problem {
    const T *q, *k;
    int64_t num_q, num_k, key_offset;
    int64_t* out;
    int64_t width;  // of a row of `out`
    int dim, keep;  // keep: min(topk, num_k)
    T* packed;

    // The queries `row` in blocks.
    std::vector<Block<T>> blocks(const int64_t* row, int64_t count) const {
        std::vector<Block<T>> blocks;
        blocks.reserve(div_up(count, QB));
        for (int64_t i = 0; i < count; i += QB) {
            blocks.emplace_back(dim, keep);
            blocks.back().start(q, row + i, int(std::min<int64_t>(QB, count - i)));
        }
        return blocks;
    }

    // Calls run(blocks, number of their first query) for the queries `row`.
    template <class F>
    void in_tasks(int64_t threads, const std::vector<int64_t>& row, const F& run) const {
        parallel(threads, div_up(row.size(), TASK_QUERIES), [&](int64_t task, int64_t) {
            const int64_t first = task * TASK_QUERIES, rest = int64_t(row.size()) - first;
            auto some = blocks(&row[first], std::min<int64_t>(TASK_QUERIES, rest));
            run(some, first);
        });
    }

    void store(const int64_t* row, const std::vector<Block<T>>& blocks) const {
        for (size_t b = 0; b < blocks.size(); ++b) blocks[b].store(row + b * QB, key_offset, width, out);
    }
};

template <class T>
void search_flat(const Problem<T>& p, int64_t a, int64_t b) {
    const int64_t tiles = div_up(p.num_k, Vec<T>::L), chunk = div_up(CHUNK_BYTES, VECTOR_BYTES * p.dim * KV) * KV;
    std::vector<int64_t> rows(b - a);
    std::iota(rows.begin(), rows.end(), a);
    std::vector<Block<T>> blocks = p.blocks(rows.data(), b - a);
    for (auto& block : blocks) block.raise_floors(p.packed, p.num_k);
    for (int64_t from = 0; from < tiles; from += chunk)
        for (auto& block : blocks)
            for (int64_t t = from; t < std::min(from + chunk, tiles); t += KV) block.visit(p.packed, p.num_k, t);
    p.store(rows.data(), blocks);
}

// Queries of one direction side by side: `row` sorted by each query's most promising leaf.
template <class T>
std::vector<int64_t> sort_queries(const Problem<T>& p, const Tree<T>& tree, const std::vector<int64_t>& row,
                                  int64_t threads) {
    std::vector<int32_t> home(row.size());
    p.in_tasks(threads, row, [&](const std::vector<Block<T>>& blocks, int64_t first) {
        TreeSearch<T> search{tree};
        for (const auto& block : blocks) search.homes(block, &home[first]), first += QB;
    });
    std::vector<int64_t> next(tree.leaf.nodes + 1), sorted(row.size());
    for (int32_t leaf : home) ++next[leaf + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (size_t i = 0; i < row.size(); ++i) sorted[next[home[i]]++] = row[i];
    return sorted;
}

// Search for the queries `row`; returns the share of the leaves that they visit.
template <class T>
double search_rows(const Problem<T>& p, const Tree<T>& tree, const std::vector<int64_t>& row, int64_t threads) {
    const std::vector<int64_t> sorted = sort_queries(p, tree, row, threads);
    std::atomic<int64_t> visited(0);
    p.in_tasks(threads, sorted, [&](std::vector<Block<T>>& blocks, int64_t first) {
        visited += TreeSearch<T>{tree}.run(blocks);
        p.store(&sorted[first], blocks);
    });
    return double(visited) / double(row.size() * tree.leaf.nodes);
}

// Sets `share` to that of the leaves visited; false and no result where a sample visits more than `max_visit`.
template <class T>
bool search_pruned(const Problem<T>& p, double max_visit, int64_t threads, double& share) {
    const Tree<T> tree(p.k, p.num_k, p.dim, threads);
    std::vector<int64_t> row;
    if (max_visit < 1) {
        const int64_t step = div_up(p.num_q, SAMPLE_QUERIES);
        for (int64_t i = 0; i < p.num_q; i += step) row.push_back(i);
        share = search_rows(p, tree, row, threads);
        if (share > max_visit) return false;
        if (step == 1) return true;
    }
    row.resize(p.num_q);
    std::iota(row.begin(), row.end(), 0);
    share = search_rows(p, tree, row, threads);
    return true;
}

template <class T>
void search_all_flat(std::vector<Problem<T>>& problems, int64_t threads) {
    constexpr int L = Vec<T>::L;
    size_t size = 0;
    std::vector<int64_t> first(1, 0);  // task at which each problem begins
    for (const auto& p : problems) {
        size += size_t(div_up(p.num_k, L * KV)) * L * KV * p.dim;
        first.push_back(first.back() + div_up(p.num_q, TASK_QUERIES));
    }
    Array<T> packed(size);
    T* at = packed.data();
    for (auto& p : problems) {
        p.packed = at;
        for (int64_t a = 0; a < p.num_k; a += L)
            pack(p.k + a * p.dim, nullptr, std::min<int64_t>(L, p.num_k - a), p.dim, at + a * p.dim);
        at += div_up(p.num_k, L * KV) * L * KV * p.dim;
    }
    parallel(threads, first.back(), [&](int64_t task, int64_t) {
        const size_t i = size_t(std::upper_bound(first.begin(), first.end(), task) - first.begin()) - 1;
        const int64_t a = (task - first[i]) * TASK_QUERIES;
        search_flat(problems[i], a, std::min(a + TASK_QUERIES, problems[i].num_q));
    });
}

enum { Q, K, PTR_Q, PTR_K, INDEX, SHARE, ARRAYS };
enum { PRUNE_FROM, MAX_VISIT, NUMBERS };

// q [heads, num_q, dim], k [heads, num_k, dim], index [heads, num_q, topk] filled with -1; graph g has rows
// ptr_q[g] .. ptr_q[g + 1]. Graphs of at least `prune_from` keys are pruned unless a sample visits more than
// `max_visit` of the leaves. Writes the largest share visited, 1 without pruning.
template <class T>
void search(const Call& call) {
    const int64_t heads = call.size(Q, 0), num_q = call.size(Q, 1), dim = call.size(Q, 2), num_k = call.size(K, 1);
    const int64_t graphs = call.size(PTR_Q, 0) - 1, topk = call.size(INDEX, 2), threads = call.threads();
    const T *q = call.dense<const T>(Q, {heads, num_q, dim}), *k = call.dense<const T>(K, {heads, num_k, dim});
    const int64_t* ptr_q = call.dense<const int64_t>(PTR_Q, {graphs + 1});
    const int64_t* ptr_k = call.dense<const int64_t>(PTR_K, {graphs + 1});
    int64_t* out = call.dense<int64_t>(INDEX, {heads, num_q, topk});
    std::vector<Problem<T>> flat;
    double share = -1;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t g = 0; g < graphs; ++g) {
            const int64_t n = ptr_k[g + 1] - ptr_k[g], m = ptr_q[g + 1] - ptr_q[g];
            if (n == 0 || m == 0) continue;
            Problem<T> p{q + (h * num_q + ptr_q[g]) * dim, k + (h * num_k + ptr_k[g]) * dim, m, n, ptr_k[g],
                         out + (h * num_q + ptr_q[g]) * topk, topk, int(dim), int(std::min(topk, n)), nullptr};
            if (n >= call.integer(PRUNE_FROM)) {
                double visited = 0;
                const bool done = search_pruned(p, call.real(MAX_VISIT), threads, visited);
                share = std::max(share, visited);
                if (done) continue;
            }
            flat.push_back(p);
        }
    if (!flat.empty()) search_all_flat(flat, threads);
    *call.dense<double>(SHARE, {1}) = share < 0 ? 1.0 : share;
}

}  // namespace

EXPORTED int64_t topk_search(const int64_t* block) {
    return for_dtype(block, ARRAYS, NUMBERS, Q, [](const Call& call, auto zero) { search<decltype(zero)>(call); });
}
