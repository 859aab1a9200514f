// Sums over the threads of a block, in a fixed order; the first thread gets the sum. Included by spikecore.cuh.
#pragma once

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
template <typename R> static R block_sum(R x) {
    BLOCK_SHARED R parts[1024];
    BLOCK_WAIT();
    parts[threadIdx.x] = x;
    BLOCK_WAIT();
    x = 0;
    for (unsigned k = 0; k < blockDim.x; ++k) x += parts[k];
    return x;
}
#endif

// -- sums per channel over the threads of a block, in a fixed order

// Each thread has V neighbouring neurons, and N numbers of each. Where `lanes` neighbouring threads lie in one channel,
// all of them get the sums over these threads' numbers; else (lanes 0) neurons `period` apart have the same channel, and
// get the sums over them. `parts` holds N * V numbers of each thread.
template <int N, int V, typename R>
__device__ __forceinline__ void block_totals(R* parts, Pack<R, V> (&x)[N], int lanes, int period) {
    const int here = threadIdx.x, threads = blockDim.x;
    BLOCK_WAIT();  // until the parts of an earlier sum have been read
    if (lanes) {
        #pragma unroll
        for (int n = 0; n < N; ++n) {
            R sum = x[n][0];
            #pragma unroll
            for (int j = 1; j < V; ++j) sum += x[n][j];
            parts[n * threads + here] = sum;
        }
        const int lane = here % lanes;
        for (int width = lanes; width > 1; width = (width + 1) / 2) {
            BLOCK_WAIT();
            if (lane >= width / 2) continue;
            #pragma unroll
            for (int n = 0; n < N; ++n) parts[n * threads + here] += parts[n * threads + here + (width + 1) / 2];
        }
        BLOCK_WAIT();
        #pragma unroll
        for (int n = 0; n < N; ++n)
            #pragma unroll
            for (int j = 0; j < V; ++j) x[n][j] = parts[n * threads + here - lane];
    } else if (period < V * threads) {
        // number n of neuron j of every thread lies in a row of its own: neighbours in a row are in different banks
        const int apart = period / V;  // threads with the same channels
        #pragma unroll
        for (int n = 0; n < N; ++n)
            #pragma unroll
            for (int j = 0; j < V; ++j) parts[(n * V + j) * threads + here] = x[n][j];
        BLOCK_WAIT();
        for (int k = here; k < N * V * apart; k += threads) {
            R* row = parts + k / apart * threads;
            R sum = row[k % apart];
            #pragma unroll 8
            for (int other = k % apart + apart; other < threads; other += apart) sum += row[other];
            row[k % apart] = sum;
        }
        BLOCK_WAIT();
        #pragma unroll
        for (int n = 0; n < N; ++n)
            #pragma unroll
            for (int j = 0; j < V; ++j) x[n][j] = parts[(n * V + j) * threads + here % apart];
    }
}

// The same for one number.
template <int V, typename R>
__device__ __forceinline__ void block_totals(R* parts, Pack<R, V>& x, int lanes, int period) {
    Pack<R, V> one[] = {x};
    block_totals(parts, one, lanes, period);
    x = one[0];
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

// The neurons of a block that adds up gradients of inputs that broadcast: `tile` neighbouring numbers of a period, in
// as many periods as it has threads for. A thread without neurons takes the last ones, and adds 0.
template <int V> struct Tile {
    // The first neuron of this thread, and the place of the tile among the sums of all blocks.
    long long first, place;
    // Numbers of a tile, and of this one.
    int tile, numbers;
    bool active;
    __device__ __forceinline__ Tile(long long neurons, long long period, int width) : tile(width) {
        const int apart = tile / V, periods = blockDim.x / apart, here = threadIdx.x;
        const long long across = row_of(period + tile - 1, tile), line = row_of(blockIdx.x, across);
        const long long column = (blockIdx.x - line * across) * tile, own = column + here % apart * V;
        const long long begin = (line * periods + here / apart) * period;
        active = here / apart < periods && own < period && begin < neurons;
        first = active ? begin + own : neurons - V;
        place = line * period + column;
        numbers = period - column < tile ? period - column : tile;
    }
    // The sums of a block over its periods, of so many steps, which lie `step` numbers from one another.
    template <int N, typename R> __device__ __forceinline__ void add(
        Pack<R, V>* parts, R* to, long long step, int steps, const Pack<R, V> (&x)[N]
    ) const {
        #pragma unroll
        for (int n = 0; n < N; ++n) {
            Pack<R, V> own;
            #pragma unroll
            for (int j = 0; j < V; ++j) own[j] = active ? x[n][j] : R(0);
            parts[n * blockDim.x + threadIdx.x] = own;
        }
        sums(reinterpret_cast<const R*>(parts), V * blockDim.x, tile, numbers, to + place, step, steps);
    }
    // The same over all neurons: eight sums of each step, for fewer would keep most threads waiting.
    template <int N, typename R> __device__ __forceinline__ void add_all(
        Pack<R, V>* parts, R* to, long long step, int steps, const Pack<R, V> (&x)[N]
    ) const {
        R* own = reinterpret_cast<R*>(parts) + threadIdx.x;
        #pragma unroll
        for (int n = 0; n < N; ++n) {
            R sum = 0;
            #pragma unroll
            for (int j = 0; j < V; ++j) sum += x[n][j];
            own[n * blockDim.x] = active ? sum : R(0);
        }
        const int few = blockDim.x < 8 ? blockDim.x : 8;
        sums(reinterpret_cast<const R*>(parts), blockDim.x, few, few, to + blockIdx.x * (long long)few, step, steps);
    }
    // For each step the sums over every `apart`th of its `all` numbers; `count` of them are stored.
    template <typename R> __device__ __forceinline__ static void sums(
        const R* parts, int all, int apart, int count, R* to, long long step, int steps
    ) {
        BLOCK_WAIT();
        for (int k = threadIdx.x; k < steps * apart; k += blockDim.x) {
            const int n = k / apart, first = k % apart;
            R sum = parts[n * all + first];
            #pragma unroll 8
            for (int other = first + apart; other < all; other += apart) sum += parts[n * all + other];
            if (first < count) to[n * step + first] = sum;
        }
        BLOCK_WAIT();  // until all parts have been read
    }
};

// The numbers that blocks left for channel c: number k of all is of channel k / inner % channels. A block adds them up,
// with `side` channels side by side, so that its threads lie in lines.
struct ChannelNumbers {
    unsigned numbers, channels, inner, lines, line, c;
    __device__ __forceinline__ ChannelNumbers(
        unsigned numbers, unsigned channels, unsigned inner, unsigned side, unsigned c
    ) : numbers(numbers), channels(channels), inner(inner), lines(blockDim.x / side), line(threadIdx.x / side), c(c) {}
    // The sum over the numbers of this thread's line; several are loaded before the first is added.
    template <typename R, typename F> __device__ __forceinline__ R sum(F value) const {
        R found = 0;
        if (inner == 1) {  // without a division
            const unsigned apart = lines * channels, end = c < channels ? numbers : 0;
            for (unsigned begin = line * channels + c; begin < end; begin += 8 * apart) {
                R values[8];
                #pragma unroll
                for (int u = 0; u < 8; ++u) values[u] = begin + u * apart < end ? value(begin + u * apart) : R(0);
                #pragma unroll
                for (int u = 0; u < 8; ++u) found += values[u];
            }
            return found;
        }
        const unsigned whole = channels * inner, count = c < channels ? (numbers + whole - 1) / whole * inner : 0;
        for (unsigned begin = line; begin < count; begin += 8 * lines) {
            R values[8];
            #pragma unroll
            for (int u = 0; u < 8; ++u) {
                const unsigned k = begin + u * lines, at = (k / inner * channels + c) * inner + k % inner;
                values[u] = k < count && at < numbers ? value(at) : R(0);
            }
            #pragma unroll
            for (int u = 0; u < 8; ++u) found += values[u];
        }
        return found;
    }
};

// The sums over the lines of a block, of N numbers of each thread; `found` holds as many. `side` is a power of two.
template <int N, typename R> __device__ __forceinline__ void lines_totals(R* found, R (&sums)[N], int side) {
    const int here = threadIdx.x, threads = blockDim.x;
#ifdef __CUDA_ARCH__
    // lines of a warp first, so that the block waits once: statistics of what 264 blocks left take 3.4 us on an H200,
    // with a wait for each halving of its lines 3.9
    const int warps = threads / 32, warp = here / 32;
    for (int offset = side; offset < 32; offset *= 2) {
        #pragma unroll
        for (int n = 0; n < N; ++n) sums[n] += __shfl_xor_sync(0xffffffffu, sums[n], offset);
    }
    #pragma unroll
    for (int n = 0; n < N; ++n)
        if (here % 32 < side) found[(n * warps + warp) * side + here % 32] = sums[n];
    BLOCK_WAIT();
    #pragma unroll
    for (int n = 0; n < N; ++n) {
        R sum = 0;
        #pragma unroll 8
        for (int k = 0; k < warps; ++k) sum += found[(n * warps + k) * side + here % side];
        sums[n] = sum;
    }
#else
    const int line = here / side;
    BLOCK_WAIT();  // until the numbers of earlier sums have been read
    #pragma unroll
    for (int n = 0; n < N; ++n) found[n * threads + here] = sums[n];
    for (int width = threads / side; width > 1; width = (width + 1) / 2) {
        BLOCK_WAIT();
        if (line >= width / 2) continue;
        #pragma unroll
        for (int n = 0; n < N; ++n) found[n * threads + here] += found[n * threads + here + (width + 1) / 2 * side];
    }
    BLOCK_WAIT();
    #pragma unroll
    for (int n = 0; n < N; ++n) sums[n] = found[n * threads + here % side];
#endif
}
