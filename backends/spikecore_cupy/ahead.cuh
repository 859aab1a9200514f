// Steps that are fetched a chunk ahead, into shared memory, where each thread has places of its own.
#pragma once

#include "spikecore.cuh"

// Steps that are fetched together, and waited for together.
constexpr int TOGETHER = 4;

// From memory to shared memory, without a register in between: 4, 8 or 16 bytes.
template <int BYTES> __device__ __forceinline__ void fetch(void* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "n"(BYTES) : "memory"
    );
#else
    #pragma unroll
    for (int k = 0; k < BYTES / 4; ++k) static_cast<unsigned*>(to)[k] = static_cast<const unsigned*>(from)[k];
#endif
}

// What this thread fetched since the last call is a group.
__device__ __forceinline__ void fetched() {
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

// The places of a tensor: each thread of a block has one for its V numbers of each of T steps.
template <typename S, int V, int T, int THREADS> struct Ahead {
    Pack<S, V> at[T * THREADS];
    __device__ __forceinline__ Pack<S, V> get(int t) const { return at[t * THREADS + threadIdx.x]; }
    __device__ __forceinline__ void fetch_step(int t, const S* from) { fetch<sizeof(S) * V>(at + t * THREADS + threadIdx.x, from); }
};
