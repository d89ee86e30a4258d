// The arguments of a compiled function, as `CompiledOp` in op.py writes them: one block of 64-bit numbers, so that no
// structure is described in two languages,
//
//   number of threads, of arrays and of numbers,
//   of each array: address, dtype, number of dimensions, 4 sizes, 4 strides; all are 0 if the array is absent,
//   numbers: integers, or the bits of a double.
//
// Each access checks what the function expects of an array. A slip is an error that names the array.

#pragma once

#include <initializer_list>
#include <stdexcept>
#include <type_traits>

#include "parallel.h"

// Begins a function that Python calls. All others stay hidden (-fvisibility=hidden).
#ifdef _WIN32
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

namespace {

constexpr int64_t ANY = -1;  // a size that nothing is known of

// The codes are those of `DTYPES` in op.py.
template <class T>
constexpr int64_t code_of() {
    using U = std::remove_const_t<T>;
    if (std::is_same_v<U, float>) return 1;
    if (std::is_same_v<U, double>) return 2;
    if (std::is_same_v<U, int64_t>) return 3;
    if (std::is_same_v<U, int32_t>) return 4;
    return -1;
}

// An array is not what the function expects.
struct Misfit {
    int64_t array;
};

// An array whose rows, along the last dimension, have no gaps; there may be gaps between rows.
template <class T>
struct Rows {
    T* data;
    int64_t size[4], stride[4];
    T* operator()(int64_t i, int64_t j) const { return data + i * stride[0] + j * stride[1]; }
};

class Call {
   public:
    Call(const int64_t* block, int64_t arrays, int64_t numbers) : block(block) {
        if (block[1] != arrays || block[2] != numbers) throw Misfit{-1};
    }
    int64_t threads() const { return block[0]; }
    int64_t integer(int64_t number) const { return block[HEAD + FIELDS * block[1] + number]; }
    double real(int64_t number) const {
        double value;
        std::memcpy(&value, block + HEAD + FIELDS * block[1] + number, sizeof value);
        return value;
    }
    bool has(int64_t array) const { return of(array)[1] != 0; }
    int64_t size(int64_t array, int64_t dimension) const { return of(array)[3 + dimension]; }
    int64_t dtype(int64_t array) const { return of(array)[1]; }

    // An array of these sizes; the last stride is 1.
    template <class T>
    Rows<T> rows(int64_t array, std::initializer_list<int64_t> sizes, bool gaps = true) const {
        const int64_t *field = of(array), dims = sizes.size();
        Rows<T> found{reinterpret_cast<T*>(field[0]), {}, {}};
        std::copy_n(field + 3, 4, found.size), std::copy_n(field + 7, 4, found.stride);
        bool fits = field[1] == code_of<T>() && field[2] == dims, whole = true;
        int64_t count = 1;
        for (int64_t d = fits ? dims : 0; d-- > 0; count *= found.size[d]) {
            fits &= sizes.begin()[d] == ANY || sizes.begin()[d] == found.size[d];
            whole &= found.size[d] <= 1 || found.stride[d] == count || (gaps && d < dims - 1);
        }
        if (!fits || (!whole && count > 0)) throw Misfit{array};
        return found;
    }

    // An array of these sizes without gaps.
    template <class T>
    T* dense(int64_t array, std::initializer_list<int64_t> sizes) const {
        return rows<T>(array, sizes, false).data;
    }

    // The same, or null if it is absent: an argument that may be left out, or a result that nobody wants.
    template <class T>
    T* optional(int64_t array, std::initializer_list<int64_t> sizes) const {
        return has(array) ? dense<T>(array, sizes) : nullptr;
    }

   private:
    static constexpr int64_t HEAD = 3, FIELDS = 11;
    const int64_t* block;
    const int64_t* of(int64_t array) const { return block + HEAD + FIELDS * array; }
};

// The entries of a sparse matrix, sorted by row: where each row begins, columns and numbers.
template <class T>
struct Matrix {
    const int32_t *rowptr, *col;
    const T* value;
    // From three arrays, of which `first` is the first one; `size` is that of the row pointers.
    Matrix(const Call& call, int64_t first, int64_t size = ANY)
        : rowptr(call.dense<const int32_t>(first, {size})), col(call.dense<const int32_t>(first + 1, {ANY})),
          value(call.dense<const T>(first + 2, {call.size(first + 1, 0)})) {}
};

// Calls function(call) and returns its result, 0 if it has none, or an error code: -1 if memory is short, -2 at an
// unexpected failure, -1000 - i if array i does not fit, and -999 if there are too many or too few. An exception that
// leaves C++ would end the process.
template <class F>
int64_t checked(const int64_t* block, int64_t arrays, int64_t numbers, const F& function) try {
    const Call call(block, arrays, numbers);
    if constexpr (std::is_void_v<decltype(function(call))>) function(call);
    else return function(call);
    return 0;
} catch (const Misfit& misfit) {
    return -1000 - misfit.array;
} catch (const std::bad_alloc&) {
    return -1;
} catch (const std::length_error&) {  // more than any memory holds
    return -1;
} catch (...) {
    return -2;
}

// Calls function(call, zero) with a zero of the dtype of array `like`: float or double.
template <class F>
int64_t for_dtype(const int64_t* block, int64_t arrays, int64_t numbers, int64_t like, const F& function) {
    return checked(block, arrays, numbers, [&](const Call& call) {
        if (call.dtype(like) == code_of<float>()) return function(call, float(0));
        if (call.dtype(like) == code_of<double>()) return function(call, double(0));
        throw Misfit{like};
    });
}

}  // namespace
