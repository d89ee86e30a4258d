// The walk tables of all starts, made by several threads.

#pragma once

#include <memory>

#include "walkers.h"

namespace {

template <class T>
struct Entry {
    int64_t place;  // as in `Visit`
    T load, count;  // means over walkers
};

// The entries of consecutive starts in one table.
template <class T>
struct Part {
    std::vector<uint32_t> entries_of_start;
    std::unique_ptr<Entry<T>[]> entries;
    std::vector<double> own;
    int64_t begin = 0, size = 0;  // entries of the table before this part, and in it
};

// Parts of a table follow each other.
template <class T>
class WalkTables {
   public:
    explicit WalkTables(const WalkCall& call)
        : c(call), size(starts_of_part(call)), bits(bits_of(call.length)), parts_of_table((call.starts + size - 1) / size) {
        if (c.nodes > UINT32_MAX) throw std::length_error("too many nodes");
        parts.resize(c.tables * parts_of_table);
        std::vector<Edge<T>> edges(c.rowptr[c.nodes]);
        for (size_t e = 0; e < edges.size(); ++e) edges[e] = {uint32_t(c.col[e]), static_cast<const T*>(c.factor)[e]};
        std::vector<Walkers<T>> of_thread(c.threads, Walkers<T>(c, edges));
        parallel(c.threads, parts.size(), [&](int64_t task, int64_t thread) {
            const int64_t first = task % parts_of_table * size, last = std::min(first + size, c.starts);
            of_thread[thread].walk(first, last, task / parts_of_table);
            fill(parts[task], of_thread[thread], last - first);
        });
    }

    // Number of entries of each table.
    void count(int64_t* totals) {
        for (size_t task = 0; task < parts.size(); ++task) {
            parts[task].begin = totals[task / parts_of_table];
            totals[task / parts_of_table] += parts[task].size;
        }
    }

    // Writes start, visited node, length, load and count of one table, and the products of its blocks. Its parts are then
    // empty.
    void write(int64_t table, int64_t* start, int64_t* node, int64_t* length, T* load, T* count, T* own) {
        const int64_t lengths = (int64_t(1) << bits) - 1, products = (c.length + 1) * (c.length + 2) / 2;
        parallel(c.threads, parts_of_table, [&](int64_t number, int64_t) {
            Part<T> part;
            std::swap(part, parts[table * parts_of_table + number]);
            int64_t* to = start + part.begin;
            for (size_t s = 0; s < part.entries_of_start.size(); ++s)
                to = std::fill_n(to, part.entries_of_start[s], c.start[number * size + s]);
            for (int64_t i = 0, at = part.begin; i < part.size; ++i, ++at) {
                const Entry<T>& entry = part.entries[i];
                node[at] = entry.place >> bits, length[at] = entry.place & lengths;
                load[at] = entry.load, count[at] = entry.count;
            }
            const double pairs = double(c.walks) * double(c.walks);
            for (size_t i = 0; i < part.own.size(); ++i) own[number * size * products + i] = T(part.own[i] / pairs);
        });
    }

   private:
    static constexpr int64_t VISITS = 1 << 13;  // of one part, about; they and their copy fit a core's cache

    const WalkCall c;
    const int64_t size;  // starts of one part
    const int64_t bits, parts_of_table;
    std::vector<Part<T>> parts;

    static int64_t starts_of_part(const WalkCall& c) {
        const int64_t hops = c.halts_below ? std::min(c.length, (int64_t(1) << 32) / c.halts_below) : c.length;
        return std::max<int64_t>(1, VISITS / (c.walks * (hops + 1)));
    }

    void fill(Part<T>& part, const Walkers<T>& found, int64_t starts) {
        const int64_t lengths = (int64_t(1) << bits) - 1;
        const double walks = c.walks;
        part.entries_of_start.assign(starts, 0);
        part.size = found.num_sums;
        part.entries.reset(new Entry<T>[part.size]);
        for (int64_t i = 0; i < part.size; ++i) {
            const Sum& sum = found.sums[i];
            const double count = sum.place & lengths ? double(sum.count) : sum.load;
            part.entries[i] = {sum.place, T(sum.load / walks), T(count / walks)};
            ++part.entries_of_start[sum.row];
        }
        part.own = found.own;
    }
};

}  // namespace
