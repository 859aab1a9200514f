// The recorded steps as WebAssembly, in Node.
import { readFile } from "node:fs/promises";

const { instance } = await WebAssembly.instantiate(await readFile(process.argv[2]));
const wrong = instance.exports.recorded_test();
console.log(`@name@: @all_steps@ steps, ${wrong} of ${instance.exports.recorded_count()} outputs differ`);
process.exitCode = wrong > @allowed@ ? 1 : 0;
