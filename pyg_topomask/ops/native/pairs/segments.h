// Rows of a sparse pattern, cut so that their gradients can be summed by several threads, always in the same order.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

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
struct Reach {
    std::vector<int32_t> low, high;
    Reach(int64_t rows, const int32_t* rowptr, const int32_t* col) : low(rows), high(rows) {
        for (int64_t i = 0; i < rows; ++i) {
            int32_t least = INT32_MAX, most = -1;
            for (int64_t p = rowptr[i]; p < rowptr[i + 1]; ++p) least = std::min(least, col[p]), most = std::max(most, col[p]);
            low[i] = least, high[i] = most;
        }
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

}  // namespace
