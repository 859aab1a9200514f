// Steps that begin beside a sector of memory, staged in shared memory. Included by spikecore.cuh.
//
// Sectors of 32 bytes that two blocks write in parts are read and written by the memory once more, and narrow accesses
// take a multiple of the instructions. So a block copies its part of every step to and from shared memory in whole
// packs of 8 bytes, from the sector in which the part begins; its threads find their numbers there one by one.
#pragma once

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
