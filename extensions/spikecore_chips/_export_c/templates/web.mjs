// The program as WebAssembly, in a page or in Node:
//
//     const net = await load("@name@.wasm");    // a URL, or the bytes of the file
//     const y = net.step(x);                    // one time step; y is an array of the program's memory
//     net.reset();                              // go to rest
//
// x: @inputs@
// y: @outputs@
//
// net.arrays has these two, the states, and what a step leaves of its sums and spikes: views of the memory, which each
// step changes. A number n of net.arrays.NAME stands for n * net.scales.NAME. Behind a convolution the channels of a
// place lie side by side.

const ARRAYS = [
@arrays@
];

export async function load(source) {
  const isBytes = source instanceof ArrayBuffer || ArrayBuffer.isView(source);
  const bytes = isBytes ? source : await (await fetch(source)).arrayBuffer();
  const { memory, web_array, web_reset, web_step } = (await WebAssembly.instantiate(bytes)).instance.exports;
  const arrays = {}, scales = {};
  ARRAYS.forEach(([name, Numbers, count, scale], k) => {
    arrays[name] = new Numbers(memory.buffer, web_array(k), count);
    scales[name] = scale;
  });
  web_reset();
  const step = (values) => {
    if (values.length !== arrays.x.length) throw new RangeError(`a step has ${arrays.x.length} numbers`);
    arrays.x.set(values);
    web_step();
    return arrays.y;
  };
  return { arrays, scales, step, reset: web_reset };
}
