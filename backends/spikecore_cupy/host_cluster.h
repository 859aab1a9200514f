// The functions of a cluster of blocks on the CPU (recurrent.cuh): all threads of its blocks are threads of the CPU. A
// product or a transposition of a warp is computed from what its threads have put side by side.
#pragma once

#define CLUSTERS
#define __cluster_dims__(...)

enum { MOST_BLOCKS = 16, MOST_WARPS = 32 };
struct Warp {
    pthread_barrier_t all, some;
    unsigned a[32][4], b[32][2], x[32];
};
static Warp warps[MOST_BLOCKS][MOST_WARPS];
static pthread_barrier_t whole_cluster, whole_block[MOST_BLOCKS];
static unsigned char* memories[MOST_BLOCKS];
static double summands[MOST_BLOCKS][1024];
static thread_local unsigned rank_of_block;

inline unsigned char* block_memory() { return memories[rank_of_block]; }
inline unsigned cluster_rank() { return rank_of_block; }
inline void cluster_wait() { pthread_barrier_wait(&whole_cluster); }
inline void block_wait() { pthread_barrier_wait(&whole_block[rank_of_block]); }
inline void warps_wait(int which, int) { pthread_barrier_wait(&warps[rank_of_block][which].some); }
inline void signal_start(unsigned long long*) {}
inline void signals_started() {}
inline void signal_expect(unsigned long long*, unsigned) {}
inline void signal_wait(unsigned long long*, unsigned) { cluster_wait(); }
// To the memory of another block at once: it waits for all blocks before it reads, and they for it before they end.
inline void copy(unsigned* here, unsigned rank, unsigned bytes, unsigned long long*) {
    memcpy(memories[rank] + (reinterpret_cast<unsigned char*>(here) - block_memory()), here, bytes);
}
inline void written() {}
// Blocks that are no cluster.
inline void published() {}
inline void fetched() { cluster_wait(); }
inline void fetched_wait(unsigned long long*, unsigned) {}
inline unsigned ticket(unsigned* count) { return __atomic_fetch_add(count, 1u, __ATOMIC_RELAXED); }
inline void raise(unsigned* flag, unsigned count) { __atomic_store_n(flag, count, __ATOMIC_RELEASE); }
inline void await(const unsigned* flag, unsigned count) {
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < count) sched_yield();
}
inline unsigned pair_rank() { return rank_of_block % 2; }
inline void pair_wait() { cluster_wait(); }
// The same place in the memory of the other of two blocks.
inline unsigned* of_other(unsigned* here) {
    return reinterpret_cast<unsigned*>(memories[rank_of_block ^ 1] + (reinterpret_cast<unsigned char*>(here) - block_memory()));
}
inline void tell_pair(unsigned* here, unsigned word) { *here = *of_other(here) = word; }
inline void take(unsigned* to, const unsigned* from, unsigned bytes, unsigned long long*) {
    memcpy(to, from, bytes), memcpy(of_other(to), from, bytes);
}

// A load is done as late as may be: at the wait for its group.
struct Load {
    unsigned char* to;
    const unsigned char* from;
    long size, group;
};
enum { MOST_LOADS = 4096 };
static thread_local Load loads[MOST_LOADS];
static thread_local long begun_loads, done_loads, load_groups;
template <typename S> inline void begin_load(float* to, const S* from) {
    unsigned char* here = reinterpret_cast<unsigned char*>(to) + (reinterpret_cast<unsigned long long>(from) & 3);
    loads[begun_loads++ % MOST_LOADS] = {here, reinterpret_cast<const unsigned char*>(from), sizeof(S), load_groups};
}
inline void prefetch(const void*) {}
inline void loads_begun() { ++load_groups; }
template <int N> inline void loads_wait() {
    for (; done_loads < begun_loads && loads[done_loads % MOST_LOADS].group < load_groups - N; ++done_loads) {
        const Load& load = loads[done_loads % MOST_LOADS];
        memcpy(load.to, load.from, load.size);
    }
}

inline Warp& own_warp() { return warps[rank_of_block][threadIdx.x / 32]; }
inline float half_word(unsigned word, int which) {
    return __uint_as_float(which ? word & 0xffff0000u : word << 16);
}
// Layouts of the PTX manual, "Matrix fragments for mma.m16n8k16".
template <typename B> inline void multiply(float (&c)[4], const unsigned (&a)[4], const B b) {
    Warp& warp = own_warp();
    const int lane = threadIdx.x % 32;
    for (int k = 0; k < 4; ++k) warp.a[lane][k] = a[k];
    for (int k = 0; k < 2; ++k) warp.b[lane][k] = b.of[k];
    pthread_barrier_wait(&warp.all);
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = c[e];
        for (int k = 0; k < 16; ++k) {
            const unsigned x = warp.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const unsigned y = warp.b[column * 4 + k % 8 / 2][k / 8];
            sum += half_word(x, k % 2) * half_word(y, k % 2);
        }
        c[e] = sum;
    }
    pthread_barrier_wait(&warp.all);
}
inline float exchanged(float x, int bits) {
    Warp& warp = own_warp();
    const int lane = threadIdx.x % 32;
    warp.x[lane] = __float_as_uint(x);
    pthread_barrier_wait(&warp.all);
    const unsigned other = warp.x[lane ^ bits];
    pthread_barrier_wait(&warp.all);
    return __uint_as_float(other);
}
inline float chosen(bool first, float a, float b) { return first ? a : b; }
inline void load_here(float (&x)[4], const float* from) { memcpy(x, from, sizeof x); }
inline void warp_wait() { pthread_barrier_wait(&own_warp().all); }
inline unsigned transposed(unsigned x) {
    Warp& warp = own_warp();
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    warp.x[lane] = x;
    pthread_barrier_wait(&warp.all);
    const unsigned low = warp.x[column * 4 + row / 2], high = warp.x[(column + 1) * 4 + row / 2];
    pthread_barrier_wait(&warp.all);
    const int shift = row % 2 * 16;
    return (low >> shift & 0xffffu) | (high >> shift & 0xffffu) << 16;
}
template <typename R> R block_sum(R x) {
    double* all = summands[rank_of_block];
    all[threadIdx.x] = x;
    block_wait();
    R sum = 0;
    for (unsigned k = 0; k < blockDim.x; ++k) sum += (R)all[k];
    block_wait();
    return sum;
}
