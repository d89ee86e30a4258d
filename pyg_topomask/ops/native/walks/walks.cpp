// Random walks, their pair tables and merged visits: what compiled.py calls.
//
// Plain C++17 and its standard library.

#include "features.h"
#include "graph.h"
#include "pair_table.h"
#include "tables.h"

// -3 if a walk has nodes or lengths that do not exist.
EXPORTED int64_t pair_table(const int64_t* block) {
    return for_dtype(block, PAIR_ARRAYS, 1, LEFT + 3, [](const Call& call, auto zero) {
        const PairCall<decltype(zero)> c{call};
        if (!within(c.left, c.nodes, c.lengths) || !within(c.right, c.nodes, c.lengths)) return -3;
        Pairs<decltype(zero)> pairs(c);
        c.row ? pairs.fill() : pairs.count();
        return 0;
    });
}

EXPORTED int64_t walk_features(const int64_t* block) {
    return for_dtype(block, FEATURE_ARRAYS, 1, VISITS + 3, [](const Call& call, auto zero) {
        return walk_features<decltype(zero)>(call);
    });
}

EXPORTED int64_t walk_graph(const int64_t* block) {
    return for_dtype(block, EDGE_ARRAYS, EDGE_NUMBERS, MADE_FACTOR, [](const Call& call, auto zero) {
        return walk_graph<decltype(zero)>(call);
    });
}

// Makes tables, which `write_walks` copies and `release_walks` deletes, and counts the entries of each.
EXPORTED int64_t walk_tables(const int64_t* block) {
    return for_dtype(block, WALK_ARRAYS, WALK_NUMBERS, FACTOR, [](const Call& call, auto zero) {
        const WalkCall<decltype(zero)> c(call);
        int64_t *totals = call.dense<int64_t>(TOTALS, {c.tables}), *address = call.dense<int64_t>(MADE, {1});
        auto made = std::make_unique<WalkTables<decltype(zero)>>(c);
        made->count(totals);
        *address = reinterpret_cast<int64_t>(made.release());
        return 0;
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
        return 0;
    });
}

EXPORTED int64_t release_walks(const int64_t* block) {
    return for_dtype(block, 1, 1, 0, [](const Call& call, auto zero) {
        delete reinterpret_cast<WalkTables<decltype(zero)>*>(call.integer(0));
        return 0;
    });
}
