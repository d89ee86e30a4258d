// Random numbers that are hashes of a seed and a counter, as in hashing.py.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;
constexpr int64_t PER_DRAW = 4, LEVELS = 1 << 16;  // entries of dropout on which one hash decides, by 16 bits for each

inline uint64_t mix(uint64_t z) {  // SplitMix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

// Writes the hashes of the numbers from `first` on to `to`, and their 16-bit parts to `numbers`, as signed integers, in the
// order in which they lie in memory.
inline void draw(uint64_t seed, int64_t first, int64_t count, uint64_t* to, int16_t* numbers) {
    for (int64_t i = 0; i < count; ++i) to[i] = mix(seed + uint64_t(first + i) * GOLDEN);
    std::memcpy(numbers, to, count * sizeof(uint64_t));
}

// Which numbers keep their entries, if `dropped` of all LEVELS do not.
template <class T>
struct Kept {
    int32_t least;
    T scale;
    explicit Kept(int64_t dropped)
        : least(int32_t(dropped - LEVELS / 2)), scale(T(double(LEVELS) / double(LEVELS - dropped))) {}
    T factor(int16_t number) const { return number >= least ? scale : T(0); }
};

// to[p] becomes 0 with the given probability, and otherwise what keeps the expectation at 1. Draws are those of
// `keep_factors` in hashing.py for the numbers first + p * step.
template <class T>
inline void keep_some(double probability, int64_t seed, int64_t first, int64_t step, int64_t count, T* to) {
    const uint64_t dropped = uint64_t(probability * 4294967296.0);
    const T scale = probability < 1 ? T(1 / (1 - probability)) : T(0);
    for (int64_t p = 0; p < count; ++p)
        to[p] = (mix(uint64_t(seed) + uint64_t(first + p * step) * GOLDEN) & UINT32_MAX) < dropped ? T(0) : scale;
}

}  // namespace
