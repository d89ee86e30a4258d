// What all libraries of these folders share: a loop over tasks on several threads, memory whose vectors lie on cache
// lines of their own, numbers in vector registers, and early reads of memory.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Calls run(task, thread) for all tasks, in any order. An exception of a task is thrown again when all threads have
// ended.
template <class F>
void parallel(int64_t threads, int64_t tasks, const F& run) {
    std::atomic<int64_t> next(0);
    std::exception_ptr failure;
    std::mutex failing;
    auto work = [&](int64_t thread) {
        try {
            for (int64_t task; (task = next.fetch_add(1)) < tasks;) run(task, thread);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(failing);
            failure = std::current_exception();
            next = tasks;
        }
    };
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < std::min(threads, tasks); ++i) others.emplace_back(work, i);
    } catch (const std::system_error&) {  // no further thread is available: the existing ones do the work
    }
    work(0);
    for (auto& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}

template <class T>
struct OnCacheLines {
    using value_type = T;
    static constexpr std::align_val_t LINE{64};
    OnCacheLines() = default;
    template <class U>
    OnCacheLines(const OnCacheLines<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), LINE)); }
    void deallocate(T* p, size_t) { ::operator delete(p, LINE); }
    template <class U>
    bool operator==(const OnCacheLines<U>&) const { return true; }
    template <class U>
    bool operator!=(const OnCacheLines<U>&) const { return false; }
};

template <class T>
using Array = std::vector<T, OnCacheLines<T>>;

#ifdef __AVX512F__
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

// L numbers that are added and multiplied at once. If they are more than VECTOR_BYTES, sums do not stay in registers.
template <class T, int BYTES>
struct Vector {
    static constexpr int L = BYTES / sizeof(T);
    typedef T type __attribute__((vector_size(BYTES)));
    static type load(const T* p) {
        type v;
        std::memcpy(&v, p, BYTES);
        return v;
    }
    static void store(const type& v, T* p) { std::memcpy(p, &v, BYTES); }
};

#define INLINED __attribute__((always_inline)) inline

// Fetches memory into the cache of a level that will soon be read, or written if WRITE is 1. Functions that only do this must be
// INLINED: GCC removes calls of a function that has no result and no effect on memory.
template <int WRITE, int LEVEL = 1, class T>
INLINED void fetch(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i, WRITE, 4 - LEVEL);
}

}  // namespace
