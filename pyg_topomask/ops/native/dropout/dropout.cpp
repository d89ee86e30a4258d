// Dropout in one pass, whose draws are hashes of a seed and a counter: nothing is stored for the backward pass, which
// draws the same again, and no result depends on the number of threads.
//
// The same pass can zero entries by the sign of a second array, and add a third one. If the second array is the first,
// it computes residual + dropout(relu(x)); in the backward pass, it multiplies the gradient by the derivative of both.
//
// One hash of 64 bits decides on four entries, by 16 bits for each.
//
// Plain C++17 and its standard library.

#include "../parallel.h"

namespace {

constexpr int64_t PER_DRAW = 4, LEVELS = 1 << 16;
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

struct Call {
    int64_t count, seed, dropped, threads;
    const void *x, *sign, *residual;  // the last two may be null
    void* to;
};

// Entries from `first` on, a multiple of PER_DRAW. A draw decides on entries by its 16-bit numbers, as signed integers,
// in the order in which they lie in memory.
template <bool SIGN, bool RESIDUAL, class T>
void drop_block(const Call& c, int64_t first, int64_t count) {
    alignas(64) uint64_t draws[BLOCK];
    alignas(64) int16_t numbers[BLOCK * PER_DRAW];
    draw(uint64_t(c.seed), first / PER_DRAW, (count + PER_DRAW - 1) / PER_DRAW, draws);
    std::memcpy(numbers, draws, sizeof(draws));
    const auto at = [first](const void* array) { return array ? static_cast<const T*>(array) + first : nullptr; };
    const T *x = at(c.x), *sign = at(c.sign), *residual = at(c.residual);
    T* __restrict__ to = static_cast<T*>(c.to) + first;
    const int32_t least = int32_t(c.dropped - LEVELS / 2);
    const T scale = T(double(LEVELS) / double(LEVELS - c.dropped));
    for (int64_t i = 0; i < count; ++i) {
        const T value = SIGN && sign[i] <= 0 ? T(0) : x[i];
        const T kept = value * (numbers[i] >= least ? scale : T(0));
        to[i] = RESIDUAL ? residual[i] + kept : kept;
    }
}

template <class T>
void drop_block(const Call& c, int64_t first, int64_t count) {
    if (c.sign && c.residual) return drop_block<true, true, T>(c, first, count);
    if (c.sign) return drop_block<true, false, T>(c, first, count);
    if (c.residual) return drop_block<false, true, T>(c, first, count);
    drop_block<false, false, T>(c, first, count);
}

template <class T>
int drop(const Call& call) try {
    constexpr int64_t size = BLOCK * PER_DRAW;
    parallel(call.threads, (call.count + TASK * size - 1) / (TASK * size), [&](int64_t task, int64_t) {
        const int64_t end = std::min(call.count, (task + 1) * TASK * size);
        for (int64_t i = task * TASK * size; i < end; i += size)
            drop_block<T>(call, i, std::min(size, end - i));
    });
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

// Zeroes each entry of x with probability dropped / 2^16, and where `sign` is not positive, scales the others, and adds
// `residual`.
int dropout_float(const Call* call) {
    return drop<float>(*call);
}

int dropout_double(const Call* call) {
    return drop<double>(*call);
}
}
