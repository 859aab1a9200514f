// The names of CUDA on the CPU, so that the text of a kernel can be built by g++: a block has one thread, or with
// HOST_THREADS as many as a launch says, which wait for one another.
#pragma once

#include <math.h>
#include <string.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Index { unsigned x; };
static thread_local Index blockIdx;
#ifdef HOST_THREADS
#include <pthread.h>
static thread_local Index threadIdx;
static Index blockDim;
static pthread_barrier_t barrier;
#define BLOCK_SHARED static
#define BLOCK_WAIT() pthread_barrier_wait(&barrier)
#else
static const Index threadIdx = {0}, blockDim = {1};
#define BLOCK_SHARED static thread_local
#define BLOCK_WAIT()
#endif

inline int __syncthreads_or(int x) { return x; }

inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

inline float float16_to_float(unsigned short half) {
    const unsigned sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
    if (size >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    const float x = size < 0x400u ? size * 5.9604644775390625e-8f : __uint_as_float((size << 13) + 0x38000000u);
    return __uint_as_float(sign | __float_as_uint(x));
}
inline unsigned short float_to_float16(float x) {
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7fff;
    if (size >= 0x477ff000u) return sign | 0x7c00;
    if (size < 0x38800000u) {  // subnormal: adding 0.5 makes the sum's last bits count 2**-24
        const float sum = __uint_as_float(size) + 0.5f;
        return sign | (__float_as_uint(sum) - 0x3f000000u);
    }
    return sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
}
