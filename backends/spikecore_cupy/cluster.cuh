// What a GPU has for a cluster of blocks, and for the products of a warp (recurrent.cuh): instructions of PTX that C++ has
// no function for. On the CPU host_cluster.h has functions of the same names.
#pragma once

struct alignas(8) Operand {
    unsigned of[2];
};

#ifdef __CUDA_ARCH__
extern __shared__ __align__(16) unsigned char dynamic_memory[];
__device__ __forceinline__ unsigned char* block_memory() { return dynamic_memory; }
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void block_wait() { __syncthreads(); }
__device__ __forceinline__ unsigned shared_address(const void* of) { return (unsigned)__cvta_generic_to_shared(of); }
// A signal (an mbarrier) is complete when one thread has said how many bytes to expect and so many have been sent. All
// threads of a block wait for it: a barrier of the cluster would also wait until all that was written to global memory
// is there. A signal is complete once for each use, and its parity is 0 and 1 in turns.
__device__ __forceinline__ void signal_start(unsigned long long* signal) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(signal)) : "memory");
}
__device__ __forceinline__ void signals_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void signal_expect(unsigned long long* signal, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(shared_address(signal)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void signal_wait(unsigned long long* signal, unsigned phase) {
    asm volatile(
        "{\n.reg .pred all;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 all, [%0], %1;\n"
        "@!all bra AGAIN;\n}" :: "r"(shared_address(signal)), "r"(phase) : "memory");
}
__device__ __forceinline__ void warps_wait(int which, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(1 + which), "r"(threads) : "memory");
}
// What a block has written is seen by copies that one of its threads begins behind a barrier.
__device__ __forceinline__ void written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// So many bytes, to the same address in the memory of a block of the cluster, whose signal counts them.
__device__ __forceinline__ void copy(unsigned* here, unsigned rank, unsigned bytes, unsigned long long* signal) {
    unsigned there, counts;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counts) : "r"(shared_address(signal)), "r"(rank));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(there), "r"(shared_address(here)), "r"(bytes), "r"(counts) : "memory");
}
// A word to a thread's own place in shared memory: the one that a number of 16 bits is in. What a thread begins between two calls of `loads_begun` is a group;
// `loads_wait<N>` waits for all groups but the last N. (A wait for a load to a register is one for all that were begun
// before it, which a load of two steps ahead is.)
__device__ __forceinline__ void begin_load(float* to, const void* from) {
    const unsigned long long word = (unsigned long long)from & ~3ull;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(shared_address(to)), "l"(word) : "memory");
}
__device__ __forceinline__ void loads_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void loads_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ void prefetch(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}
// The same of what it has written to global memory, and of what other blocks have.
__device__ __forceinline__ void published() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// How many asked before. Blocks whose number comes from here wait only for blocks that run, whatever the order in which a
// GPU starts them.
__device__ __forceinline__ unsigned ticket(unsigned* count) { return atomicAdd(count, 1u); }
// Of two blocks, which are a cluster. A word for both, at the same address, seen behind `pair_wait`.
__device__ __forceinline__ unsigned pair_rank() { return cluster_rank(); }
__device__ __forceinline__ void pair_wait() { cluster_wait(); }
__device__ __forceinline__ void tell_pair(unsigned* here, unsigned word) {
    unsigned there;
    *here = word;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(there) : "r"(shared_address(here)));
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(word) : "memory");
}
// How often a block has written, for blocks that are no cluster: what its threads wrote before is seen by those that wait.
__device__ __forceinline__ void raise(unsigned* flag, unsigned count) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(flag), "r"(count) : "memory");
}
__device__ __forceinline__ void await(const unsigned* flag, unsigned count) {
    unsigned found;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
    while (found < count);
}
// On a GPU each warp waits for what it needs.
__device__ __forceinline__ void fetched() {}
__device__ __forceinline__ void fetched_wait(unsigned long long* signal, unsigned phase) { signal_wait(signal, phase); }
// So many bytes from the memory that all multiprocessors share to both of two blocks, whose signals count them.
__device__ __forceinline__ void take(unsigned* to, const unsigned* from, unsigned bytes, unsigned long long* signal) {
    const unsigned short both = 3;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(signal)), "h"(both) : "memory");
}
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const Operand b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.of[0]), "r"(b.of[1]));
}
// The number of the lane whose own number differs in these bits; and a barrier of a warp.
__device__ __forceinline__ float exchanged(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }
__device__ __forceinline__ void warp_wait() { __syncwarp(); }
// One of two numbers. Of two ?: the compiler makes a branch, with an exchange on each side.
__device__ __forceinline__ float chosen(bool first, float a, float b) {
    float x;
    asm("{\n.reg .pred first;\nsetp.ne.u32 first, %3, 0;\nselp.f32 %0, %1, %2, first;\n}"
        : "=f"(x) : "f"(a), "f"(b), "r"((unsigned)first));
    return x;
}
// Four numbers from shared memory, loaded here and not where they are used.
__device__ __forceinline__ void load_here(float (&x)[4], const float* from) {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(shared_address(from)) : "memory");
}
__device__ __forceinline__ unsigned transposed(unsigned x) {
    unsigned y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
#endif
