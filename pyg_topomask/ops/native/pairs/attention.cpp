// Masked attention over the pairs of a sparse pattern, without an array of one number per pair and head.
//
//   out_i = sum_p M_p K_p v_p / sum_p B_p K_p      over the pairs p = (i, j) of row i, with the bounding mask B >= |M|.
//
// K_p is q_i . k_j, or exp(s_p - top_i) with the largest score of the row. A score s_p is q_i . k_j, or its leaky ReLU, or
// q_i . (k_j * e_p) with an edge vector. M_p and B_p are given, or sums of the pair's coefficients with weights. Dropout
// zeroes weights in the numerator. The backward pass computes entries and scores again.
//
// A row is the work of one thread and is summed in the order of its pairs; gradients of keys, values and weights are
// summed over the rows of a segment, then over segments: no result depends on the number of threads. Segments that share
// columns are taken in turns of a few, so that keys, values and gradients of a few only are packed at a time.

#include "attention.h"

namespace {

// Segments are rows, cut so that their gradients can be summed by several threads, always in the same order.
constexpr int64_t SEGMENT_PAIRS = 1 << 17;  // from which a part of the pattern that hangs together is cut
constexpr int64_t JOINED_PAIRS = 1 << 12;   // up to which parts that do not are joined
constexpr int64_t MOST_SEGMENTS = 16;       // of what hangs together
constexpr int64_t PAIRS_PER_COLUMN = 4;     // at least, for each of these segments: its own sums are small beside pairs

struct Segment {
    int64_t from, to;        // rows
    int64_t first, columns;  // columns that its pairs have: those from `first` on
    int64_t reach;           // columns from the first to the last one of a row, at most
    bool shared;             // whether other segments have the same columns; otherwise each column is in one segment
};

// The smallest and the largest column of each row; INT32_MAX and -1 where there is none.
inline void find_reach(int64_t rows, const int32_t* rowptr, const int32_t* col, int32_t* low, int32_t* high) {
    for (int64_t i = 0; i < rows; ++i) {
        int32_t least = INT32_MAX, most = -1;
        for (int64_t p = rowptr[i]; p < rowptr[i + 1]; ++p) least = std::min(least, col[p]), most = std::max(most, col[p]);
        low[i] = least, high[i] = most;
    }
}

struct Reach {
    std::vector<int32_t> found;
    const int32_t *low, *high;
    template <class T>
    explicit Reach(const Problem<T>& c) : found(c.low ? 0 : 2 * c.rows), low(c.low), high(c.high) {
        if (low) return;
        find_reach(c.rows, c.rowptr, c.col, found.data(), found.data() + c.rows);
        low = found.data(), high = low + c.rows;
    }
};

// Cuts rows `from` to `to` into segments of equally many pairs, which share columns; or makes them one segment with the
// given columns.
inline void cut(int64_t from, int64_t to, int64_t first, int64_t columns, const int32_t* rowptr, const Reach& reach,
                std::vector<Segment>& segments) {
    const int64_t pairs = rowptr[to] - rowptr[from], filled = PAIRS_PER_COLUMN * std::max<int64_t>(to - from, 1);
    const int64_t parts = std::clamp<int64_t>(std::min(pairs / SEGMENT_PAIRS, pairs / filled), 1, MOST_SEGMENTS);
    for (int64_t part = 1, row = from; part <= parts; ++part) {
        Segment s{row, row, INT64_MAX, 0, 0, parts > 1};
        const int64_t until = rowptr[from] + pairs * part / parts;
        int64_t last = -1;
        for (; s.to < to && (part == parts || rowptr[s.to] < until); ++s.to) {
            s.first = std::min<int64_t>(s.first, reach.low[s.to]);
            last = std::max<int64_t>(last, reach.high[s.to]);
            s.reach = std::max<int64_t>(s.reach, int64_t(reach.high[s.to]) + 1 - reach.low[s.to]);
        }
        row = s.to;
        if (last < 0) s.first = 0;  // rows without pairs
        s.columns = last + 1 - s.first;
        if (!s.shared) s.first = first, s.columns = columns;
        if (s.to > s.from || !s.shared) segments.push_back(s);
    }
}

// The segments of a pattern. Where rows and columns are the same nodes, graphs that no pair joins are kept apart; small
// ones are joined up to `most` columns.
inline std::vector<Segment> segments_of(
    int64_t rows, int64_t columns, const int32_t* rowptr, const Reach& reach, int64_t most) {
    std::vector<Segment> segments;
    if (rows != columns) {
        cut(0, rows, 0, columns, rowptr, reach, segments);
        return segments;
    }
    std::vector<int64_t> later(rows + 1, INT64_MAX);  // smallest column of this row and all that follow
    for (int64_t i = rows; i-- > 0;) later[i] = std::min<int64_t>(later[i + 1], reach.low[i]);
    int64_t from = 0, farthest = -1;
    for (int64_t i = 0; i < rows; ++i) {
        farthest = std::max<int64_t>(farthest, reach.high[i]);
        const bool apart = farthest <= i && later[i + 1] > i;
        if (!apart && i + 1 < rows) continue;
        if (rowptr[i + 1] - rowptr[from] < JOINED_PAIRS && i + 1 - from < most && i + 1 < rows) continue;
        cut(from, i + 1, from, i + 1 - from, rowptr, reach, segments);
        from = i + 1;
    }
    return segments;
}

// All heads of all rows. A segment that shares no columns is the work of one thread, which packs as many heads as stay in
// the caches, and then takes some rows at a time: heads of a node lie side by side in memory. If segments share columns,
// as many heads as there are threads are computed together: the forward pass packs all columns of these heads, the
// backward pass only those of the segments of a turn.
template <class T, int RV, int DV>
class Run {
   public:
    explicit Run(const Problem<T>& call)
        : c(call), keys(vectors<T>(c.width) * Vec<T>::L), stride(keys + vectors<T>(c.channels) * Vec<T>::L),
          segments(segments_of(c.rows, c.columns, c.rowptr, Reach(c), heads_in_cache(c.heads))),
          windows(c.threads) {
        const int64_t count = segments.size();
        bool alone = false;  // whether heads add to the same gradient of an entry: then they follow each other
        for (int m : {0, 1}) {
            const Entries<T>& x = c.masks[m];
            if (x.grad && x.by_pair) std::fill_n(x.grad, (x.by_head ? c.heads : 1) * c.pairs, T(0));
            if (x.grad && !x.by_pair) number_grads[m].resize(count * c.heads * x.terms);
            alone |= x.grad && x.by_pair && !x.by_head;
        }
        for (const Segment& s : segments) most_columns = std::max(most_columns, s.columns);
        if (c.grad_edge) edge_grads.resize(count * c.heads * c.common_edges * keys);
        const bool apart = std::none_of(segments.begin(), segments.end(), [](const Segment& s) { return s.shared; });
        if (apart && (c.threads == 1 || count > c.threads)) {
            packed.resize(c.threads * c.heads);
            parallel(c.threads, count, [&](int64_t s, int64_t thread) {
                const int64_t together = std::clamp<int64_t>(heads_in_cache(segments[s].columns), 1, c.heads);
                for (int64_t h = 0; h < c.heads; h += together)
                    own_heads(s, h, std::min(h + together, c.heads), &packed[thread * c.heads], windows[thread]);
            });
        } else {
            const int64_t together = alone ? 1 : std::min(c.threads, c.heads);
            packed.resize(c.backward() ? c.threads : together);
            for (int64_t h = 0; h < c.heads; h += together) heads(h, std::min(h + together, c.heads));
        }
        if (c.grad_edge) add_edge_grads();
        for (int m : {0, 1})
            if (c.masks[m].grad && !c.masks[m].by_pair) add_number_grads(number_grads[m], c.masks[m]);
    }

   private:
    static constexpr int64_t CACHE = 1 << 18;  // bytes
    static constexpr int64_t BLOCK = 512;      // columns of one task
    static constexpr int64_t ROWS = 64;
    static constexpr int64_t PART = 8;         // a turn has at least 1/PART of the columns, and two tasks for each thread
    const Problem<T>& c;
    const int64_t keys, stride;
    const std::vector<Segment> segments;
    int64_t most_columns = 0;        // of a segment
    std::vector<Packed<T>> packed;   // of each head, of each thread and head, or in the backward pass of each thread
    std::vector<Array<T>> shared;    // gradients of segments that share columns, of each head and segment of a turn
    std::vector<Window<T>> windows;  // of each thread
    Array<T> edge_grads;             // of common edge vectors: segments, heads, vectors
    std::vector<double> number_grads[2];  // of entries and bounds that are not stored by pair: segments, heads, terms

    T* edge_grads_of(int64_t segment, int64_t head) {
        return edge_grads.data() + (segment * c.heads + head) * c.common_edges * keys;
    }

    Gradients<T> grads_of(int64_t segment, int64_t head, T* columns) {
        const auto of = [&](int m) { return number_grads[m].data() + (segment * c.heads + head) * c.masks[m].terms; };
        return {columns, edge_grads_of(segment, head), {of(0), of(1)}};
    }

    void add_number_grads(const std::vector<double>& from, const Entries<T>& x) const {
        std::vector<double> sums(x.by_head ? c.heads * x.terms : x.terms);
        for (size_t i = 0; i < from.size(); ++i) sums[i % sums.size()] += from[i];
        std::copy(sums.begin(), sums.end(), x.grad);
    }

    void add_edge_grads() {
        T* to = c.grad_edge;
        for (int64_t e = 0; e < c.common_edges; ++e)
            for (int64_t head = 0; head < c.heads; ++head, to += c.width) {
                Array<T> sum(keys, T(0));
                for (size_t s = 0; s < segments.size(); ++s)
                    add<0>(T(1), edge_grads_of(s, head) + e * keys, keys / Vec<T>::L, sum.data());
                copy(sum.data(), c.width, to);
            }
    }

    // The heads of so many columns, or the columns of so many heads, that a cache holds.
    int64_t heads_in_cache(int64_t columns) const { return CACHE / std::max<int64_t>(columns * stride * sizeof(T), 1); }

    // Heads `h` to `until` of a segment that shares no columns, packed in `p`.
    void own_heads(int64_t segment, int64_t h, int64_t until, Packed<T>* p, Window<T>& w) {
        const Segment& s = segments[segment];
        const int64_t size = s.columns * stride, end = s.first + s.columns;
        std::vector<Attention<T, RV, DV>> attention;
        for (int64_t head = h; head < until; ++head) {
            Packed<T>& own = p[head - h];
            own.first = s.first;
            if (int64_t(own.numbers.size()) < size) own.numbers.resize(size);
            if (c.backward()) own.grads.assign(size, T(0));
            T* grads = c.backward() ? own.grads.data() - s.first * stride : nullptr;
            attention.emplace_back(c, head, own, s.reach, grads_of(segment, head, grads));
        }
        for (int64_t j = s.first; j < end; ++j)
            for (int64_t head = h; head < until; ++head) p[head - h].read(c, head, keys, stride, j, j + 1);
        in_windows(s.from, s.to, w, [&] {
            for (const auto& head : attention) c.backward() ? head.backward(w) : head.forward(w);
        });
        if (!c.backward()) return;
        for (int64_t j = s.first, at = 0; j < end; ++j, at += stride)
            for (int64_t head = h; head < until; ++head)
                Packed<T>::template write_grads<false>(c, head, keys, stride, j, j + 1, &p[head - h].grads[at]);
    }

    // Calls run() for each window of rows `from` to `to`.
    template <class F>
    void in_windows(int64_t from, int64_t to, Window<T>& w, const F& run) {
        for (int64_t i = from; i < to; i = w.to) w.take(c, i, to), run();
    }

    // Calls run(head, first, end, window) for blocks of rows or columns `from` to `to` of heads `h` to `until`.
    template <class F>
    void in_blocks(int64_t h, int64_t until, int64_t from, int64_t to, int64_t block, const F& run) {
        const int64_t blocks = (to - from + block - 1) / block;
        parallel(c.threads, (until - h) * blocks, [&](int64_t task, int64_t thread) {
            const int64_t a = from + task % blocks * block;
            run(h + task / blocks, a, std::min(a + block, to), windows[thread]);
        });
    }

    void heads(int64_t h, int64_t until) {
        if (c.backward()) return backward(h, until);
        for (auto& head : packed) head.numbers.resize(c.columns * stride);
        in_blocks(h, until, 0, c.columns, BLOCK, [&](int64_t head, int64_t a, int64_t b, Window<T>&) {
            packed[head - h].read(c, head, keys, stride, a, b);
        });
        int64_t reach = 0;
        for (const Segment& s : segments) reach = std::max(reach, s.reach);
        in_blocks(h, until, 0, c.rows, ROWS, [&](int64_t head, int64_t a, int64_t b, Window<T>& w) {
            const Attention<T, RV, DV> attention(c, head, packed[head - h], reach, {});
            in_windows(a, b, w, [&] { attention.forward(w); });
        });
    }

    void backward(int64_t h, int64_t until) {
        const int64_t count = segments.size(), least = std::max<int64_t>(2 * c.threads / (until - h), 1);
        in_blocks(h, until, 0, c.columns, BLOCK, [&](int64_t head, int64_t a, int64_t b, Window<T>&) {
            for (int64_t j = a; j < b; ++j) {
                if (c.grad_k) std::fill_n(c.grad_k + (j * c.heads + head) * c.width, c.width, T(0));
                if (c.grad_v) std::fill_n(c.grad_v + (j * c.heads + head) * c.channels, c.channels, T(0));
            }
        });
        for (int64_t s = 0, last = 0; s < count; s = last) {
            int64_t columns = 0;
            for (; last < count && (last - s < least || columns < c.columns / PART); ++last)
                columns += segments[last].columns;
            add_segments(h, until, s, last);
        }
    }

    // The share of segments `s` to `last` in the gradients.
    void add_segments(int64_t h, int64_t until, int64_t s, int64_t last) {
        const int64_t count = last - s;
        if (int64_t(shared.size()) < (until - h) * count) shared.resize((until - h) * count);
        parallel(c.threads, (until - h) * count, [&](int64_t task, int64_t thread) {
            add_segment(h + task / count, s + task % count, packed[thread], shared[task], windows[thread]);
        });
        int64_t first = c.columns, end = 0;
        for (int64_t i = s; i < last; ++i)
            first = std::min(first, segments[i].first), end = std::max(end, segments[i].first + segments[i].columns);
        in_blocks(h, until, first, std::max(first, end), BLOCK, [&](int64_t head, int64_t a, int64_t b, Window<T>&) {
            for (int64_t i = s; i < last; ++i) {
                const Segment& from = segments[i];
                const int64_t low = std::max(a, from.first), high = std::min(b, from.first + from.columns);
                if (low >= high) continue;
                const T* grads = &shared[(head - h) * count + i - s][(low - from.first) * stride];
                Packed<T>::template write_grads<true>(c, head, keys, stride, low, high, grads);
            }
        });
    }

    void add_segment(int64_t head, int64_t s, Packed<T>& p, Array<T>& sums, Window<T>& w) {
        const Segment& segment = segments[s];
        const int64_t size = segment.columns * stride;
        p.first = segment.first;
        if (p.numbers.empty()) p.numbers.resize(most_columns * stride);
        p.read(c, head, keys, stride, segment.first, segment.first + segment.columns);
        sums.reserve(most_columns * stride);  // once, because freed memory is seldom returned to the system
        sums.assign(size, T(0));
        const auto grads = grads_of(s, head, sums.data() - segment.first * stride);
        const Attention<T, RV, DV> attention(c, head, p, segment.reach, grads);
        in_windows(segment.from, segment.to, w, [&] { attention.backward(w); });
    }
};

// Common widths are known to the compiler in float32.
inline void run(const Problem<float>& c) {
    const int64_t width = vectors<float>(c.width), channels = vectors<float>(c.channels);
    switch (width == channels ? width : 0) {
        case 1: Run<float, 1, 1>{c}; break;
        case 2: Run<float, 2, 2>{c}; break;
        case 3: Run<float, 3, 3>{c}; break;
        case 4: Run<float, 4, 4>{c}; break;
        default: Run<float, 0, 0>{c};
    }
}

inline void run(const Problem<double>& c) { Run<double, 0, 0>{c}; }

}  // namespace

// The outputs and denominators, or, if there is a gradient, the gradients of those inputs that have room for one.
EXPORTED int64_t pair_means(const int64_t* block) {
    return for_dtype(block, ARRAYS, NUMBERS, Q, [](const Call& call, auto zero) { run(Problem<decltype(zero)>{call}); });
}

// Writes the smallest and the largest column of each row of a pattern.
EXPORTED int64_t pair_reach(const int64_t* block) {
    return checked(block, 4, 0, [](const Call& call) {
        const int64_t rows = call.size(2, 0);
        find_reach(rows, call.dense<const int32_t>(0, {rows + 1}), call.dense<const int32_t>(1, {ANY}),
                   call.dense<int32_t>(2, {rows}), call.dense<int32_t>(3, {rows}));
        return 0;
    });
}
