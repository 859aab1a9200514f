// What kernels with feedback are written with: all steps of a layer whose outputs come back through a matrix, in one
// launch. A cluster of C blocks has 8 * NT rows of the batch; each of its blocks has a part of the neurons.
//
// The matrix stays in registers, as operands of mma.m16n8k16. It is split in parts of 8 bits, bfloat16 each, whose sum it
// is, and so are the numbers that it is multiplied by: products are exact, sums are float's. A spike is one part.
// What neurons give to one another goes through shared memory: every block has those of all blocks of its cluster, in the
// layout of an operand, twice, so that one barrier a step is enough. A block's numbers go to another block as one copy:
// of stores of words a multiprocessor took 1.6 in a cycle (H200). The time of a step does not depend on the numbers.
#pragma once

#include "gathered.cuh"

// The 8 bits of a number that come first, and two of such numbers in a word.
__device__ __forceinline__ float first_bits(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }
__device__ __forceinline__ unsigned pair_of(float a, float b) {
    return __float_as_uint(a) >> 16 | (__float_as_uint(b) & 0xffff0000u);
}

// Four numbers of an operand, and the part of them that comes first, of which the rest remains.
struct alignas(16) Four {
    float of[4];
    __device__ __forceinline__ Operand part() {
        const Operand first = {pair_of(of[0], of[1]), pair_of(of[2], of[3])};
        #pragma unroll
        for (int k = 0; k < 4; ++k) of[k] -= first_bits(of[k]);
        return first;
    }
};

// The sizes of a kernel, and where a thread is in them. WIDTH neurons in a row; SPLIT warps share 16 neurons: each adds up
// a part of the numbers that come to them. Weights have WP parts, and the numbers that are multiplied by them VP.
// LENGTH steps of a chunk keep KEPT numbers of each neuron in shared memory; of ARRIVING tensors numbers of two steps
// are there or on their way. The matrix has GATES times WIDTH rows, and SPLIT warps for each gate of 16 neurons. A neuron
// gives GIVES numbers: its output forward, where each gate is a sum, and its gates' cotangents backward, of which all
// warps have parts of one sum.
template <
    int WIDTH, int CLUSTER, int SPLIT, int TILES, int WP, int VP, int LENGTH, int KEPT, int ARRIVING, int GATES, int GIVES>
struct Layer {
    static constexpr int H = WIDTH, C = CLUSTER, KS = SPLIT, NT = TILES;
    // Warps of 16 neurons, the sums of a neuron, and the warps of a sum.
    static constexpr int KG = KS * GATES, SUMS = GATES / GIVES, SHARING = KG / SUMS;
    // KT groups of 16 neurons have a place; a warp multiplies NK of those that there are, whatever the cluster.
    static constexpr int MT = (H + 16 * C - 1) / (16 * C), KT = MT * C, NK = ((H + 15) / 16 + KS - 1) / KS;
    static constexpr int BLOCK_THREADS = 32 * MT * KG, ROWS = 8 * NT;
    // A unit is two rows of the batch of one neuron in each thread; a thread has MINE of the 2 * NT of its 16 neurons.
    static constexpr int UNITS = 2 * NT, MINE = (UNITS + KG - 1) / KG, V = 2 * MINE, WORKERS = UNITS / MINE;
    // Products of parts of a weight and of a number: what both are small in is below the last bit.
    static constexpr int SMALL = WP + VP > 4 ? WP + VP - 4 : 0, PRODUCTS = WP * VP - SMALL * (SMALL + 1) / 2;
    static constexpr int HOLDERS = 32 * MT * WORKERS;
    // More blocks than a cluster has give their numbers to one another through global memory, EXCHANGE words for both
    // buffers and a count of each block. From there each two blocks take those of all to their own memory: each takes
    // half of them, for both. GIVING blocks have neurons. GROUP blocks have a signal together, so that their numbers are
    // multiplied while others are on their way.
    static constexpr bool APART = C > 8;
    static constexpr int GIVING = (H + 16 * MT - 1) / (16 * MT), GROUP = (C + 15) / 16;
    static constexpr int GROUPS = (GIVING + GROUP - 1) / GROUP, TAKEN = (GIVING + KS - 1) / KS;
    // There a number that has parts is whole, a float, and split where it is multiplied: those are less words to take.
    static constexpr bool WHOLE = APART && VP > 1;
    static constexpr int HALVES = WHOLE ? 2 : VP;
    static constexpr int FRAGMENTS = 2 * GIVES * HALVES * NT * KT * 64, EXCHANGE = FRAGMENTS + (C + 31) / 32 * 32;
    static constexpr int SHARED = APART ? FRAGMENTS / 2 : FRAGMENTS, PARTS = KG > 1 ? KG * MT * NT * 128 : 0;
    // What a block gives lies together, in the place of its rank: GIVEN words.
    static constexpr int GIVEN = FRAGMENTS / 2 / C;
    // Before them, two signals, of two words each, and those of groups.
    static constexpr int NUMBERS = (LENGTH * KEPT + 2 * ARRIVING) * V * HOLDERS;
    static constexpr int SIGNALS = APART ? 36 : 4, MEMORY = 4 * (SIGNALS + SHARED + PARTS + NUMBERS);
    // Sums whose products do not wait for one another, as many as registers beside the weights allow. The same for any
    // NT, so that rows have the same bits.
    // Each of the four parts of a multiprocessor has 512 registers for a lane, and a quarter of the warps.
    static constexpr int REGISTERS = BLOCK_THREADS > 256 ? 512 / ((BLOCK_THREADS + 127) / 128) / 8 * 8 : 255;
    static constexpr int CHAINS = REGISTERS - NK * WP * 4 >= 80 ? 4 : 2;

    // The neurons of a thread, in the place of the index of the first of neighbouring ones. One that is beyond the width
    // or the batch is that of another thread, so that it has ordinary numbers; it stores nothing and gives 0.
    long long first;
    int offset[V];
    unsigned there;
    int lane, warp, mt, ks, m0, unit;
    unsigned rank, block;
    unsigned w[NK][WP][4];
    unsigned phases;
    // What blocks that are no cluster give to one another: both buffers, and how often each block has given.
    unsigned* exchange;

    __device__ __forceinline__ explicit Layer(long long neurons, unsigned* all = nullptr) {
        lane = threadIdx.x % 32, warp = threadIdx.x / 32, mt = warp / KG, ks = warp % KG;
        block = blockIdx.x, rank = C > 1 && !APART ? cluster_rank() : 0;
        if (APART) {
            unsigned& number = *reinterpret_cast<unsigned*>(block_memory());
            if (threadIdx.x == 0 && pair_rank() == 0) tell_pair(&number, ticket(all));
            pair_wait();
            block = 2 * number + pair_rank(), rank = block % C;
            exchange = all + 32 + (long long)(block / C) * EXCHANGE;
        }
        m0 = (rank * MT + mt) * 16;
        unit = ks * MINE;
        const int half = MINE > 1 ? 0 : unit % 2, tile = unit / 2;
        const long long batch = neurons / H, row = (long long)(block / C) * ROWS + 8 * tile + lane % 4 * 2;
        const int m = m0 + lane / 4 + 8 * half;
        first = (row < batch ? row : batch - 1) * H + (m < H ? m : H - 1);
        there = phases = 0;
        #pragma unroll
        for (int j = 0; j < V; ++j) {
            const bool in = works() && row + down(j) < batch && m + right(j) < H;
            there |= (unsigned)in << j;
            offset[j] = in ? beyond(j) : 0;
        }
    }
    // From a thread's first neuron to its neuron j: rows, columns, and numbers.
    static __device__ constexpr int down(int j) { return j % 2 + j / 4 * 8; }
    static __device__ constexpr int right(int j) { return j / 2 % 2 * 8; }
    static __device__ constexpr int beyond(int j) { return down(j) * H + right(j); }
    __device__ __forceinline__ bool works() const { return ks < WORKERS; }
    __device__ __forceinline__ bool has(int j) const { return there >> j & 1; }
    __device__ __forceinline__ long long at(int j) const { return first + offset[j]; }

    __device__ __forceinline__ unsigned long long* signal(int buffer) const {
        return reinterpret_cast<unsigned long long*>(block_memory()) + buffer;
    }
    __device__ __forceinline__ unsigned long long* signal_of(int group) const { return signal(2 + group); }
    __device__ __forceinline__ unsigned* fragments() const {
        return APART ? exchange : reinterpret_cast<unsigned*>(block_memory()) + SIGNALS;
    }
    __device__ __forceinline__ unsigned* staged() const {
        return reinterpret_cast<unsigned*>(block_memory()) + SIGNALS;
    }
    __device__ __forceinline__ float* parts() const { return reinterpret_cast<float*>(staged() + SHARED); }
    __device__ __forceinline__ float& number(int place, int j) const {
        return (parts() + PARTS)[(place * V + j) * HOLDERS + (mt * WORKERS + ks) * 32 + lane];
    }
    // Number n that is kept of step t for this thread's neuron j.
    __device__ __forceinline__ float& kept(int t, int n, int j) const { return number(t * KEPT + n, j); }
    // The number of an even or odd step of tensor n that arrives for it.
    __device__ __forceinline__ float& arriving(int n, int k, int j) const {
        return number(LENGTH * KEPT + 2 * n + k, j);
    }
    // Before anything is given.
    __device__ __forceinline__ void begin() const {
        if (APART) {
            if (threadIdx.x < GROUPS) signal_start(signal_of(threadIdx.x)), signals_started();
            pair_wait();
        }
        if (C == 1 || APART) return;
        if (threadIdx.x == 0) {
            signal_start(signal(0)), signal_start(signal(1));
            signals_started();
            signal_expect(signal(0), 4 * (C - 1) * GIVEN), signal_expect(signal(1), 4 * (C - 1) * GIVEN);
        }
        cluster_wait();
    }
    // Pass what this block has given to all others, with one copy to each of them. Its own threads have it behind the
    // barrier.
    __device__ __forceinline__ void pass(int buffer) {
        if (APART) published();
        else if (C > 1) written();
        block_wait();
        if (APART) {
            ++phases;
            if (threadIdx.x == 0) raise(exchange + FRAGMENTS + rank, phases);
            return;
        }
        if (threadIdx.x >= C || threadIdx.x == rank) return;
        copy(fragments() + buffer * (FRAGMENTS / 2) + rank * GIVEN, threadIdx.x, 4 * GIVEN, signal(buffer));
    }
    // Until all blocks have passed what they gave to one of the two buffers.
    //
    // That two buffers and one signal for each are enough:
    // - Numbers are there before they are read. A copy and its count are one operation, whose count releases at the scope
    //   of the cluster; `signal_wait` acquires at this scope, and sees a complete phase only.
    // - Numbers have been read before others take their place. A block passes to buffer b again after its wait for
    //   buffer 1 - b, so after all blocks passed to 1 - b, whose warps had read b when they met at the barrier of `pass`.
    //   Copies from b have ended by then, too: each block passed to 1 - b after its wait for b.
    // - No phase is missed or counted twice. The first thread expects the next use of b before its block passes to 1 - b,
    //   so before any other block passes to b again.
    __device__ __forceinline__ void wait(int buffer) {
        if (C == 1) return;
        if (APART) {
            if (threadIdx.x < 32) fetch(buffer);
            fetched();
            return;
        }
        signal_wait(signal(buffer), phases >> buffer & 1);
        phases ^= 1u << buffer;
        if (threadIdx.x == 0) signal_expect(signal(buffer), 4 * (C - 1) * GIVEN);
    }
    // Of one warp: take what all blocks have given, with the other block of two. First what comes first in each warp's
    // part of a sum.
    //
    // Both buffers and a block's memory are free then, as they are in a cluster: a block counts on behind the barrier of
    // `pass`, where its warps have read what was taken before; the other block of two waits for that. And a block writes
    // to a buffer again when it has read what all blocks gave to the other one.
    __device__ __forceinline__ void fetch(int buffer) const {
        const unsigned* counts = exchange + FRAGMENTS;
        const int last = GIVING - lane * GROUP;
        if (lane < GROUPS) signal_expect(signal_of(lane), 4 * GIVEN * (last < GROUP ? last : GROUP));
        await(counts + (rank ^ 1), phases);
        for (int k = 2 * lane + rank % 2; k < TAKEN * KS; k += 64) {
            const int from = k % KS * TAKEN + k / KS, at = from * GIVEN;
            if (from >= GIVING) continue;
            await(counts + from, phases);
            published();
            take(staged() + at, exchange + buffer * (FRAGMENTS / 2) + at, 4 * GIVEN, signal_of(from / GROUP));
        }
    }
    // Of all threads, at the end: a block's memory is there until the last copies from it and to it have ended.
    __device__ __forceinline__ void end() const {
        if (APART && threadIdx.x < GROUPS) fetched_wait(signal_of(threadIdx.x), (phases - 1) & 1);
        if (C > 1 && !APART) cluster_wait();
    }
    // Where in a buffer the part q of number g of group k of 16 neurons and of group n of 8 rows begins.
    static __device__ constexpr int place(int k, int g, int q, int n) {
        return (((k / MT * GIVES + g) * VP + q) * NT + n) * MT * 64 + k % MT * 64;
    }
    // The same of whole numbers: four of a lane lie together.
    static __device__ constexpr int place_of_whole(int k, int n) {
        return (k / MT * NT + n) * MT * 128 + k % MT * 128;
    }

    // The gate of this warp, and which of the warps of its sum it is.
    __device__ __forceinline__ int gate() const { return ks / KS; }
    __device__ __forceinline__ int part() const { return ks % KS; }

    // The weights of this thread: what number k adds to sum m is at k * numbers + m * sums, of each gate.
    template <typename S> __device__ __forceinline__ void take_weights(const S* from, int numbers, int sums) {
        from += gate() * H * H;
        #pragma unroll
        for (int i = 0; i < NK; ++i) {
            #pragma unroll
            for (int a = 0; a < 4; ++a) {
                const int m = m0 + lane / 4 + 8 * (a & 1), k = (part() * NK + i) * 16 + lane % 4 * 2 + 8 * (a >> 1);
                float x = m < H && k < H ? value(from[k * numbers + m * sums]) : 0.0f;
                float y = m < H && k + 1 < H ? value(from[(k + 1) * numbers + m * sums]) : 0.0f;
                #pragma unroll
                for (int p = 0; p < WP; ++p) {
                    const float a_ = first_bits(x), b_ = first_bits(y);
                    w[i][p][a] = pair_of(a_, b_);
                    x -= a_, y -= b_;
                }
            }
        }
    }

    // What comes to this thread's neurons from the numbers in one of the two buffers: sum n of neuron j at n * V + j. For
    // all threads of a block.
    __device__ __forceinline__ void product(int buffer, float (&sum)[SUMS * V]) const {
        float c[CHAINS][NT][4] = {};
        const unsigned* given = (APART ? staged() : fragments() + buffer * (FRAGMENTS / 2)) + (WHOLE ? 4 : 2) * lane;
        #pragma unroll
        for (int i = 0; i < NK; ++i) {
            const int k = part() * NK + i < GIVING * MT ? part() * NK + i : 0;  // beyond, weights are 0
            if (APART && (i == 0 || k % (MT * GROUP) == 0)) fetched_wait(signal_of(k / (MT * GROUP)), (phases - 1) & 1);
            #pragma unroll
            for (int n = 0; n < NT; ++n) {
                Four four;
                if (WHOLE) four = *reinterpret_cast<const Four*>(given + place_of_whole(k, n));
                #pragma unroll
                for (int q = 0; q < VP; ++q) {
                    const Operand b =
                        WHOLE ? four.part() : *reinterpret_cast<const Operand*>(given + place(k, GIVES > 1 ? gate() : 0, q, n));
                    #pragma unroll
                    for (int p = 0; p < WP; ++p)
                        if (p + q < 3) multiply(c[(i * PRODUCTS + q * WP - q * (q - 1) / 2 + p) % CHAINS][n], w[i][p], b);
                }
            }
        }
        float all[NT][4];
        #pragma unroll
        for (int n = 0; n < NT; ++n) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                all[n][e] = c[0][n][e] + c[1][n][e];
                if (CHAINS == 4) all[n][e] += c[CHAINS - 2][n][e] + c[CHAINS - 1][n][e];
            }
        }
        if (KG == 1) {
            #pragma unroll
            for (int j = 0; j < V; ++j) sum[j] = all[j / 4][j % 4];
            return;
        }
        float* part = parts() + mt * KG * NT * 128 + lane;
        #pragma unroll
        for (int n = 0; n < NT; ++n) {
            #pragma unroll
            for (int e = 0; e < 4; ++e) part[((ks * NT + n) * 4 + e) * 32] = all[n][e];
        }
        warps_wait(mt, 32 * KG);
        #pragma unroll
        for (int j = 0; j < SUMS * V; ++j) sum[j] = 0.0f;
        if (!works()) return;
        #pragma unroll
        for (int q = 0; q < KG; ++q) {
            #pragma unroll
            for (int j = 0; j < V; ++j) sum[q / SHARING * V + j] += part[(q * NT * 4 + 2 * unit + j) * 32];
        }
    }

    // Put the numbers of this thread's neurons, number g of each, in one of the two buffers, from where `pass` takes them.
    template <typename R> __device__ __forceinline__ void give(int buffer, const Pack<R, V>& numbers, int g = 0) const {
        #pragma unroll
        for (int l = 0; l < MINE; ++l) {
            const int half = (unit + l) % 2, tile = (unit + l) / 2;
            float a = has(2 * l) ? numbers[2 * l] : 0.0f, b = has(2 * l + 1) ? numbers[2 * l + 1] : 0.0f;
            if (WHOLE) {
                // where the lane has it that gets it in an operand: of row r of 8 and neuron m of 8, lane 4 * r + m / 2
                unsigned* to = fragments() + buffer * (FRAGMENTS / 2) + place_of_whole(rank * MT + mt, tile);
                to += lane % 4 * 32 + lane / 8 * 4 + lane / 4 % 2 + 2 * half;
                to[0] = __float_as_uint(a), to[16] = __float_as_uint(b);
                continue;
            }
            #pragma unroll
            for (int q = 0; q < VP; ++q) {
                const float p = first_bits(a), r = first_bits(b);
                a -= p, b -= r;
                const unsigned word = transposed(pair_of(p, r));
                fragments()[buffer * (FRAGMENTS / 2) + place(rank * MT + mt, g, q, tile) + 2 * lane + half] = word;
            }
        }
    }
};
