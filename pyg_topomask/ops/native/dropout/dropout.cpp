// Dropout in one pass, whose draws are hashes of a seed and a counter: nothing is stored for the backward pass, which
// draws the same again, and no result depends on the number of threads.
//
// One hash of 64 bits decides on four entries, by 16 bits for each.
//
// Plain C++17 and its standard library.

#include "../parallel.h"

namespace {

constexpr int64_t PER_DRAW = 4;
constexpr int64_t BLOCK = 1 << 10;  // draws that stay in the nearest cache
constexpr int64_t TASK = 1 << 4;    // blocks

// Hashes of the numbers from `first` on: `mix(number * GOLDEN + seed)` in hashing.py.
inline void draw(uint64_t seed, int64_t first, int64_t count, uint64_t* to) {
    for (int64_t i = 0; i < count; ++i) {
        uint64_t z = seed + uint64_t(first + i) * 0x9E3779B97F4A7C15u;  // SplitMix64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        to[i] = z ^ (z >> 31);
    }
}

// The 16-bit numbers of a draw, as signed integers, decide from the lowest to the highest.
template <class T>
void drop_block(const T* x, int64_t count, uint64_t seed, int64_t first, int32_t least, T scale, T* to) {
    alignas(64) uint64_t draws[BLOCK];
    draw(seed, first, (count + PER_DRAW - 1) / PER_DRAW, draws);
    int64_t i = 0;
    for (; i + PER_DRAW <= count; i += PER_DRAW) {
        const uint64_t z = draws[i / PER_DRAW];
        for (int64_t k = 0; k < PER_DRAW; ++k) to[i + k] = x[i + k] * (int16_t(z >> (16 * k)) >= least ? scale : T(0));
    }
    for (; i < count; ++i)
        to[i] = x[i] * (int16_t(draws[i / PER_DRAW] >> (16 * (i % PER_DRAW))) >= least ? scale : T(0));
}

template <class T>
int drop(const T* x, int64_t count, int64_t seed, int64_t dropped, int64_t threads, T* to) try {
    constexpr int64_t LEVELS = 1 << 16, size = BLOCK * PER_DRAW;
    const T scale = T(double(LEVELS) / double(LEVELS - dropped));
    parallel(threads, (count + TASK * size - 1) / (TASK * size), [&](int64_t task, int64_t) {
        const int64_t end = std::min(count, (task + 1) * TASK * size);
        for (int64_t i = task * TASK * size; i < end; i += size)
            drop_block(x + i, std::min(size, end - i), uint64_t(seed), i / PER_DRAW, int32_t(dropped - LEVELS / 2), scale, to + i);
    });
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

// Zeroes each entry of x with probability dropped / 2^16 and scales the others.
int dropout_float(const float* x, int64_t count, int64_t seed, int64_t dropped, int64_t threads, float* to) {
    return drop(x, count, seed, dropped, threads, to);
}

int dropout_double(const double* x, int64_t count, int64_t seed, int64_t dropped, int64_t threads, double* to) {
    return drop(x, count, seed, dropped, threads, to);
}
}
