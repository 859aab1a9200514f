// What the kernels of spikecore are written with: packs of neighbouring neurons, 16-bit numbers, the functions of the
// language that C has no name for, and what the two files at the end have. Arithmetic is IEEE's, without contraction.
#pragma once

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

// -- 16-bit numbers: stored only, arithmetic is float

struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };

__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ double value(double x) { return x; }
__device__ __forceinline__ float value(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float value(float16 x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return float16_to_float(x.bits);
#endif
}

// The nearest number that the type has, ties to even.
template <typename S> __device__ S rounded(float x);
template <> __device__ __forceinline__ float rounded<float>(float x) { return x; }
template <> __device__ __forceinline__ bfloat16 rounded<bfloat16>(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bfloat16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {(unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}
template <> __device__ __forceinline__ float16 rounded<float16>(float x) {
#ifdef __CUDA_ARCH__
    float16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    return {float_to_float16(x)};
#endif
}
template <typename S> __device__ S rounded(double x);
template <> __device__ __forceinline__ double rounded<double>(double x) { return x; }

// A spike, which is 0 or 1: no rounding, a choice between two constants.
template <typename S> __device__ S spike(float z);
template <> __device__ __forceinline__ float spike<float>(float z) { return z; }
template <> __device__ __forceinline__ bfloat16 spike<bfloat16>(float z) {
    return {(unsigned short)(z != 0.0f ? 0x3f80 : 0)};
}
template <> __device__ __forceinline__ float16 spike<float16>(float z) {
    return {(unsigned short)(z != 0.0f ? 0x3c00 : 0)};
}
template <typename S> __device__ S spike(double z);
template <> __device__ __forceinline__ double spike<double>(double z) { return z; }

// -- numbers of V neighbouring neurons, moved in one access

template <typename S, int V> struct alignas(sizeof(S) * V) Pack {
    S at[V];
    __device__ __forceinline__ S& operator[](int j) { return at[j]; }
    __device__ __forceinline__ const S& operator[](int j) const { return at[j]; }
    __device__ __forceinline__ void set(int j, S x) { at[j] = x; }
};

// 16-bit numbers lie two to a word, so that they stay in registers as they came.
template <typename S, int V> struct alignas(2 * V) Halves {
    unsigned words[V / 2];
    __device__ __forceinline__ S operator[](int j) const { return {(unsigned short)(words[j / 2] >> 16 * (j % 2))}; }
    __device__ __forceinline__ void set(int j, S x) {
        const unsigned bits = x.bits;
        words[j / 2] = j % 2 ? (words[j / 2] & 0xffffu) | bits << 16 : bits;
    }
};
template <> struct Pack<float16, 2> : Halves<float16, 2> {};
template <> struct Pack<float16, 4> : Halves<float16, 4> {};
template <> struct Pack<bfloat16, 2> : Halves<bfloat16, 2> {};
template <> struct Pack<bfloat16, 4> : Halves<bfloat16, 4> {};
template <> struct Pack<float16, 8> : Halves<float16, 8> {};
template <> struct Pack<bfloat16, 8> : Halves<bfloat16, 8> {};

template <int V, typename S> __device__ __forceinline__ Pack<S, V> load(const S* from) {
    return *reinterpret_cast<const Pack<S, V>*>(from);
}
template <int V, typename S> __device__ __forceinline__ void store(S* to, const Pack<S, V>& pack) {
    *reinterpret_cast<Pack<S, V>*>(to) = pack;
}

// The same in one access, where the compiler takes a pack apart: in loops over chunks within loops over groups of neurons
// it finds the place of each part for itself.
struct alignas(8) TwoWords { unsigned at[2]; };
struct alignas(16) FourWords { unsigned at[4]; };
template <int V, typename S> __device__ __forceinline__ void store_whole(S* to, const Pack<S, V>& pack) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(pack) == 8) {
        const TwoWords x = *reinterpret_cast<const TwoWords*>(&pack);
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" :: "l"(__cvta_generic_to_global(to)), "r"(x.at[0]), "r"(x.at[1]));
        return;
    }
    if constexpr (sizeof(pack) == 16) {
        const FourWords x = *reinterpret_cast<const FourWords*>(&pack);
        asm volatile(
            "st.global.v4.b32 [%0], {%1, %2, %3, %4};"
            :: "l"(__cvta_generic_to_global(to)), "r"(x.at[0]), "r"(x.at[1]), "r"(x.at[2]), "r"(x.at[3])
        );
        return;
    }
#endif
    store(to, pack);
}

// What the threads of a block share, and where they wait for one another.
#ifdef __CUDA_ARCH__
#define BLOCK_SHARED __shared__
#define BLOCK_WAIT() __syncthreads()
#endif

// Whether a chunk has all of its steps, known when the kernel is compiled.
template <bool B> struct Known {
    __device__ constexpr operator bool() const { return B; }
};

// The channel of a neuron: `inner` neurons lie between neighbouring channels.
__device__ __forceinline__ long long channel(long long neuron, long long inner, long long channels) {
    if ((neuron | inner | channels) >> 32 == 0) return (unsigned)neuron / (unsigned)inner % (unsigned)channels;
    return neuron / inner % channels;
}

// The row of a neuron, where rows have so many columns.
__device__ __forceinline__ long long row_of(long long neuron, long long columns) {
    if ((neuron | columns) >> 32 == 0) return (unsigned)neuron / (unsigned)columns;
    return neuron / columns;
}

// Where the neurons i to i + V - 1 have their channels; i is a multiple of V. It is found once for all parameters: the
// divisions for each of them took longer than the memory of a short call.
template <int V> struct Channels {
    long long first;
    bool neighbours, same;
};
template <int V>
__device__ __forceinline__ Channels<V> channels_of(long long i, long long inner, long long channels) {
    return {channel(i, inner, channels), inner == 1 && channels % V == 0, inner % V == 0};
}

// A parameter with one number per channel, at the neurons i to i + V - 1.
template <int V, typename R>
__device__ __forceinline__ Pack<R, V> channel_values(
    const R* from, const Channels<V>& of, long long i, long long inner, long long channels
) {
    if (of.neighbours) return load<V>(from + of.first);
    Pack<R, V> found;
    found[0] = from[of.first];
    #pragma unroll
    for (int j = 1; j < V; ++j) found[j] = found[0];
    if (of.same) return found;
    #pragma unroll 1
    for (int j = 1; j < V; ++j) {
        const R value = from[channel(i + j, inner, channels)];
        // an index that the compiler does not know would put the pack into memory
        #pragma unroll
        for (int k = 1; k < V; ++k) found[k] = k == j ? value : found[k];
    }
    return found;
}

// What follows from a held value is computed after this line. Without, the compiler computes at the first step backwards
// whatever does not depend on the last one, for all steps, and runs out of registers.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ void hold(float& x) { asm volatile("" : "+f"(x)); }
__device__ __forceinline__ void hold(double& x) { asm volatile("" : "+d"(x)); }
template <typename S, int V> __device__ __forceinline__ void hold(Halves<S, V>& x) {
    #pragma unroll
    for (int k = 0; k < V / 2; ++k) asm volatile("" : "+r"(x.words[k]));
}
template <typename S> __device__ __forceinline__ void hold(Pack<S, 1>&) {}
template <typename S> __device__ __forceinline__ void hold(S*& x) {
    // a pointer of which nothing is known would be no pointer to global memory
    size_t at = __cvta_generic_to_global(x);
    asm volatile("" : "+l"(at));
    x = static_cast<S*>(__cvta_global_to_generic(at));
}
__device__ __forceinline__ void hold(int& x) { asm volatile("" : "+r"(x)); }
#else
template <typename R> inline void hold(R&) {}
#endif

// The same number, of which the compiler knows nothing. It would compute 0 or 1 as an integer, whose negation has no -0.
template <typename R> __device__ __forceinline__ R opaque(R x) { hold(x); return x; }

// A copy of a number, which the compiler takes for another one: blockDim.z is 1, but only the launch knows. What is computed
// from the copy is computed again, and no register keeps what was computed from the number. hold() does not do that: ptxas
// does not see its empty line of assembly, and kept h - threshold of every step beside h.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float again(float x) { return __int_as_float(__float_as_int(x) + (int)(blockDim.z - 1)); }
__device__ __forceinline__ double again(double x) {
    return __longlong_as_double(__double_as_longlong(x) + (long long)(blockDim.z - 1));
}
// The same for numbers that lie two to a register, of which the compiler kept what they are converted to.
template <typename S, int V> __device__ __forceinline__ void take_again(Halves<S, V>& x) {
    #pragma unroll
    for (int k = 0; k < V / 2; ++k) x.words[k] += blockDim.z - 1;
}
template <typename S> __device__ __forceinline__ void take_again(Pack<S, 1>&) {}
#else
template <typename R> inline R again(R x) { return x; }
template <typename R> inline void take_again(R&) {}
#endif

// -- functions of the language

template <typename R> __device__ __forceinline__ R sign(R x) { return x > 0 ? R(1) : x < 0 ? R(-1) : R(0); }
template <typename R> __device__ __forceinline__ R minimum(R a, R b) { return a != a || a < b ? a : b; }
template <typename R> __device__ __forceinline__ R maximum(R a, R b) { return a != a || a > b ? a : b; }
template <typename R> __device__ __forceinline__ R clamp(R x, R low, R high) {
    return minimum(maximum(x, low), high);
}
template <typename R> __device__ __forceinline__ R wrapped(R r, R d) { return r != 0 && (r < 0) != (d < 0) ? r + d : r; }
__device__ __forceinline__ float modulo(float x, float d) { return wrapped(fmodf(x, d), d); }
__device__ __forceinline__ double modulo(double x, double d) { return wrapped(fmod(x, d), d); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ __forceinline__ float softplus(float x) { return maximum(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ double softplus(double x) { return maximum(x, 0.0) + log1p(exp(-fabs(x))); }

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// A division to within two units in the last place, of any numbers: eight instructions where the next one has three.
__device__ __forceinline__ float full_quotient(float a, float b) {
#ifdef __CUDA_ARCH__
    float x;
    asm("div.full.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
#else
    return a / b;
#endif
}

// A number over b to within two units in the last place; infinite where b is below 2^-124. A GPU's own reciprocal is 0
// above 2^126. The quotient of an ordinary number is then under 2^-102, and 0 will do; that of a large one is not, and
// the reciprocal of a quarter of b is not 0. The compiler keeps one of the two where it knows the number; a surrogate's
// number, an argument of the kernel, is the same for all threads, and is not 0 (spikecore.lang.numbers, numerator_of).
__device__ __forceinline__ float quotient(float number, float b) {
#ifdef __CUDA_ARCH__
    const float part = fabsf(number) <= 16777216.0f ? 1.0f : 0.25f;
    float x;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(part * b));
    return part * number * x;
#else
    return number / b;
#endif
}

// x / y as IEEE has it, for a y that is the same at every step: the compiler finds the reciprocal once. It would find
// that of a plain division again for every one, ten instructions in all; backward with 16 bits waits for instructions.
//
// q = x * r with r = 1 / y rounded is off by less than 1.5 units in its last place, and a step of Newton's rounds
// right: the sum before its rounding is off by so little that only an x * 2^24 or x * 2^25 (x and y as integers of 24
// bits) within 7 of an odd multiple of y could be rounded wrongly, and all of those were computed, for all y. For that
// no number may be subnormal or infinite on the way, so y is between 2^-20 and 2^60, and |q| at least 2^-80; a sum that
// overflowed on the way is NaN. Anything else is divided by the plain division, but for 0, of which q loses the sign:
// neurons without input, or at rest with a constant one, divide it at every step, and a call of the plain division took
// up to three times as long as all the rest of such a kernel.
__device__ __forceinline__ float reciprocal(float y) {
    const float r = 1.0f / y, above = y * 1.4757395258967641e20f, below = r * 1.6225927682921336e32f;
    // 0, or NaN where one of them is infinite. For a choice between r and NaN the compiler would write all steps twice.
    return r + ((above - above) + (below - below));
}
#ifdef __CUDA_ARCH__
static __device__ __noinline__ float plainly_divided(float x, float y) {
#else
inline float plainly_divided(float x, float y) {
#endif
    return x / y;
}
__device__ __forceinline__ float divided(float x, float y) {
    const float r = reciprocal(y);
    const float near = x * r, q = fmaf(fmaf(-near, y, x), r, near);
    if (fabsf(q) >= 8.271806125530277e-25f) return q;
    return x == 0.0f && near == 0.0f ? near : plainly_divided(x, y);
}

// Divisions of a step by what is the same at each: all at once, and again one by one if one is not sure.
struct Quick {
    bool sure = true;
};
struct Plain {};
__device__ __forceinline__ float divided(float x, float y, Quick& how) {
    const float r = reciprocal(y), q = x * r, better = fmaf(fmaf(-q, y, x), r, q);
    // 0 keeps its sign; r - r is NaN where y is not ordinary
    const bool zero = x == r - r;
    how.sure = how.sure && (zero || fabsf(better) >= 8.271806125530277e-25f);
    return zero ? q : better;
}
__device__ __forceinline__ float divided(float x, float y, Plain&) { return divided(x, y); }

#include "staged.cuh"
#include "sums.cuh"
