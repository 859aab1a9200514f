// Kernels with feedback of narrow layers: one block has whole rows of the batch, and no block waits for another.
//
// The matrix stays in registers, as numbers of float. LANES lanes share EACH sums: a lane multiplies four neighbouring
// numbers, and then those 4 * LANES further, for all of its sums and ROWS rows, so that a number that comes from shared
// memory is used EACH times. (A multiprocessor takes 32 words in a cycle from there, and multiplies 128 times.) Then
// lanes add up what they have, each two lanes half of the sums, until each has its own. The order of a sum depends on
// LANES and CHAINS alone.
//
// With SPIKES a neuron gives one bit, a warp a word of them, and a thread adds up the weights of those that fired: all of
// a neuron's, so that no lane waits for another. The time of a step does not depend on the numbers.
#pragma once

#include "gathered.cuh"

struct alignas(16) Quad {
    float of[4];
};

template <
    int WIDTH, int LANES, int EACH, int ROWS_, int LENGTH, int KEPT, int ARRIVING, int GATES, int GIVES,
    int SPIKES>
struct Narrow {
    static constexpr int H = WIDTH, ROWS = ROWS_, SUMS = GATES / GIVES, CELLS = EACH * ROWS;
    // Groups of four numbers of a lane, and numbers of a row with those that fill the last group.
    static constexpr int QUADS = (H + 4 * LANES - 1) / (4 * LANES), PADDED = 4 * LANES * QUADS;
    // Parts of each sum of a lane that do not wait for one another.
    static constexpr int CHAINS = EACH < 4 ? 4 / EACH : 1;
    static constexpr int BLOCK_THREADS = (LANES * ((H + EACH - 1) / EACH) + 31) / 32 * 32, WARPS = BLOCK_THREADS / 32;
    // Steps of a tensor that arrives have one place after the other.
    static constexpr int PLACES = 4;
    // Neurons of a thread: of so many lanes each has the same one, of which the first has it as its own.
    static constexpr int V = CELLS > LANES ? CELLS / LANES : 1, SAME = CELLS > LANES ? 1 : LANES / CELLS;
    // Numbers that neurons give to one another, twice, so that one barrier a step is enough; then those of threads. Of
    // spikes four words, and the numbers before the first step.
    static constexpr int GIVEN = SPIKES ? 4 : GIVES * ROWS * PADDED, BEFORE = SPIKES ? PADDED : 0;
    static constexpr int NUMBERS = (LENGTH * KEPT + PLACES * ARRIVING) * V * BLOCK_THREADS;
    static constexpr int MEMORY = 4 * (2 * GIVEN + BEFORE + NUMBERS);
    // Groups of numbers of a product, and those that are loaded before other work.
    static constexpr int GROUPS = SPIKES ? 1 : GIVES * QUADS * ROWS, EARLY = GROUPS < 4 ? GROUPS : 4;
    // Of a cluster of one block.
    static constexpr int C = 1, MT = WARPS, KG = 1;
    static_assert(!SPIKES || (LANES == 1 && EACH == 1 && ROWS == 1 && SUMS == 1 && H <= 128), "a thread for each neuron");
    struct First {
        Quad of[EARLY];
    };

    long long first;
    int offset[V];
    unsigned there, block;
    int thread, lane, m0, cell;
    float w[SUMS][GIVES][QUADS][4][EACH];
    // The spikes of a block of one warp, which needs no memory for them.
    unsigned fired;

    __device__ __forceinline__ explicit Narrow(long long neurons) {
        block = blockIdx.x, thread = threadIdx.x, fired = 0;
        hold(thread);  // to ask for it takes longer than a register
        lane = thread % LANES, m0 = thread / LANES * EACH;
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
        return given(2)[BEFORE + (place * V + j) * BLOCK_THREADS + thread];
    }
    // Number n that is kept of step t for this thread's neuron j.
    __device__ __forceinline__ float& kept(int t, int n, int j) const { return number(t * KEPT + n, j); }
    // The number of a step, of those with place k, of tensor n that arrives for it.
    __device__ __forceinline__ float& arriving(int n, int k, int j) const {
        return number(LENGTH * KEPT + PLACES * n + k, j);
    }
    // Before anything is given: beyond the width are zeros.
    __device__ __forceinline__ void begin() const {
        for (int k = thread; k < 2 * GIVEN + BEFORE; k += BLOCK_THREADS) given(0)[k] = 0.0f;
        meet();
    }
    static __device__ __forceinline__ void meet() {
        if (WARPS == 1) warp_wait();
        else block_wait();
    }
    __device__ __forceinline__ void pass(int) const {
        if (!SPIKES || WARPS > 1) meet();
    }
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

    // Group n of the numbers that a thread multiplies, and the first ones; of spikes all words.
    __device__ __forceinline__ const float* group(int buffer, int n) const {
        const int row = n / (GIVES * QUADS), given_at = n % (GIVES * QUADS);
        const int at = (given_at / QUADS * ROWS + row) * PADDED + 4 * LANES * (given_at % QUADS);
        return given(buffer) + at + 4 * lane;
    }
    __device__ __forceinline__ First first_groups(int buffer) const {
        First found;
        if (SPIKES && WARPS == 1) {
            found.of[0].of[0] = __uint_as_float(fired);
            return found;
        }
        #pragma unroll
        for (int n = 0; n < EARLY; ++n) load_here(found.of[n].of, SPIKES ? given(buffer) : group(buffer, n));
        return found;
    }
    // What comes to this thread's neurons from the numbers in one of the two buffers: sum s of neuron j at s * V + j.
    __device__ __forceinline__ void product(int buffer, float (&sum)[SUMS * V], const First& early) const {
        if constexpr (SPIKES) {
            float c[4] = {};
            #pragma unroll
            for (int k = 0; k < H; ++k) {
                if (__float_as_uint(early.of[0].of[k / 32]) >> k % 32 & 1) c[k % 4] += w[0][0][k / 4][k % 4][0];
            }
            sum[0] = (c[0] + c[2]) + (c[1] + c[3]);
            return;
        }
        float c[SUMS][CELLS][CHAINS] = {};
        #pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
            const Quad x = n < EARLY ? early.of[n] : *reinterpret_cast<const Quad*>(group(buffer, n));
            const int row = n / (GIVES * QUADS), g = n / QUADS % GIVES, q = n % QUADS;
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                #pragma unroll
                for (int s = 0; s < SUMS; ++s) {
                    #pragma unroll
                    for (int m = 0; m < EACH; ++m) {
                        float& part = c[s][row * EACH + m][e % CHAINS];
                        part = fmaf(w[s][g][q][e][m], x.of[e], part);
                    }
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            float all[CELLS];
            #pragma unroll
            for (int n = 0; n < CELLS; ++n) {
                #pragma unroll
                for (int half = CHAINS / 2; half; half /= 2)
                    for (int k = 0; k < half; ++k) c[s][n][k] += c[s][n][half + k];
                all[n] = c[s][n][0];
            }
            #pragma unroll
            for (int bit = 1, half = CELLS / 2; bit < LANES; bit *= 2, half /= 2) {
                const bool upper = lane & bit;
                #pragma unroll
                for (int n = 0; n < half; ++n) {
                    const float other = chosen(upper, all[n], all[half + n]);
                    all[n] = chosen(upper, all[half + n], all[n]) + exchanged(other, bit);
                }
                if (!half) all[0] += exchanged(all[0], bit);
            }
            #pragma unroll
            for (int j = 0; j < V; ++j) sum[s * V + j] = all[j];
        }
    }
    // The same of numbers that are no spikes, before the first step.
    __device__ __forceinline__ void product_of(const Pack<float, V>& numbers, float (&sum)[V]) const {
        if (thread < H) given(2)[thread] = numbers[0];
        meet();
        float c[4] = {};
        #pragma unroll
        for (int k = 0; k < H; ++k) c[k % 4] = fmaf(w[0][0][k / 4][k % 4][0], given(2)[k], c[k % 4]);
        sum[0] = (c[0] + c[2]) + (c[1] + c[3]);
    }

    // Put the numbers of this thread's neurons, number g of each, in one of the two buffers.
    template <typename R> __device__ __forceinline__ void give(int buffer, const Pack<R, V>& numbers, int g = 0) {
        if (SPIKES) {
            fired = voted(has(0) && numbers[0] != 0);
            if (WARPS > 1 && thread % 32 == 0)
                reinterpret_cast<unsigned*>(given(buffer))[thread / 32] = fired;
            return;
        }
        float* to = given(buffer) + (g * ROWS + cell / EACH) * PADDED + m0 + cell % EACH;
        #pragma unroll
        for (int j = 0; j < V; ++j)
            if (has(j)) to[down(j) * PADDED + right(j)] = numbers[j];
    }
};
