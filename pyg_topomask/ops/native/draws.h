// The random numbers of dropout: hashes of a seed and a counter. One hash of 64 bits decides on four entries, by 16 bits
// for each.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t PER_DRAW = 4, LEVELS = 1 << 16;

// Writes the hashes of the numbers from `first` on to `to`: `mix(number * GOLDEN + seed)` in hashing.py. Writes their
// 16-bit parts to `numbers`, as signed integers, in the order in which they lie in memory.
inline void draw(uint64_t seed, int64_t first, int64_t count, uint64_t* to, int16_t* numbers) {
    for (int64_t i = 0; i < count; ++i) {
        uint64_t z = seed + uint64_t(first + i) * 0x9E3779B97F4A7C15u;  // SplitMix64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        to[i] = z ^ (z >> 31);
    }
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

}  // namespace
