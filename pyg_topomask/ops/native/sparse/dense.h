// Products of sparse rows with the dense transpose of some rows of a sparse matrix.

#pragma once

#include "tasks.h"

namespace {

// Rows `from` to `to` of a matrix that has no other columns, as the columns of a dense block.
template <class T>
class DenseBlock {
   public:
    void read(const Matrix<T>& matrix, int64_t begin, int64_t end) {
        from = begin, size = end - begin, stride = (size + Vec::L - 1) / Vec::L * Vec::L;
        const T* value = matrix.value;
        block.assign(size * stride, T(0));
        for (int64_t j = 0; j < size; ++j)
            for (int32_t e = matrix.rowptr[from + j]; e < matrix.rowptr[from + j + 1]; ++e)
                block[(matrix.col[e] - from) * stride + j] += value[e];
    }

    // The products of row `i` of another matrix with all these rows. They are overwritten by the next call.
    const T* multiply(const Matrix<T>& matrix, int64_t i) {
        row.resize(stride);
        int64_t j = 0;
        for (; j + 4 * Vec::L <= stride; j += 4 * Vec::L) multiply<4>(matrix, i, j);
        for (; j + 2 * Vec::L <= stride; j += 2 * Vec::L) multiply<2>(matrix, i, j);
        if (j < stride) multiply<1>(matrix, i, j);
        return row.data();
    }

   private:
    typedef Vector<T, 64> Vec;
    int64_t from = 0, size = 0, stride = 0;
    Array<T> block, row;

    // V vectors from column `j` on.
    template <int V>
    void multiply(const Matrix<T>& matrix, int64_t i, int64_t j) {
        const T* value = matrix.value;
        typename Vec::type sum[V]{};
        for (int32_t e = matrix.rowptr[i]; e < matrix.rowptr[i + 1]; ++e) {
            const T* other = &block[(matrix.col[e] - from) * stride + j];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[v] += value[e] * Vec::load(other + v * Vec::L);
        }
        for (int v = 0; v < V; ++v) Vec::store(sum[v], &row[j + v * Vec::L]);
    }
};

}  // namespace
