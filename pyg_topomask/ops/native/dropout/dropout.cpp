// Dropout in one pass. Nothing is stored for the backward pass, which draws the same again (`draws.h`), and no result
// depends on the number of threads.
//
// The same pass can zero entries by the sign of a second array, and add a third one. If the second array is the first,
// it computes residual + dropout(relu(x)); in the backward pass, it multiplies the gradient by the derivative of both.

#include "../array.h"
#include "../draws.h"

namespace {

enum { X, SIGN, RESIDUAL, TO, ARRAYS };  // arrays without gaps; the second and third may be absent
enum { SEED, DROPPED, NUMBERS };

constexpr int64_t BLOCK = 1 << 10;  // draws that stay in the nearest cache
constexpr int64_t TASK = 1 << 4;    // blocks

template <class T>
struct Dropout {
    const Call& call;
    const int64_t count = call.size(X, 0), seed = call.integer(SEED), dropped = call.integer(DROPPED);
    const T *x = call.dense<const T>(X, {count}), *sign = call.optional<const T>(SIGN, {count});
    const T* residual = call.optional<const T>(RESIDUAL, {count});
    T* to = call.dense<T>(TO, {count});

    // Entries from `first` on, a multiple of PER_DRAW.
    template <bool HAS_SIGN, bool HAS_RESIDUAL>
    void drop(int64_t first, int64_t size) const {
        alignas(64) uint64_t draws[BLOCK];
        alignas(64) int16_t numbers[BLOCK * PER_DRAW];
        draw(uint64_t(seed), first / PER_DRAW, (size + PER_DRAW - 1) / PER_DRAW, draws, numbers);
        const T *from = x + first, *signs = sign + (HAS_SIGN ? first : 0), *added = residual + (HAS_RESIDUAL ? first : 0);
        T* __restrict__ out = to + first;
        const Kept<T> kept(dropped);
        for (int64_t i = 0; i < size; ++i) {
            const T value = HAS_SIGN && signs[i] <= 0 ? T(0) : from[i];
            const T left = value * kept.factor(numbers[i]);
            out[i] = HAS_RESIDUAL ? added[i] + left : left;
        }
    }

    void run() const {
        const auto block = sign ? (residual ? &Dropout::drop<true, true> : &Dropout::drop<true, false>)
                                : (residual ? &Dropout::drop<false, true> : &Dropout::drop<false, false>);
        constexpr int64_t size = BLOCK * PER_DRAW;
        parallel(call.threads(), (count + TASK * size - 1) / (TASK * size), [&](int64_t task, int64_t) {
            const int64_t end = std::min(count, (task + 1) * TASK * size);
            for (int64_t i = task * TASK * size; i < end; i += size) (this->*block)(i, std::min(size, end - i));
        });
    }
};

}  // namespace

// Sets an entry of x to zero where `sign` is not positive, and otherwise with probability dropped / 2^16. Scales the
// remaining entries, and adds `residual`.
EXPORTED int64_t dropout(const int64_t* block) {
    return for_dtype(block, ARRAYS, NUMBERS, X, [](const Call& call, auto zero) { Dropout<decltype(zero)>{call}.run(); });
}
