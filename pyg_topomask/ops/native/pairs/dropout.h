// Dropout whose draws are hashes of a seed and a number, so that the backward pass draws the same again.

#pragma once

#include <cstdint>

namespace {

// to[p] becomes 0 with the given probability, and otherwise what keeps the expectation at 1. Draws are those of
// `keep_factors` in hashing.py for the numbers first + p * step.
template <class T>
inline void keep_some(double probability, int64_t seed, int64_t first, int64_t step, int64_t count, T* to) {
    const uint64_t dropped = uint64_t(probability * 4294967296.0);
    const T scale = probability < 1 ? T(1 / (1 - probability)) : T(0);
    for (int64_t p = 0; p < count; ++p) {
        uint64_t z = uint64_t(seed) + uint64_t(first + p * step) * 0x9E3779B97F4A7C15u;  // SplitMix64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        to[p] = (z & 0xFFFFFFFFu) < dropped ? T(0) : scale;
    }
}

}  // namespace
