// The exponential of numbers in a loop, which the compiler turns into vector instructions.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

// Constants of e^x = 2^n e^r with |r| <= ln(2) / 2; e^r is a Taylor polynomial, exact to rounding.
template <class T>
struct Exp;
template <>
struct Exp<float> {
    typedef int32_t Bits;
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f, least = -87.0f;
    static constexpr int mantissa = 23, bias = 127, degree = 7;
};
template <>
struct Exp<double> {
    typedef int64_t Bits;
    static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6, least = -708.0;
    static constexpr int mantissa = 52, bias = 1023, degree = 13;
};

// Coefficients of the polynomial.
template <class T>
struct Taylor {
    T factor[Exp<T>::degree + 1];
    constexpr Taylor() : factor() {
        factor[0] = 1;
        for (int i = 1; i <= Exp<T>::degree; ++i) factor[i] = factor[i - 1] / T(i);
    }
};

// e^x, where x counts as `least` or `-least` beyond these; both are in the range of T. NaN stays NaN.
template <class T>
inline T exponential(T x) {
    typedef Exp<T> E;
    constexpr Taylor<T> taylor;
    const T within = std::max(std::min(x, -E::least), E::least);
    // n + bias, rounded down: without SSE4.1, there is no instruction for std::rint. NaN counts as 1 here; with 0, the
    // scale would be 0, and compilers may take 0 times NaN as 0 (-fno-signed-zeros).
    const int32_t place = int32_t(std::max(T(1), within * T(1.44269504088896340736) + (E::bias + T(0.5))));
    const T n = T(place - E::bias), r = (within - n * E::ln2_high) - n * E::ln2_low;
    T power = taylor.factor[E::degree];
    for (int d = E::degree - 1; d >= 0; --d) power = power * r + taylor.factor[d];
    const typename E::Bits exponent = typename E::Bits(place) << E::mantissa;
    T scale;
    std::memcpy(&scale, &exponent, sizeof(T));
    return power * scale;
}

}  // namespace
