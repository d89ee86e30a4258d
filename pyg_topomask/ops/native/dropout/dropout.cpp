// Dropout in one pass. Nothing is stored for the backward pass, which draws the same again (`draws.h`), and no result
// depends on the number of threads.
//
// The same pass can zero entries by the sign of a second array, and add a third one. If the second array is the first,
// it computes residual + dropout(relu(x)); in the backward pass, it multiplies the gradient by the derivative of both.
//
// Plain C++17 and its standard library.

#include "../draws.h"
#include "../parallel.h"

namespace {

constexpr int64_t BLOCK = 1 << 10;  // draws that stay in the nearest cache
constexpr int64_t TASK = 1 << 4;    // blocks

struct Call {
    int64_t count, seed, dropped, threads;
    const void *x, *sign, *residual;  // the last two may be null
    void* to;
};

// Entries from `first` on, a multiple of PER_DRAW.
template <bool SIGN, bool RESIDUAL, class T>
void drop_block(const Call& c, int64_t first, int64_t count) {
    alignas(64) uint64_t draws[BLOCK];
    alignas(64) int16_t numbers[BLOCK * PER_DRAW];
    draw(uint64_t(c.seed), first / PER_DRAW, (count + PER_DRAW - 1) / PER_DRAW, draws, numbers);
    const auto at = [first](const void* array) { return array ? static_cast<const T*>(array) + first : nullptr; };
    const T *x = at(c.x), *sign = at(c.sign), *residual = at(c.residual);
    T* __restrict__ to = static_cast<T*>(c.to) + first;
    const Kept<T> kept(c.dropped);
    for (int64_t i = 0; i < count; ++i) {
        const T value = SIGN && sign[i] <= 0 ? T(0) : x[i];
        const T left = value * kept.factor(numbers[i]);
        to[i] = RESIDUAL ? residual[i] + left : left;
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

// Sets an entry of x to zero where `sign` is not positive, and otherwise with probability dropped / 2^16. Scales the
// remaining entries, and adds `residual`.
int dropout_float(const Call* call) {
    return drop<float>(*call);
}

int dropout_double(const Call* call) {
    return drop<double>(*call);
}
}
