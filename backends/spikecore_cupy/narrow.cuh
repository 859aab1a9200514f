// Kernels with feedback of narrow layers: one block has whole rows of the batch, and no block waits for another.
//
// The matrix stays in registers, as numbers of float. LANES lanes share EACH sums: a lane multiplies four neighbouring
// numbers, and then those 4 * LANES further, for all of its sums and ROWS rows, so that a number that comes from shared
// memory is used EACH times. (A multiprocessor takes 32 words in a cycle from there, and multiplies 128 times.) Then
// lanes add up what they have, each two lanes half of the sums, until each has its own. The order of a sum depends on
// LANES alone.
#pragma once

#include "gathered.cuh"

struct alignas(16) Quad {
    float of[4];
};

template <int WIDTH, int LANES, int EACH, int ROWS_, int LENGTH, int KEPT, int ARRIVING, int GATES, int GIVES>
struct Narrow {
    static constexpr int H = WIDTH, ROWS = ROWS_, SUMS = GATES / GIVES, CELLS = EACH * ROWS;
    // Groups of four numbers of a lane, and numbers of a row with those that fill the last group.
    static constexpr int QUADS = (H + 4 * LANES - 1) / (4 * LANES), PADDED = 4 * LANES * QUADS;
    static constexpr int BLOCK_THREADS = (LANES * ((H + EACH - 1) / EACH) + 31) / 32 * 32;
    // Neurons of a thread: of so many lanes each has the same one, of which the first has it as its own.
    static constexpr int V = CELLS > LANES ? CELLS / LANES : 1, SAME = CELLS > LANES ? 1 : LANES / CELLS;
    // Numbers that neurons give to one another, twice, so that one barrier a step is enough; then those of threads.
    static constexpr int GIVEN = GIVES * ROWS * PADDED, NUMBERS = (LENGTH * KEPT + 2 * ARRIVING) * V * BLOCK_THREADS;
    static constexpr int MEMORY = 4 * (2 * GIVEN + NUMBERS);
    // Groups of numbers of a product, and those that are loaded before other work.
    static constexpr int GROUPS = GIVES * QUADS * ROWS, EARLY = GROUPS < 4 ? GROUPS : 4;
    // Of a cluster of one block.
    static constexpr int C = 1, MT = BLOCK_THREADS / 32, KG = 1;

    struct First {
        Quad of[EARLY];
    };

    long long first;
    int offset[V];
    unsigned there, block;
    int lane, m0, cell;
    float w[SUMS][GIVES][QUADS][4][EACH];

    __device__ __forceinline__ explicit Narrow(long long neurons) {
        block = blockIdx.x, lane = threadIdx.x % LANES, m0 = threadIdx.x / LANES * EACH;
        // each bit of a lane says which half of its sums it has in the end
        cell = 0;
        #pragma unroll
        for (int bit = 1, half = CELLS / 2; bit < LANES && half; bit *= 2, half /= 2) cell += lane & bit ? half : 0;
        const long long batch = neurons / H, row = (long long)block * ROWS + cell / EACH;
        const int m = m0 + cell % EACH;
        first = (row < batch ? row : batch - 1) * H + (m < H ? m : H - 1);
        there = 0;
        #pragma unroll
        for (int j = 0; j < V; ++j) {
            const bool in = lane < LANES / SAME && row + down(j) < batch && m + right(j) < H;
            there |= (unsigned)in << j;
            offset[j] = in ? beyond(j) : 0;
        }
    }
    static __device__ constexpr int down(int j) { return j / EACH; }
    static __device__ constexpr int right(int j) { return j % EACH; }
    static __device__ constexpr int beyond(int j) { return down(j) * H + right(j); }
    static __device__ constexpr bool works() { return true; }
    __device__ __forceinline__ bool has(int j) const { return there >> j & 1; }
    __device__ __forceinline__ long long at(int j) const { return first + offset[j]; }

    __device__ __forceinline__ float* given(int buffer) const {
        return reinterpret_cast<float*>(block_memory()) + buffer * GIVEN;
    }
    __device__ __forceinline__ float& number(int place, int j) const {
        return given(2)[(place * V + j) * BLOCK_THREADS + threadIdx.x];
    }
    // Number n that is kept of step t for this thread's neuron j.
    __device__ __forceinline__ float& kept(int t, int n, int j) const { return number(t * KEPT + n, j); }
    // The number of an even or odd step of tensor n that arrives for it.
    __device__ __forceinline__ float& arriving(int n, int k, int j) const {
        return number(LENGTH * KEPT + 2 * n + k, j);
    }
    // Before anything is given: beyond the width are zeros.
    __device__ __forceinline__ void begin() const {
        for (int k = threadIdx.x; k < 2 * GIVEN; k += BLOCK_THREADS) given(0)[k] = 0.0f;
        meet();
    }
    static __device__ __forceinline__ void meet() {
        if (BLOCK_THREADS == 32) warp_wait();
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
                            const int k = 4 * (q * LANES + lane) + e, m = m0 + n;
                            const bool in = k < H && m < H;
                            w[s][g][q][e][n] = in ? value(from[(s + g) * H * H + k * numbers + m * sums]) : 0.0f;
                        }
                    }
                }
            }
        }
    }

    // Group n of the numbers that a thread multiplies, and the first ones.
    __device__ __forceinline__ const float* group(int buffer, int n) const {
        const int row = n / (GIVES * QUADS), given_at = n % (GIVES * QUADS);
        const int at = (given_at / QUADS * ROWS + row) * PADDED + 4 * LANES * (given_at % QUADS);
        return given(buffer) + at + 4 * lane;
    }
    __device__ __forceinline__ First first_groups(int buffer) const {
        First found;
        #pragma unroll
        for (int n = 0; n < EARLY; ++n) load_here(found.of[n].of, group(buffer, n));
        return found;
    }
    // What comes to this thread's neurons from the numbers in one of the two buffers: sum s of neuron j at s * V + j.
    __device__ __forceinline__ void product(int buffer, float (&sum)[SUMS * V], const First& early) const {
        float c[SUMS][CELLS] = {};
        #pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
            const Quad x = n < EARLY ? early.of[n] : *reinterpret_cast<const Quad*>(group(buffer, n));
            const int row = n / (GIVES * QUADS), g = n / QUADS % GIVES, q = n % QUADS;
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                #pragma unroll
                for (int s = 0; s < SUMS; ++s) {
                    #pragma unroll
                    for (int m = 0; m < EACH; ++m)
                        c[s][row * EACH + m] = fmaf(w[s][g][q][e][m], x.of[e], c[s][row * EACH + m]);
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            #pragma unroll
            for (int bit = 1, half = CELLS / 2; bit < LANES; bit *= 2, half /= 2) {
                const bool upper = lane & bit;
                #pragma unroll
                for (int n = 0; n < half; ++n) {
                    const float other = chosen(upper, c[s][n], c[s][half + n]);
                    c[s][n] = chosen(upper, c[s][half + n], c[s][n]) + exchanged(other, bit);
                }
                if (!half) c[s][0] += exchanged(c[s][0], bit);
            }
            #pragma unroll
            for (int j = 0; j < V; ++j) sum[s * V + j] = c[s][j];
        }
    }

    // Put the numbers of this thread's neurons, number g of each, in one of the two buffers.
    template <typename R> __device__ __forceinline__ void give(int buffer, const Pack<R, V>& numbers, int g = 0) const {
        float* to = given(buffer) + (g * ROWS + cell / EACH) * PADDED + m0 + cell % EACH;
        #pragma unroll
        for (int j = 0; j < V; ++j)
            if (has(j)) to[down(j) * PADDED + right(j)] = numbers[j];
    }
};
