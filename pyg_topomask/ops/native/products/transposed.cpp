// The product of two tall matrices, C = A^T B, as the gradient of a weight is: rows of A and B are read as they lie in
// memory, and tiles of C stay in vector registers for a block of rows.
//
// A panel of columns of C is the work of one thread and is summed in the order of the rows: no result depends on the
// number of threads.
//
// Plain C++17 and its standard library.

#include "../parallel.h"

namespace {

typedef Vector<float, 64> Vec;
constexpr int TILE_ROWS = 8, TILE_VECTORS = 3, PANEL = TILE_VECTORS * Vec::L;
constexpr int64_t BLOCK = 128;  // rows of A and B that stay in the caches

// A tile of C, to which `rows` rows are added. Rows of A hold m numbers, those of B and C hold n.
inline void add_tile(const float* a, const float* b, int64_t rows, int64_t m, int64_t n, float* c) {
    Vec::type sum[TILE_ROWS][TILE_VECTORS]{};
    for (int64_t r = 0; r < rows; ++r, a += m, b += n) {
        Vec::type row[TILE_VECTORS];
#pragma GCC unroll 3
        for (int j = 0; j < TILE_VECTORS; ++j) row[j] = Vec::load(b + j * Vec::L);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; ++i)
#pragma GCC unroll 3
            for (int j = 0; j < TILE_VECTORS; ++j) sum[i][j] += a[i] * row[j];
    }
    for (int i = 0; i < TILE_ROWS; ++i)
        for (int j = 0; j < TILE_VECTORS; ++j) {
            float* to = c + i * n + j * Vec::L;
            Vec::store(Vec::load(to) + sum[i][j], to);
        }
}

}  // namespace

extern "C" {

// A [rows, m], B [rows, n] and C [m, n] without gaps; m is a multiple of 8 and n of 48.
int transposed_product(const float* a, const float* b, int64_t rows, int64_t m, int64_t n, int64_t threads, float* c) try {
    std::fill(c, c + m * n, 0.0f);
    parallel(threads, n / PANEL, [&](int64_t panel, int64_t) {
        for (int64_t r = 0; r < rows; r += BLOCK)
            for (int64_t i = 0; i < m; i += TILE_ROWS) {
                const int64_t j = panel * PANEL;
                add_tile(a + r * m + i, b + r * n + j, std::min(BLOCK, rows - r), m, n, c + i * n + j);
            }
    });
    return 0;
} catch (...) {
    return error_code();
}
}
