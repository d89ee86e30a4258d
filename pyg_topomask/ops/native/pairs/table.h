// Mask entries that are sums of stored coefficients with the weights of a head: M_p = sum_t w_t C_tp.

#pragma once

#include "vector.h"

namespace {

// The weights of one head; nothing where there are no coefficients. The coefficients of a term lie side by side.
template <class T>
class Table {
   public:
    Table(const T* coeffs, int64_t terms, int64_t pairs, const T* weights)
        : coeffs(coeffs), weights(weights), terms(terms), pairs(pairs) {}

    // The entries of `number` pairs from pair `p` on; writes whole blocks. `last` is memory that may be used.
    void evaluate(int64_t p, int64_t number, T* to, Array<T>& last) const {
        const Block block = find(p, number, last);
        for (int64_t i = 0; i < number; i += BLOCK) {
            for (int64_t t = 0; t < terms; ++t) fetch<0>(block.from + t * block.step + i + number, BLOCK);  // of later pairs
            const auto term = [&](int64_t t) { return block.from + t * block.step + i; };
            sum_rows<4>(weights, term, terms, 4, 3 * L, to + i);
        }
    }

    // sums[t] += sum of grad[i] * C[t, p + i], where grad is 0 in the rest of its last block. A sum of `number` numbers has
    // the precision of T.
    void add_gradients(int64_t p, int64_t number, const T* grad, Array<T>& last, Array<T>& lanes, double* sums) const {
        const Block block = find(p, number, last);
        lanes.assign(terms * L, T(0));
        for (int64_t i = 0; i < number; i += BLOCK) {
            Vector x[4];
            for (int v = 0; v < 4; ++v) x[v] = Vec<T>::load(grad + i + v * L);
            for (int64_t t = 0; t < terms; ++t) {
                const T* from = block.from + t * block.step + i;
                Vector sum = Vec<T>::load(&lanes[t * L]);
                for (int v = 0; v < 4; ++v) sum += x[v] * Vec<T>::load(from + v * L);
                Vec<T>::store(sum, &lanes[t * L]);
            }
        }
        for (int64_t i = 0; i < terms * L; ++i) sums[i / L] += double(lanes[i]);
    }

   private:
    typedef typename Vec<T>::type Vector;
    static constexpr int64_t L = Vec<T>::L, BLOCK = 4 * L;  // pairs
    struct Block {
        const T* from;
        int64_t step;  // from term to term
    };
    const T *coeffs, *weights;
    const int64_t terms, pairs;

    // The coefficients of whole blocks of pairs; a copy where these blocks exceed the array.
    Block find(int64_t p, int64_t number, Array<T>& last) const {
        const int64_t whole = (number + BLOCK - 1) / BLOCK * BLOCK;
        if (p + whole <= pairs) return {coeffs + p, pairs};
        last.assign(terms * whole, T(0));
        for (int64_t t = 0; t < terms; ++t) std::copy_n(coeffs + t * pairs + p, number, &last[t * whole]);
        return {last.data(), whole};
    }
};

}  // namespace
