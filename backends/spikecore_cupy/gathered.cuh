// The neurons of a thread of a kernel with feedback in a tensor, as if they were neighbours.
#pragma once

#include "cluster.cuh"
#include "spikecore.cuh"

template <typename S, typename L> struct Gathered {
    S* here;  // the thread's first neuron
    const L& layer;
};
template <typename S, typename L> __device__ __forceinline__ Gathered<S, L> gathered(S* here, const L& layer) {
    return {here, layer};
}
template <typename S, template <int...> class L, int... N>
__device__ __forceinline__ Gathered<S, L<N...>> operator+(S* from, const L<N...>& layer) {
    return {from + layer.first, layer};
}
template <int V, typename S, typename L> __device__ __forceinline__ Pack<S, V> load(const Gathered<const S, L>& of) {
    Pack<S, V> found;
    const S* here = of.here;
    #pragma unroll
    for (int j = 0; j < V; ++j) found.set(j, here[of.layer.offset[j]]);
    return found;
}
// The same numbers come to the L2 cache, from where they will be loaded.
template <int V, typename S, typename L> __device__ __forceinline__ void will_load(const Gathered<const S, L>& of) {
    const S* here = of.here;
    #pragma unroll
    for (int j = 0; j < V; ++j) prefetch(here + of.layer.offset[j]);
}
template <typename S, typename L, int V>
__device__ __forceinline__ void store(const Gathered<S, L>& of, const Pack<S, V>& pack) {
    S* here = of.here;
    #pragma unroll
    for (int j = 0; j < V; ++j)
        if (of.layer.has(j)) here[L::beyond(j)] = pack[j];
}
// Begin to load the numbers of a thread's neurons, of tensor n of those that arrive, to place k; and one that is there.
template <typename S, typename L>
__device__ __forceinline__ void begin_arrival(const Gathered<const S, L>& of, int n, int k) {
    const S* here = of.here;
    #pragma unroll
    for (int j = 0; j < L::V; ++j) begin_load(&of.layer.arriving(n, k, j), here + of.layer.offset[j]);
}
template <typename S, typename L>
__device__ __forceinline__ S arrived(const Gathered<const S, L>& of, int n, int k, int j) {
    const unsigned long long address = (unsigned long long)(of.here + of.layer.offset[j]);
    return reinterpret_cast<const S*>(&of.layer.arriving(n, k, j))[(address & 3) / sizeof(S)];
}
template <int V, template <int...> class L, int... N>
__device__ __forceinline__ Channels<V> channels_of(const L<N...>&, long long, long long) {
    return {0, false, false};
}
template <int V, typename R, template <int...> class L, int... N>
__device__ __forceinline__ Pack<R, V> channel_values(
    const R* from, const Channels<V>&, const L<N...>& layer, long long inner, long long channels
) {
    Pack<R, V> found;
    #pragma unroll
    for (int j = 0; j < V; ++j) found[j] = from[channel(layer.at(j), inner, channels)];
    return found;
}
// A number for each of H neurons.
template <int V, typename S, template <int...> class L, int... N>
__device__ __forceinline__ Pack<S, V> column_values(const S* from, const L<N...>& layer) {
    Pack<S, V> found;
    #pragma unroll
    for (int j = 0; j < V; ++j) found.set(j, from[layer.at(j) % L<N...>::H]);
    return found;
}
// The sum over the neurons that are this thread's own.
template <int V, typename R, template <int...> class L, int... N>
__device__ __forceinline__ R own_sum(const Pack<R, V>& x, const L<N...>& layer) {
    R sum = 0;
    #pragma unroll
    for (int j = 0; j < V; ++j) sum += layer.has(j) ? x[j] : R(0);
    return sum;
}
