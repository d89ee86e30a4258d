// The k largest inner products of every query with the keys of its own graph, exactly, on a CPU.
//
// Flat search: tiles of QB queries by KV vectors of keys stay in registers; a comparison with each query's k-th best
// so far lets nearly all scores go, and the rest are inserted into a sorted list.
// Pruned search: keys in k-d order, in leaves of one vector and groups of leaves; a leaf is skipped where its ball or
// its box bounds the inner product below the k-th best of all queries of a block. Bounds carry a margin for rounding,
// and scores are summed in the same order as in the flat search, so both return the same pairs.
//
// Plain C++17 and its standard library; the vector width is that of the flags it is compiled with.

#include "tree.h"

namespace {

// One graph under one head: rows of q, k and out begin at the graph's first.
template <class T>
struct Problem {
    const T *q, *k;
    int64_t num_q, num_k, key_offset;
    int64_t* out;
    int keep;  // min(topk, num_k)
    T* packed;
};

template <class T>
void search_flat(const Problem<T>& p, int dim, int64_t width, int64_t a, int64_t b) {
    constexpr int L = Vec<T>::L;
    const Keys<T> keys{p.packed, nullptr, p.num_k};
    const int64_t tiles = div_up(p.num_k, L), chunk = div_up(CHUNK_BYTES, BYTES * dim * KV) * KV;
    std::vector<Block<T>> blocks;
    std::vector<int64_t> rows(b - a);
    std::iota(rows.begin(), rows.end(), a);
    for (int64_t at = a; at < b; at += QB) {
        blocks.emplace_back(dim, p.keep);
        blocks.back().start(p.q, &rows[at - a], int(std::min<int64_t>(QB, b - at)));
    }
    for (int64_t from = 0; from < tiles; from += chunk)
        for (auto& block : blocks)
            for (int64_t t = from; t < std::min(from + chunk, tiles); t += KV) {
                int64_t tile[KV];
                std::iota(tile, tile + KV, t);
                block.visit(keys, tile);
            }
    for (size_t i = 0; i < blocks.size(); ++i)
        blocks[i].store(&rows[i * QB], int(std::min<int64_t>(QB, b - a - i * QB)), p.key_offset, width, p.out);
}

// Sets `share` to that of the leaves visited; false and no result where a sample visits more than `max_visit`.
template <class T>
bool search_pruned(const Problem<T>& p, int dim, int64_t width, double max_visit, int64_t threads, double& share) {
    const Tree<T> tree(p.k, p.num_k, dim, threads);
    std::vector<T> direction(p.q, p.q + p.num_q * dim);  // the best keys of a query do not depend on its length
    for (int64_t i = 0; i < p.num_q; ++i) {
        T* row = &direction[i * dim];
        const T norm = std::sqrt(std::inner_product(row, row + dim, row, T(0)));
        for (int j = 0; j < dim && norm > 0; ++j) row[j] /= norm;
    }
    std::vector<int32_t> order(p.num_q);
    std::iota(order.begin(), order.end(), 0);
    kd_order(direction.data(), dim, order.data(), p.num_q, QB, 1, threads);
    const int64_t blocks = div_up(p.num_q, QB), sample = std::min<int64_t>(blocks, 32), grain = TASK_QUERIES / QB;
    std::atomic<int64_t> visited(0);
    auto run = [&](int64_t first, int64_t last, int64_t step) {
        Block<T> block(dim, p.keep);
        std::vector<T> bound;
        std::vector<std::pair<T, int32_t>> groups;
        for (int64_t b = first; b < last; b += step) {
            const int count = int(std::min<int64_t>(QB, p.num_q - b * QB));
            int64_t row[QB];
            std::copy(&order[b * QB], &order[b * QB] + count, row);
            block.start(p.q, row, count);
            visited += tree.search(block, bound, groups);
            block.store(row, count, p.key_offset, width, p.out);
        }
    };
    if (max_visit < 1) {
        run(0, blocks, blocks / sample);
        share = double(visited) / double(div_up(blocks, blocks / sample) * tree.leaves);
        if (share > max_visit) return false;
    }
    visited = 0;
    parallel(threads, div_up(blocks, grain), [&](int64_t t, int64_t) { run(t * grain, std::min((t + 1) * grain, blocks), 1); });
    share = double(visited) / double(blocks * tree.leaves);
    return true;
}

template <class T>
void search_all_flat(std::vector<Problem<T>>& problems, int dim, int64_t width, int64_t threads) {
    constexpr int L = Vec<T>::L;
    size_t size = 0;
    std::vector<int64_t> first(1, 0);  // task at which each problem begins
    for (const auto& p : problems) {
        size += size_t(div_up(p.num_k, L * KV)) * L * KV * dim;
        first.push_back(first.back() + div_up(p.num_q, TASK_QUERIES));
    }
    Array<T> packed(size);
    T* at = packed.data();
    for (auto& p : problems) {
        p.packed = at;
        for (int64_t a = 0; a < p.num_k; a += L) pack(p.k + a * dim, nullptr, std::min<int64_t>(L, p.num_k - a), dim, at + a * dim);
        at += div_up(p.num_k, L * KV) * L * KV * dim;
    }
    parallel(threads, first.back(), [&](int64_t task, int64_t) {
        const size_t i = size_t(std::upper_bound(first.begin(), first.end(), task) - first.begin()) - 1;
        const int64_t a = (task - first[i]) * TASK_QUERIES;
        search_flat(problems[i], dim, width, a, std::min(a + TASK_QUERIES, problems[i].num_q));
    });
}

// q [heads, num_q, dim], k [heads, num_k, dim], out [heads, num_q, topk] filled with -1; graph g has rows
// ptr_q[g] .. ptr_q[g + 1]. Graphs of at least `prune_from` keys are pruned unless a sample visits more than
// `max_visit` of the leaves. Returns the largest share visited, 1 without pruning, -1 if memory is
// short, -2 at any other exception.
template <class T>
double search(const T* q, const T* k, int64_t heads, int64_t num_q, int64_t num_k, int64_t dim, int64_t graphs,
              const int64_t* ptr_q, const int64_t* ptr_k, int64_t topk, int64_t prune_from, double max_visit,
              int64_t threads, int64_t* out) try {
    std::vector<Problem<T>> flat;
    double share = -1;
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t g = 0; g < graphs; ++g) {
            const int64_t n = ptr_k[g + 1] - ptr_k[g], m = ptr_q[g + 1] - ptr_q[g];
            if (n == 0 || m == 0) continue;
            Problem<T> p{q + (h * num_q + ptr_q[g]) * dim, k + (h * num_k + ptr_k[g]) * dim, m, n, ptr_k[g],
                         out + (h * num_q + ptr_q[g]) * topk, int(std::min(topk, n)), nullptr};
            if (n >= prune_from) {
                double visited = 0;
                const bool done = search_pruned(p, int(dim), topk, max_visit, threads, visited);
                share = std::max(share, visited);
                if (done) continue;
            }
            flat.push_back(p);
        }
    if (!flat.empty()) search_all_flat(flat, int(dim), topk, threads);
    return share < 0 ? 1.0 : share;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

double topk_float(const float* q, const float* k, int64_t heads, int64_t num_q, int64_t num_k, int64_t dim,
                  int64_t graphs, const int64_t* ptr_q, const int64_t* ptr_k, int64_t topk, int64_t prune_from,
                  double max_visit, int64_t threads, int64_t* out) {
    return search(q, k, heads, num_q, num_k, dim, graphs, ptr_q, ptr_k, topk, prune_from, max_visit, threads, out);
}

double topk_double(const double* q, const double* k, int64_t heads, int64_t num_q, int64_t num_k, int64_t dim,
                   int64_t graphs, const int64_t* ptr_q, const int64_t* ptr_k, int64_t topk, int64_t prune_from,
                   double max_visit, int64_t threads, int64_t* out) {
    return search(q, k, heads, num_q, num_k, dim, graphs, ptr_q, ptr_k, topk, prune_from, max_visit, threads, out);
}

}
