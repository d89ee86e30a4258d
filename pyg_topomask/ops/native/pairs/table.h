// Mask entries that are sums of stored coefficients with the weights of a head: M_p = sum_t w_t C_pt.

#pragma once

#include "vector.h"

namespace {

// The weights of one head; nothing where there are no coefficients. Coefficients of a pair lie side by side; where they
// fill no whole vectors, the last vector overlaps the one before it, in lanes that do not count.
template <class T>
class Table {
   public:
    Table(const void* coeffs, int64_t number, const void* weights)
        : coeffs(static_cast<const T*>(coeffs)), terms(coeffs ? number : 0), count(vectors<T>(terms)),
          last(terms - Vec<T>::L), padded(count * Vec<T>::L, T(0)) {
        const T* from = static_cast<const T*>(weights);
        const int64_t before = last < 0 ? terms : (count - 1) * Vec<T>::L;  // the last vector
        std::copy(from, from + before, padded.begin());
        std::copy(from + before, from + terms, padded.end() - (terms - before));
    }

    // The entries of `number` pairs from pair `p` on; writes up to a whole vector.
    void evaluate(int64_t p, int64_t number, T* to) const {
        const T* from = coeffs + p * terms;
        fetch<0>(from + AHEAD * terms, number * terms);
        if (last < 0) return few_terms(from, number, to);
        const auto row = [&](int64_t i) { return from + i * terms; };
        if (count == 2) dots<2>(padded.data(), row, number, 2, last, to);
        else dots<0>(padded.data(), row, number, count, last, to);
    }

    // sums[t] += sum of grad[i] * C[p + i, t]. A row is summed in T, and rows in double precision.
    void add_gradients(int64_t p, const T* grad, int64_t number, Array<T>& row_sum, double* sums) const {
        const T* from = coeffs + p * terms;
        grow(row_sum, count * Vec<T>::L);
        T* sum = row_sum.data();
        if (last < 0) {
            std::fill(sum, sum + terms, T(0));
            for (int64_t i = 0; i < number; ++i)
                for (int64_t t = 0; t < terms; ++t) sum[t] += grad[i] * from[i * terms + t];
        } else {
            const auto row = [&](int64_t i) { return from + i * terms; };
            if (count == 2) sum_rows<2>(grad, row, number, 2, last, sum);
            else sum_rows<0>(grad, row, number, count, last, sum);
            const int64_t before = (count - 1) * Vec<T>::L;
            std::copy(sum + count * Vec<T>::L - (terms - before), sum + count * Vec<T>::L, sum + before);
        }
        for (int64_t t = 0; t < terms; ++t) sums[t] += double(sum[t]);
    }

   private:
    static constexpr int64_t AHEAD = 64;  // pairs
    const T* coeffs;
    const int64_t terms, count, last;
    Array<T> padded;

    void few_terms(const T* from, int64_t number, T* to) const {
        for (int64_t i = 0; i < number; ++i) {
            T sum = 0;
            for (int64_t t = 0; t < terms; ++t) sum += padded[t] * from[i * terms + t];
            to[i] = sum;
        }
    }
};

}  // namespace
