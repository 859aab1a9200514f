// Kernels with feedback of narrow layers: one block has a row of the batch, and no block waits for another.
//
// The matrix stays in registers, as numbers of float. LANES lanes share EACH sums: a lane multiplies four neighbouring
// numbers, and then those 4 * LANES further, for all of its sums. Then lanes add up what they have, each two lanes half of
// the sums, until each has its own.
// (Bits of spikes instead of numbers took longer, 160 us for 109 of 700 steps of 64 neurons on an H200: predicates for
// eight additions come 20 cycles after one another.)
#pragma once

#include "gathered.cuh"

struct alignas(16) Quad {
    float of[4];
};

template <int WIDTH, int LANES, int EACH, int LENGTH, int KEPT, int ARRIVING, int GATES, int GIVES>
struct Narrow {
    static constexpr int H = WIDTH, SUMS = GATES / GIVES, V = 1;
    // Groups of four numbers of a lane, and numbers of a row with those that fill the last group.
    static constexpr int QUADS = (H + 4 * LANES - 1) / (4 * LANES), PADDED = 4 * LANES * QUADS;
    // Parts of each sum of a lane that do not wait for one another.
    static constexpr int CHAINS = EACH < 4 ? 4 / EACH : 1;
    static constexpr int BLOCK_THREADS = (LANES * ((H + EACH - 1) / EACH) + 31) / 32 * 32, WARPS = BLOCK_THREADS / 32;
    // Steps of a tensor that arrives have one place after the other.
    static constexpr int PLACES = 4;
    // Numbers that neurons give to one another, twice, so that one barrier a step is enough; then those of threads.
    static constexpr int GIVEN = GIVES * PADDED;
    static constexpr int NUMBERS = (LENGTH * KEPT + PLACES * ARRIVING) * BLOCK_THREADS;
    static constexpr int MEMORY = 4 * (2 * GIVEN + NUMBERS);
    // Groups of numbers of a product, and those that are loaded before other work.
    static constexpr int GROUPS = GIVES * QUADS, EARLY = GROUPS < 4 ? GROUPS : 4;
    // Of a cluster of one block.
    static constexpr int C = 1, MT = WARPS, KG = 1;
    static_assert(EACH <= LANES, "a thread has one neuron");
    struct First {
        Quad of[EARLY];
    };

    long long first;
    int offset[V];
    unsigned block;
    int thread, lane, m0, m;
    bool own;
    float w[SUMS][GIVES][QUADS][4][EACH];

    __device__ __forceinline__ explicit Narrow(long long neurons) {
        block = blockIdx.x, thread = threadIdx.x, offset[0] = 0;
        hold(thread);  // to ask for it takes longer than a register
        lane = thread % LANES, m0 = thread / LANES * EACH;
        // each bit of a lane says which half of its sums it has in the end; of lanes with the same sum the first has it
        m = m0;
        #pragma unroll
        for (int bit = 1, half = EACH / 2; half; bit *= 2, half /= 2) m += lane & bit ? half : 0;
        own = lane < EACH && m < H;
        first = (long long)block * H + (m < H ? m : H - 1);
    }
    static __device__ constexpr int beyond(int) { return 0; }
    static __device__ constexpr bool works() { return true; }
    __device__ __forceinline__ bool has(int) const { return own; }
    __device__ __forceinline__ long long at(int) const { return first; }

    __device__ __forceinline__ float* given(int buffer) const {
        return reinterpret_cast<float*>(block_memory()) + buffer * GIVEN;
    }
    __device__ __forceinline__ float& number(int place) const {
        return given(2)[place * BLOCK_THREADS + thread];
    }
    // Number n that is kept of step t for this thread's neuron j.
    __device__ __forceinline__ float& kept(int t, int n, int) const { return number(t * KEPT + n); }
    // The number of a step, of those with place k, of tensor n that arrives for it.
    __device__ __forceinline__ float& arriving(int n, int k, int) const {
        return number(LENGTH * KEPT + PLACES * n + k);
    }
    // Before anything is given: beyond the width are zeros.
    __device__ __forceinline__ void begin() const {
        for (int k = thread; k < 2 * GIVEN; k += BLOCK_THREADS) given(0)[k] = 0.0f;
        meet();
    }
    static __device__ __forceinline__ void meet() {
        if (WARPS == 1) warp_wait();
        else block_wait();
    }
    __device__ __forceinline__ void pass(int) const { meet(); }
    __device__ __forceinline__ void wait(int) const {}
    __device__ __forceinline__ void end() const {}

    // The weights of this thread: what number k adds to sum m is at k * numbers + m * sums, of each gate.
    template <typename S> __device__ __forceinline__ void take_weights(const S* from, int numbers, int sums) {
        #pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            #pragma unroll
            for (int g = 0; g < GIVES; ++g) {
                #pragma unroll
                for (int q = 0; q < QUADS; ++q) {
                    #pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        #pragma unroll
                        for (int n = 0; n < EACH; ++n) {
                            const int k = 4 * (q * LANES + lane) + e, to = m0 + n;
                            const bool in = k < H && to < H;
                            w[s][g][q][e][n] = in ? value(from[(s + g) * H * H + k * numbers + to * sums]) : 0.0f;
                        }
                    }
                }
            }
        }
    }

    // Group n of the numbers that a thread multiplies, and the first ones.
    __device__ __forceinline__ const float* group(int buffer, int n) const {
        return given(buffer) + n / QUADS * PADDED + 4 * (n % QUADS * LANES + lane);
    }
    __device__ __forceinline__ First first_groups(int buffer) const {
        First found;
        #pragma unroll
        for (int n = 0; n < EARLY; ++n) load_here(found.of[n].of, group(buffer, n));
        return found;
    }
    // What comes to this thread's neurons from the numbers in one of the two buffers: one for each gate.
    __device__ __forceinline__ void product(int buffer, float (&sum)[SUMS], const First& early) const {
        float c[SUMS][EACH][CHAINS] = {};
        #pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
            const Quad x = n < EARLY ? early.of[n] : *reinterpret_cast<const Quad*>(group(buffer, n));
            const int g = n / QUADS, q = n % QUADS;
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                #pragma unroll
                for (int s = 0; s < SUMS; ++s) {
                    #pragma unroll
                    for (int m = 0; m < EACH; ++m) {
                        float& part = c[s][m][e % CHAINS];
                        part = fmaf(w[s][g][q][e][m], x.of[e], part);
                    }
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            float all[EACH];
            #pragma unroll
            for (int n = 0; n < EACH; ++n) {
                #pragma unroll
                for (int half = CHAINS / 2; half; half /= 2)
                    for (int k = 0; k < half; ++k) c[s][n][k] += c[s][n][half + k];
                all[n] = c[s][n][0];
            }
            #pragma unroll
            for (int bit = 1, half = EACH / 2; bit < LANES; bit *= 2, half /= 2) {
                const bool upper = lane & bit;
                #pragma unroll
                for (int n = 0; n < half; ++n) {
                    const float other = chosen(upper, all[n], all[half + n]);
                    all[n] = chosen(upper, all[half + n], all[n]) + exchanged(other, bit);
                }
                if (!half) all[0] += exchanged(all[0], bit);
            }
            sum[s] = all[0];
        }
    }
    // Put the numbers of this thread's neurons, number g of each, in one of the two buffers.
    template <typename R> __device__ __forceinline__ void give(int buffer, const Pack<R, V>& numbers, int g = 0) const {
        if (own) given(buffer)[g * PADDED + m] = numbers[0];
    }
};
