// Pairs of nodes within a distance: breadth-first search, or Dijkstra's, from every node. It is what hops.py calls.

#include <cmath>
#include <functional>
#include <memory>
#include <queue>

#include "../array.h"

namespace {

constexpr int64_t STARTS = 64;  // nodes of a task

struct Graph {
    const int64_t *rowptr, *col;
    const double* length;  // of each edge; null if all are 1
    int64_t nodes, most;   // the largest distance, in units of width
    double width;

    // A distance in units of the width.
    double bin(double distance) const { return std::nearbyint(distance / width); }
};

class Search {
   public:
    explicit Search(const Graph& graph) : graph(graph), seen(graph.nodes, -1), distance(graph.nodes) {}

    // The nodes within reach, ascending.
    const std::vector<int64_t>& from(int64_t start) {
        found.assign(1, start), seen[start] = start, distance[start] = 0;
        graph.length ? by_length(start) : by_edges(start);
        std::sort(found.begin(), found.end());
        return found;
    }
    int32_t bin(int64_t node) const { return graph.bin(distance[node]); }

   private:
    void by_edges(int64_t start) {
        for (size_t i = 0; i < found.size() && distance[found[i]] < graph.most; ++i) {
            const int64_t node = found[i];
            for (int64_t e = graph.rowptr[node]; e < graph.rowptr[node + 1]; ++e) {
                const int64_t next = graph.col[e];
                if (seen[next] == start) continue;
                seen[next] = start, distance[next] = distance[node] + 1, found.push_back(next);
            }
        }
    }
    void by_length(int64_t start) {
        using Entry = std::pair<double, int64_t>;
        std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> open;
        for (open.emplace(0, start); !open.empty();) {
            const auto [reached, node] = open.top();
            open.pop();
            if (reached > distance[node]) continue;
            for (int64_t e = graph.rowptr[node]; e < graph.rowptr[node + 1]; ++e) {
                const int64_t next = graph.col[e];
                const double further = reached + graph.length[e];
                if (graph.bin(further) > graph.most || (seen[next] == start && further >= distance[next])) continue;
                if (seen[next] != start) seen[next] = start, found.push_back(next);
                distance[next] = further, open.emplace(further, next);
            }
        }
    }

    const Graph& graph;
    std::vector<int64_t> seen, found;
    std::vector<double> distance;
};

}  // namespace

// Counts the pairs of each start or, if there is room for them, writes them from `first` of each start on.
EXPORTED int64_t hop_pairs(const int64_t* block) {
    return checked(block, 7, 2, [](const Call& call) {
        const int64_t nodes = call.size(0, 0) - 1, edges = call.size(1, 0);
        const Graph graph{call.dense<int64_t>(0, {nodes + 1}), call.dense<int64_t>(1, {edges}),
                          call.optional<double>(2, {edges}), nodes, call.integer(0), call.real(1)};
        int64_t* first = call.dense<int64_t>(3, {nodes + 1});
        int32_t *start = call.optional<int32_t>(4, {ANY}), *visited = call.optional<int32_t>(5, {ANY}),
                *hops = call.optional<int32_t>(6, {ANY});
        std::vector<std::unique_ptr<Search>> searches(call.threads());
        parallel(call.threads(), (nodes + STARTS - 1) / STARTS, [&](int64_t task, int64_t thread) {
            if (!searches[thread]) searches[thread] = std::make_unique<Search>(graph);
            Search& search = *searches[thread];
            for (int64_t node = task * STARTS; node < std::min(nodes, (task + 1) * STARTS); ++node) {
                const auto& found = search.from(node);
                if (!start) {
                    first[node + 1] = found.size();
                    continue;
                }
                for (size_t i = 0; i < found.size(); ++i) {
                    const int64_t place = first[node] + i;
                    start[place] = node, visited[place] = found[i], hops[place] = search.bin(found[i]);
                }
            }
        });
    });
}
