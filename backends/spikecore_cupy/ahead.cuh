// Steps that are fetched a chunk ahead, into shared memory, where each thread has places of its own.
#pragma once

#include "spikecore.cuh"

// Steps that are fetched together, and waited for together.
constexpr int TOGETHER = 4;
// Whether a chunk of T steps, or of T - 1, has step t, number k of its group.
template <int T> __device__ __forceinline__ constexpr bool is_step(int k, int t, bool whole) {
    return (T % TOGETHER == 0 && k < TOGETHER - 1) || t < T - 1 || (t == T - 1 && whole);
}

#ifdef __CUDA_ARCH__
// From memory to shared memory, without a register in between: 4, 8 or 16 bytes.
template <int BYTES> __device__ __forceinline__ void fetch_shared(unsigned to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(__cvta_generic_to_global(from)), "n"(BYTES) : "memory"
    );
#else
    const unsigned* words = static_cast<const unsigned*>(from);
    #pragma unroll
    for (int k = 0; k < BYTES / 4; ++k) asm volatile("st.shared.u32 [%0], %1;" :: "r"(to + 4 * k), "r"(words[k]) : "memory");
#endif
}
template <typename P> __device__ __forceinline__ P load_shared(unsigned from) {
    struct alignas(sizeof(P)) { unsigned at[sizeof(P) / 4]; } words;
    if constexpr (sizeof(P) == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words.at[0]) : "r"(from));
    } else if constexpr (sizeof(P) == 8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.at[0]), "=r"(words.at[1]) : "r"(from));
    } else {
        asm volatile(
            "ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3]) : "r"(from)
        );
    }
    return *reinterpret_cast<P*>(&words);
}
template <typename P> __device__ __forceinline__ void store_shared(unsigned to, const P& pack) {
    struct alignas(sizeof(P)) { unsigned at[sizeof(P) / 4]; } words;
    *reinterpret_cast<P*>(&words) = pack;
    if constexpr (sizeof(P) == 4) {
        asm volatile("st.shared.u32 [%0], %1;" :: "r"(to), "r"(words.at[0]));
    } else if constexpr (sizeof(P) == 8) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(to), "r"(words.at[0]), "r"(words.at[1]));
    } else {
        asm volatile(
            "st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
            :: "r"(to), "r"(words.at[0]), "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
        );
    }
}
#endif

// What this thread fetched since the last call is a group.
__device__ __forceinline__ void chunk_fetched() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until all groups of this thread but the last LATER have come.
template <int LATER> __device__ __forceinline__ void arrived() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
#endif
}

// The places of a tensor: each thread of a block has one for its V numbers of each of T steps, of so many chunks.
template <typename S, int V, int T, int THREADS, int CHUNKS> struct Places { Pack<S, V> at[CHUNKS * T * THREADS]; };

// Those of this thread for one chunk, the first of them until `turn`. Their address is found once.
template <typename S, int V, int T, int THREADS, int CHUNKS> struct Ahead {
#ifdef __CUDA_ARCH__
    unsigned first, now;
    __device__ __forceinline__ Ahead(Places<S, V, T, THREADS, CHUNKS>& places) {
        first = (unsigned)__cvta_generic_to_shared(places.at + threadIdx.x);
        asm volatile("" : "+r"(first));
        now = first;
    }
    __device__ __forceinline__ void turn(int chunk) { now = first + chunk * (int)(T * THREADS * sizeof(S) * V); }
    __device__ __forceinline__ unsigned place(int t) const { return now + t * (int)(THREADS * sizeof(S) * V); }
    __device__ __forceinline__ Pack<S, V> get(int t) const { return load_shared<Pack<S, V>>(place(t)); }
    __device__ __forceinline__ void put(int t, const Pack<S, V>& pack) const { store_shared(place(t), pack); }
    __device__ __forceinline__ void fetch(int t, const S* from) const { fetch_shared<sizeof(S) * V>(place(t), from); }
#else
    Pack<S, V>*first, *now;
    Ahead(Places<S, V, T, THREADS, CHUNKS>& places) : first(places.at + threadIdx.x), now(first) {}
    void turn(int chunk) { now = first + chunk * T * THREADS; }
    Pack<S, V> get(int t) const { return now[t * THREADS]; }
    void put(int t, const Pack<S, V>& pack) const { now[t * THREADS] = pack; }
    void fetch(int t, const S* from) const { now[t * THREADS] = load<V>(from); }
#endif
};
