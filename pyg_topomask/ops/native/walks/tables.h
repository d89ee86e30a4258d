// The walk tables of all starts, made by several threads.

#pragma once

#include <memory>

#include "walkers.h"

namespace {

// The entries of consecutive starts in one table.
template <class T>
struct Part {
    std::vector<uint32_t> entries_of_start;
    std::unique_ptr<int64_t[]> key;  // as in `Sums`
    std::unique_ptr<T[]> load, count;  // means over walkers
    std::vector<double> own;
    int64_t begin = 0, size = 0;  // entries of the table before this part, and in it
};

// Parts of a table follow each other.
template <class T>
class WalkTables {
   public:
    explicit WalkTables(const WalkCall<T>& call)
        : c(call), size(starts_of_part(call)), bits(bits_of(call.length)), parts_of_table((call.starts + size - 1) / size) {
        if (std::max(c.nodes, c.rowptr[c.nodes]) > UINT32_MAX) throw std::length_error("too many nodes or edges");
        parts.resize(c.tables * parts_of_table);
        std::vector<Edge<T>> edges(c.rowptr[c.nodes]);
        for (size_t e = 0; e < edges.size(); ++e) {
            const int64_t node = c.col[e], first = c.rowptr[node], degree = c.rowptr[node + 1] - first;
            edges[e] = {uint32_t(node), c.factor[e], uint32_t(first), uint32_t(degree)};
        }
        std::vector<Walkers<T>> of_thread(c.threads, Walkers<T>(c, edges, std::min(size, c.starts)));
        parallel(c.threads, parts.size(), [&](int64_t task, int64_t thread) {
            const int64_t first = task % parts_of_table * size, last = std::min(first + size, c.starts);
            of_thread[thread].walk(first, last, task / parts_of_table);
            fill(parts[task], of_thread[thread], last - first);
        });
    }

    // Number of entries of each table.
    void count(int64_t* totals) {
        std::fill_n(totals, c.tables, 0);
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
            for (int64_t i = 0; i < part.size; ++i) {
                node[part.begin + i] = part.key[i] >> bits;
                length[part.begin + i] = part.key[i] & lengths;
            }
            std::copy_n(part.load.get(), part.size, load + part.begin);
            std::copy_n(part.count.get(), part.size, count + part.begin);
            const double pairs = double(c.walks) * double(c.walks);
            for (size_t i = 0; i < part.own.size(); ++i) own[number * size * products + i] = T(part.own[i] / pairs);
        });
    }

   private:
    static constexpr int64_t VISITS = 1 << 14;  // of one part, about; what is kept of them fits a core's cache

    const WalkCall<T> c;
    const int64_t size;  // starts of one part
    const int64_t bits, parts_of_table;
    std::vector<Part<T>> parts;

    static int64_t starts_of_part(const WalkCall<T>& c) {
        double visits = 1, goes_on = 1;  // of a walker
        for (int64_t i = 0; i < c.length; ++i) visits += goes_on *= 1 - c.halts_below[i] / 4294967296.0;
        return std::max<int64_t>(1, int64_t(VISITS / (double(c.walks) * visits)));
    }

    void fill(Part<T>& part, const Walkers<T>& found, int64_t starts) {
        const int64_t lengths = (int64_t(1) << bits) - 1;
        const double walks = c.walks;
        const Sums& sums = found.sums;
        for (int64_t s = 0; s < starts; ++s) part.entries_of_start.push_back(sums.first[s + 1] - sums.first[s]);
        part.size = sums.first[starts];
        part.key.reset(new int64_t[part.size]), part.load.reset(new T[part.size]), part.count.reset(new T[part.size]);
        std::copy_n(sums.key.data(), part.size, part.key.get());
        T *load = part.load.get(), *count = part.count.get();
        for (int64_t i = 0; i < part.size; ++i) load[i] = sums.load[i] / walks;
        for (int64_t i = 0; i < part.size; ++i) {
            const double visits = sums.visit[i + 1] - sums.visit[i];
            count[i] = (sums.key[i] & lengths ? visits : sums.load[i]) / walks;
        }
        part.own = found.own;
    }
};

}  // namespace
