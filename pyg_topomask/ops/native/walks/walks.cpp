// Random walks, their pair tables and merged visits: what compiled.py calls.
//
// Plain C++17 and its standard library.

#include "features.h"
#include "pair_table.h"
#include "tables.h"

namespace {

// 0; -1 if memory is short, -2 at any other exception, -3 if a walk has nodes or lengths that do not exist.
template <class T>
int64_t pair_table(const PairCall& c) try {
    if (!within(c.left, c.nodes, c.lengths) || !within(c.right, c.nodes, c.lengths)) return -3;
    Pairs<T> pairs(c);
    c.row ? pairs.fill() : pairs.count();
    return 0;
} catch (...) {
    return error_code();
}

// As above; -4 if walks are not sorted.
template <class T>
int64_t features(const FeatureCall& c) try {
    if (!within(c.walks, c.nodes, c.lengths)) return -3;
    return walk_features<T>(c) ? 0 : -4;
} catch (...) {
    return error_code();
}

// Makes tables, which `write` copies and `release` deletes, and counts the entries of each, [tables]. Errors as above.
template <class T>
int64_t walk_tables(const WalkCall& c, int64_t* totals, void** made) try {
    auto* tables = new WalkTables<T>(c);
    tables->count(totals);
    *made = tables;
    return 0;
} catch (...) {
    return error_code();
}

template <class T>
int64_t write(void* made, int64_t table, int64_t* start, int64_t* node, int64_t* length, T* load, T* count, T* own) try {
    static_cast<WalkTables<T>*>(made)->write(table, start, node, length, load, count, own);
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

int64_t pair_table_float(const PairCall* call) { return pair_table<float>(*call); }
int64_t pair_table_double(const PairCall* call) { return pair_table<double>(*call); }

int64_t walk_features_float(const FeatureCall* call) { return features<float>(*call); }
int64_t walk_features_double(const FeatureCall* call) { return features<double>(*call); }

int64_t walk_tables_float(const WalkCall* call, int64_t* totals, void** made) { return walk_tables<float>(*call, totals, made); }
int64_t walk_tables_double(const WalkCall* call, int64_t* totals, void** made) { return walk_tables<double>(*call, totals, made); }

int64_t write_walks_float(void* made, int64_t table, int64_t* start, int64_t* node, int64_t* length, float* load,
                          float* count, float* own) {
    return write(made, table, start, node, length, load, count, own);
}
int64_t write_walks_double(void* made, int64_t table, int64_t* start, int64_t* node, int64_t* length, double* load,
                           double* count, double* own) {
    return write(made, table, start, node, length, load, count, own);
}

void release_walks_float(void* made) { delete static_cast<WalkTables<float>*>(made); }
void release_walks_double(void* made) { delete static_cast<WalkTables<double>*>(made); }

}
