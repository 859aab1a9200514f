// What the kernels of spikecore are written with: packs of neighbouring neurons, 16-bit numbers, and the functions of
// the language that C has no name for. Arithmetic is IEEE's, without contraction.
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

// What the threads of a block share, and where they wait for one another.
#ifdef __CUDA_ARCH__
#define BLOCK_SHARED __shared__
#define BLOCK_WAIT() __syncthreads()
#endif

// -- steps that begin beside a sector of memory, staged in shared memory
//
// Sectors of 32 bytes that two blocks write in parts are read and written by the memory once more, and narrow accesses
// take a multiple of the instructions. So a block copies its part of every step to and from shared memory in whole
// packs of 8 bytes, from the sector in which the part begins; its threads find their numbers there one by one.

template <typename S> constexpr int PACKED = 8 / sizeof(S);  // numbers of a pack
template <typename S> constexpr int ALIGNED = 32 / sizeof(S);  // numbers of a sector

template <typename S, int N> struct alignas(32) Shared { S at[N]; };

// The neurons of a block: each thread has V of them, blockDim.x apart. All threads take part, those without neurons too.
template <int V> struct Part {
    long long first, neurons;
    int count;
    __device__ __forceinline__ Part(long long neurons) : first(blockIdx.x * (long long)(V * blockDim.x)), neurons(neurons) {
        count = neurons - first < V * (int)blockDim.x ? (int)(neurons - first) : V * (int)blockDim.x;
    }
};

__device__ __forceinline__ void copy_in(void* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 8;"
        :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)) : "memory"
    );
#else
    *static_cast<unsigned long long*>(to) = *static_cast<const unsigned long long*>(from);
#endif
}
// Until the block's copies have come.
__device__ __forceinline__ void copied_in() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    BLOCK_WAIT();
}

// The part of a block in T steps of a tensor. In shared memory, too, a step begins with the sector in which the part begins
// in the tensor: so packs are aligned in both. Places are counted from the first sector, with 32 bits.
template <typename S, int V, int T, int ROW> struct Staged {
    S* rows;
    long long base;
    unsigned offset, neurons;
    int count;
    // `first` is the first of the steps
    __device__ __forceinline__ Staged(S* rows, long long first, const Part<V>& part)
        : rows(rows), neurons((unsigned)part.neurons), count(part.count) {
        const long long at = first * part.neurons + part.first;
        offset = (unsigned)at % ALIGNED<S>;
        base = at - offset;
    }
    // threads of a block, known to the compiler
    static __device__ __forceinline__ int threads() {
#ifdef __CUDA_ARCH__
        return (ROW - ALIGNED<S>) / V;
#else
        return blockDim.x;
#endif
    }
    // how many numbers of its first sector are before the part, in step t, and where that sector is
    __device__ __forceinline__ int ahead(int t) const { return (offset + t * neurons) % ALIGNED<S>; }
    __device__ __forceinline__ unsigned sector(int t) const { return offset + t * neurons - ahead(t); }

    // The pack at number k of step t, to and from shared memory. It is read if it lies in a sector that the part has
    // numbers of, and written if all of it is the part's.
    __device__ __forceinline__ void read_pack(const S* tensor, int t, int k) const {
        if (k < ahead(t) + count) copy_in(rows + t * ROW + k, tensor + base + (sector(t) + k));
    }
    __device__ __forceinline__ void write_pack(S* tensor, int t, int k) const {
        if (k >= ahead(t) && k + PACKED<S> <= ahead(t) + count) {
            *reinterpret_cast<unsigned long long*>(tensor + base + (sector(t) + k)) =
                *reinterpret_cast<const unsigned long long*>(rows + t * ROW + k);
        }
    }
    // Of a pack that is not all the part's, what is.
    __device__ __forceinline__ void write_numbers(S* tensor, int t, bool at_end) const {
        const int end = ahead(t) + count, k = (at_end ? end : ahead(t)) / PACKED<S> * PACKED<S>;
        #pragma unroll
        for (int j = 0; j < PACKED<S>; ++j) {
            if (k + j >= ahead(t) && k + j < end) (tensor + base)[sector(t) + k + j] = rows[t * ROW + k + j];
        }
    }

    // Step t, but for the sector behind the block's last thread.
    __device__ __forceinline__ void read(const S* tensor, int t) const {
        #pragma unroll
        for (int u = 0; u < V; u += PACKED<S>) read_pack(tensor, t, u * threads() + PACKED<S> * threadIdx.x);
    }
    __device__ __forceinline__ void write(S* tensor, int t) const {
        #pragma unroll
        for (int u = 0; u < V; u += PACKED<S>) write_pack(tensor, t, u * threads() + PACKED<S> * threadIdx.x);
    }
    // These sectors of so many steps, four packs each, and the packs at both ends of the part.
    __device__ __forceinline__ void read_ends(const S* tensor, int steps) const {
        for (int k = threadIdx.x; k < 4 * steps; k += threads()) {
            read_pack(tensor, k / 4, V * threads() + k % 4 * PACKED<S>);
        }
    }
    __device__ __forceinline__ void write_ends(S* tensor, int steps) const {
        for (int k = threadIdx.x; k < 6 * steps; k += threads()) {
            const int t = k / 6, end = k % 6;
            if (end < 4) {
                write_pack(tensor, t, V * threads() + end * PACKED<S>);
            } else {
                write_numbers(tensor, t, end == 5);
            }
        }
    }

    // The numbers of this thread in step t.
    struct Numbers {
        S at[V];
        __device__ __forceinline__ S operator[](int j) const { return at[j]; }
    };
    __device__ __forceinline__ Numbers get(int t) const {
        const S* from = rows + t * ROW + ahead(t) + threadIdx.x;
        Numbers found;
        #pragma unroll
        for (int j = 0; j < V; ++j) found.at[j] = from[j * threads()];
        return found;
    }
    __device__ __forceinline__ void put(int t, const Pack<S, V>& pack) const {
        S* to = rows + t * ROW + ahead(t) + threadIdx.x;
        #pragma unroll
        for (int j = 0; j < V; ++j) to[j * threads()] = pack[j];
    }
};

// Numbers of one step that are not staged: states, checkpoints, and parameters of each neuron.
template <typename R, int V> __device__ __forceinline__ Pack<R, V> load_apart(const R* from, const Part<V>& part) {
    Pack<R, V> found;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
        const int k = j * blockDim.x + threadIdx.x;
        found[j] = k < part.count ? from[part.first + k] : R(0);
    }
    return found;
}
template <typename R, int V>
__device__ __forceinline__ void store_apart(R* to, const Pack<R, V>& pack, const Part<V>& part) {
    #pragma unroll
    for (int j = 0; j < V; ++j) {
        const int k = j * blockDim.x + threadIdx.x;
        if (k < part.count) to[part.first + k] = pack[j];
    }
}

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

// The range of a learnt parameter: its ends, which it may lack, and the least value inside, which is above the low end
// where that is outside. NaN stays.
template <typename R, bool LOW, bool HIGH, bool OPEN>
struct Range {
    R low, high, least;
};

template <typename R, bool LOW, bool HIGH, bool OPEN>
__device__ __forceinline__ R inside(R value, Range<R, LOW, HIGH, OPEN> range) {
    if (LOW && (OPEN ? value <= range.low : value < range.low)) return range.least;
    return HIGH && value > range.high ? range.high : value;
}

// Put parameters into their range, by one block. What others read meanwhile they put inside for themselves.
template <typename R, bool LOW, bool HIGH, bool OPEN>
__device__ __forceinline__ void put_inside(R* values, long long count, Range<R, LOW, HIGH, OPEN> range) {
    for (long long k = threadIdx.x; k < count; k += blockDim.x) {
        const R value = values[k], nearest = inside(value, range);
        if (value != nearest) values[k] = nearest;
    }
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
#else
template <typename R> inline void hold(R&) {}
#endif

// The same number, of which the compiler knows nothing. It would compute 0 or 1 as an integer, whose negation has no -0.
template <typename R> __device__ __forceinline__ R opaque(R x) { hold(x); return x; }

// -- functions of the language

template <typename R> __device__ __forceinline__ R sign(R x) { return x > 0 ? R(1) : x < 0 ? R(-1) : R(0); }
template <typename R> __device__ __forceinline__ R minimum(R a, R b) { return a != a || a < b ? a : b; }
template <typename R> __device__ __forceinline__ R maximum(R a, R b) { return a != a || a > b ? a : b; }
template <typename R> __device__ __forceinline__ R clamp(R x, R low, R high) {
    return minimum(maximum(x, low), high);
}
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ __forceinline__ float softplus(float x) { return maximum(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ double softplus(double x) { return maximum(x, 0.0) + log1p(exp(-fabs(x))); }

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
// overflowed on the way is NaN. Anything else, and 0, whose sign would be lost, is divided by the plain division.
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
    return x == 0.0f && reciprocal(y) == reciprocal(y) ? x * y : x / y;
}
__device__ __forceinline__ float divided(float x, float y) {
    const float r = reciprocal(y);
    float q = x * r;
    q = fmaf(fmaf(-q, y, x), r, q);
    return fabsf(q) >= 8.271806125530277e-25f ? q : plainly_divided(x, y);
}

// -- sums over the threads of a block, in a fixed order; the first thread gets the sum

#ifdef __CUDA_ARCH__
template <typename R> __device__ R block_sum(R x) {
    __shared__ R parts[32];
    for (int offset = 16; offset; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : R(0);
    for (int offset = 16; offset; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
    return x;
}
#elif !defined(CLUSTERS)
template <typename R> R block_sum(R x) { return x; }
#endif

// -- sums per channel over the threads of a block, in a fixed order

// Each thread has V neighbouring neurons, and a number of each. Where `lanes` neighbouring threads lie in one channel, all
// of them get the sum over these threads' numbers; else (lanes 0) neurons `period` apart have the same channel, and get
// the sum over them. `parts` holds V numbers of each thread.
template <int V, typename R>
__device__ __forceinline__ void block_totals(R* parts, Pack<R, V>& x, int lanes, int period) {
    const int here = threadIdx.x, threads = blockDim.x;
    BLOCK_WAIT();  // until the parts of an earlier sum have been read
    if (lanes) {
        R sum = x[0];
        #pragma unroll
        for (int j = 1; j < V; ++j) sum += x[j];
        parts[here] = sum;
        const int lane = here % lanes;
        for (int width = lanes; width > 1; width = (width + 1) / 2) {
            BLOCK_WAIT();
            if (lane < width / 2) parts[here] += parts[here + (width + 1) / 2];
        }
        BLOCK_WAIT();
        #pragma unroll
        for (int j = 0; j < V; ++j) x[j] = parts[here - lane];
    } else if (period < V * threads) {
        #pragma unroll
        for (int j = 0; j < V; ++j) parts[V * here + j] = x[j];
        BLOCK_WAIT();
        for (int k = here; k < period; k += threads) {
            R sum = parts[k];
            #pragma unroll 8
            for (int other = k + period; other < V * threads; other += period) sum += parts[other];
            parts[k] = sum;
        }
        BLOCK_WAIT();
        const int begin = V * here % period;  // a multiple of V, as the period is
        #pragma unroll
        for (int j = 0; j < V; ++j) x[j] = parts[begin + j];
    }
}

// Store the sums of a block, block after block: one for each group of `lanes` threads, or `period`.
template <int V, typename R>
__device__ __forceinline__ void block_store(R* to, const Pack<R, V>& x, int lanes, int period) {
    const int here = threadIdx.x;
    if (lanes) {
        if (here % lanes == 0) to[blockIdx.x * (long long)(blockDim.x / lanes) + here / lanes] = x[0];
    } else if (V * here < period) {
        store(to + blockIdx.x * (long long)period + V * here, x);
    }
}

// The numbers that blocks left for channel c: number k of all is of channel k / inner % channels. A block adds them up,
// with `side` channels side by side, so that its threads lie in lines.
struct ChannelNumbers {
    unsigned numbers, channels, inner, lines, line, c;
    __device__ __forceinline__ ChannelNumbers(
        unsigned numbers, unsigned channels, unsigned inner, unsigned side, unsigned c
    ) : numbers(numbers), channels(channels), inner(inner), lines(blockDim.x / side), line(threadIdx.x / side), c(c) {}
    // The sum over the numbers of this thread's line; several are loaded before the first is added.
    template <typename R, typename F> __device__ __forceinline__ R sum(F value) const {
        const unsigned whole = channels * inner, count = c < channels ? (numbers + whole - 1) / whole * inner : 0;
        R found = 0;
        for (unsigned begin = line; begin < count; begin += 8 * lines) {
            R values[8];
            #pragma unroll
            for (int u = 0; u < 8; ++u) {
                const unsigned k = begin + u * lines;
                const unsigned at = inner == 1 ? k * channels + c : (k / inner * channels + c) * inner + k % inner;
                values[u] = k < count && at < numbers ? value(at) : R(0);
            }
            #pragma unroll
            for (int u = 0; u < 8; ++u) found += values[u];
        }
        return found;
    }
};

// The sum over the lines of a block.
template <typename R> __device__ __forceinline__ R lines_total(R* found, R sum, int side) {
    const int here = threadIdx.x, line = here / side;
    BLOCK_WAIT();  // until the numbers of an earlier sum have been read
    found[here] = sum;
    for (int width = blockDim.x / side; width > 1; width = (width + 1) / 2) {
        BLOCK_WAIT();
        if (line < width / 2) found[here] += found[here + (width + 1) / 2 * side];
    }
    BLOCK_WAIT();
    return found[here % side];
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }
