// The product with a function f of the number of edges: rows of sums by distance, instead of weighted sums.
//
// A row holds the sums of the nodes at 0, 1, ... K edges, its levels. It begins with x_i and zeros, an edge moves its sums
// up by one level, and y is the sum of f(k) times level k of z. The sums from below have no more levels than the subtree,
// and most subtrees are small. So only these levels are stored, of s_i and of what later siblings add; a node with one
// child shares the levels of the child. The sums from elsewhere have all levels, but are needed only for the ancestors of
// the node at hand whose children are not done: a last child takes the place of its parent.

#pragma once

#include "../array.h"

namespace {

// The levels of each node's sums, and where they are stored.
struct Levels {
    const int64_t *above, nodes, hops;
    std::vector<int32_t> below, later;  // levels of s; and of x_p with the siblings after i, 0 if there are none
    std::vector<int32_t> place;         // of the sums from elsewhere
    std::vector<int64_t> start;         // of s; the siblings lie before it
    int64_t places = 1, total = 0;      // total: of all levels

    Levels(const int64_t* above, int64_t nodes, int64_t hops)
        : above(above), nodes(nodes), hops(hops), below(nodes, 1), later(nodes), place(nodes), start(nodes) {
        std::vector<int32_t> children(nodes);
        for (int64_t i = nodes; i-- > 0;) {
            const int64_t p = above[i];
            if (p < 0) continue;
            later[i] = children[p]++ ? below[p] : 0;
            below[p] = std::max<int32_t>(below[p], std::min<int64_t>(below[i], hops) + 1);
        }
        for (int64_t i = 0; i < nodes; ++i) {
            place[i] = above[i] < 0 ? 0 : place[above[i]] + (later[i] > 0);
            places = std::max<int64_t>(places, place[i] + 1);
            start[i] = total + later[i];
            total = start[i] + (children[i] == 1 ? 1 : below[i]);
        }
        total += places * room();
    }
    int64_t room() const { return 4 * (hops + 1); }  // of a place, in which sums move
};

// The sums of some columns; W is their number where it is known to the compiler, else 0.
template <class T, int W>
class Histograms {
   public:
    Histograms(const Levels& levels, int64_t columns, T* memory)
        : levels(levels), some(columns), memory(memory), elsewhere(levels.places) {}

    int64_t columns() const { return W ? W : some; }

    // Calls read(i, to), which writes x_i, and visit(i, levels of s_i, s_i, g_i u_i) for all nodes, parents first.
    template <class Read, class Visit>
    void sweep(const Read& read, const Visit& visit) {
        up(read);
        for (int64_t i = 0; i < levels.nodes; ++i) {
            down(i);
            visit(i, levels.below[i], s(i), elsewhere[levels.place[i]]);
        }
    }

    int64_t ahead(int64_t i) const { return std::min(i + AHEAD, levels.nodes - 1); }
    static int64_t behind(int64_t i) { return std::max<int64_t>(i - AHEAD, 0); }

   private:
    static constexpr int64_t AHEAD = 16;  // nodes
    const Levels& levels;
    const int64_t some;
    T* const memory;
    std::vector<T*> elsewhere;  // the sums of each place

    T* s(int64_t i) const { return memory + levels.start[i] * columns(); }
    T* siblings(int64_t i) const { return s(i) - levels.later[i] * columns(); }

    // Asks for the sums of a node some nodes ahead: the processor itself does so only within a page.
    template <int WRITE>
    INLINED void fetch_sums(int64_t i) const {
        fetch<WRITE>(siblings(i), (levels.later[i] + 1) * columns());
    }

    template <class Read>
    void up(const Read& read) {
        const int64_t step = columns();
        for (int64_t i = levels.nodes; i-- > 0;) {
            fetch_sums<1>(behind(i));
            if (levels.below[i] == 1) read(i, s(i));
            const int64_t p = levels.above[i], count = std::min<int64_t>(levels.below[i], levels.hops);
            if (p < 0) continue;
            if (levels.later[i] > 0) {
                std::copy_n(s(p), levels.later[i] * step, siblings(i));
                move_up(count, s(i), s(p));
                continue;
            }
            read(p, s(p));
            if (s(i) == s(p) + step) continue;  // they share their levels
            std::copy_n(s(i), count * step, s(p) + step);
            std::fill(s(p) + (count + 1) * step, s(p) + levels.below[p] * step, T(0));
        }
    }

    // Writes g_i u_i, to which the children of i add themselves later, and adds i to the sums of its parent.
    void down(int64_t i) {
        const int64_t step = columns(), p = levels.above[i], hops = levels.hops, later = std::min<int64_t>(levels.later[i], hops);
        T *first = memory + (levels.total - (levels.place[i] + 1) * levels.room()) * step, *end = first + levels.room() * step;
        T*& own = elsewhere[levels.place[i]];
        fetch_sums<0>(ahead(i));
        if (p >= 0 && levels.later[i] == 0) {
            if (own == first) own = std::copy_backward(own, own + hops * step, end);
            own -= step;
            std::fill_n(own, step, T(0));
            return move_up(std::min<int64_t>(1, hops), s(p), own);
        }
        own = end - (hops + 1) * step;
        if (p < 0) return void(std::fill(own, end, T(0)));
        T *above = elsewhere[levels.place[p]], *from = siblings(i);
        std::fill_n(own, step, T(0));
        for (int64_t j = 0; j < later * step; ++j) own[j + step] = above[j] + from[j];
        std::copy(above + later * step, above + hops * step, own + (later + 1) * step);
        move_up(std::min<int64_t>(levels.below[i], hops), s(i), above);
    }

    // Adds the first `count` levels of `from`, each to the next level of `to`.
    void move_up(int64_t count, const T* from, T* to) const {
        for (int64_t j = 0; j < count * columns(); ++j) to[j + columns()] += from[j];
    }
};

}  // namespace
