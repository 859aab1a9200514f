// The page's program: a drawing becomes 8 x 8 numbers from 0 to 16, and the network takes steps with them. Before it
// stand the module of the network, its WebAssembly (WASM), images (SAMPLES) and the number of hidden neurons (HIDDEN).

const STEPS = 48, COUNTED = 16, REST = 96;   // steps that are shown, and counted; those after the last change of a drawing
const root = document.querySelector(".live");
const part = (name) => root.querySelector(`.${name}`);
const net = await load(Uint8Array.from(atob(WASM), (letter) => letter.charCodeAt(0)));
// a step leaves the spikes of the hidden neurons here, and the potentials of those of the digits
const hidden = net.arrays.lif_1, potential = net.arrays.lif_3_v, unit = net.scales.lif_3_v;

let strokes = [];             // lists of points in the field, 0 to 1
let pixels = new Array(64).fill(0);
let past = [];                // of the last steps: spikes of the digits, their potentials, spikes of the hidden neurons
let count = 0, left = 0, drawing = false;

// As in the data set: a digit fills 32 x 32 points, and a number is how many of 4 x 4 points are black.
const small = new OffscreenCanvas(32, 32).getContext("2d", { willReadFrequently: true });
function counted() {
  const points = strokes.flat();
  if (!points.length) return new Array(64).fill(0);
  const middle = [0, 1].map((k) => (Math.min(...points.map((p) => p[k])) + Math.max(...points.map((p) => p[k]))) / 2);
  const size = Math.max(0.25, ...[0, 1].map((k) => 2 * Math.max(...points.map((p) => Math.abs(p[k] - middle[k])))));
  small.clearRect(0, 0, 32, 32);
  trace(small, ([x, y]) => [16 + ((x - middle[0]) / size) * 26.5, 16 + ((y - middle[1]) / size) * 26.5], 5.5);
  const alpha = small.getImageData(0, 0, 32, 32).data, counts = new Array(64).fill(0);
  for (let k = 0; k < 1024; k++) {
    if (alpha[4 * k + 3] > 127) counts[8 * (k >> 7) + ((k & 31) >> 2)]++;
  }
  return counts;
}

function trace(context, place, width) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach((point, k) => (k ? context.lineTo(...place(point)) : context.moveTo(...place(point))));
    if (stroke.length === 1) context.lineTo(...place(stroke[0]));
    context.stroke();
  }
}

function rest() {
  net.reset();
  past = [];
  count = 0;
}

function changed(numbers) {
  pixels = numbers;
  left = pixels.some(Boolean) ? REST : 0;
  show();
}

function step() {
  if (!left || (!drawing && --left === 0)) return;
  const spikes = [...net.step(pixels)];
  past = [...past, { spikes, potentials: Array.from(potential, (n) => n * unit), hidden: [...hidden] }].slice(-STEPS);
  count++;
  show();
}

// Pictures. A canvas has as many pixels as the screen has there; colours are those of the page.
function fresh(canvas) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  return canvas.getContext("2d");
}

const rows = Array.from({ length: 10 }, (_, digit) => {
  const row = document.createElement("div");
  row.className = "row";
  row.innerHTML = `<span>${digit}</span><canvas></canvas><canvas></canvas><span>0</span>`;
  part("rows").append(row);
  return row;
});

function totals() {
  return rows.map((_, digit) => past.slice(-COUNTED).reduce((sum, each) => sum + each.spikes[digit], 0));
}

function show() {
  const style = getComputedStyle(root), colour = (name) => style.getPropertyValue(name).trim();
  const ink = getComputedStyle(part("decision")).color, spike = colour("--spike"), line = colour("--potential");
  const field = part("draw").getContext("2d");
  field.clearRect(0, 0, 448, 448);
  field.strokeStyle = ink;
  trace(field, ([x, y]) => [448 * x, 448 * y], 44);

  const seen = part("seen").getContext("2d");
  seen.clearRect(0, 0, 8, 8);
  seen.fillStyle = ink;
  pixels.forEach((n, k) => { seen.globalAlpha = n / 16; seen.fillRect(k % 8, k >> 3, 1, 1); });

  const sums = totals(), most = Math.max(...sums);
  part("decision").textContent = most ? sums.indexOf(most) : "?";
  part("step").textContent = `Step ${count}`;
  rows.forEach((row, digit) => {
    const [potentials, spikes] = row.querySelectorAll("canvas");
    row.classList.toggle("first", most > 0 && sums[digit] === most);
    row.lastChild.textContent = sums[digit];
    const plot = fresh(potentials), w = potentials.width / STEPS, height = potentials.height;
    const y = (v) => height * (1 - Math.min(1, Math.max(0, (v + 1) / 2.25)));   // -1 to 1.25
    plot.strokeStyle = ink;
    plot.globalAlpha = 0.4;
    plot.setLineDash([2, 3]);
    plot.beginPath();
    plot.moveTo(0, y(1));
    plot.lineTo(potentials.width, y(1));
    plot.stroke();
    plot.setLineDash([]);
    plot.globalAlpha = 1;
    plot.strokeStyle = line;
    plot.lineWidth = 1.5;
    plot.beginPath();
    past.forEach((each, k) => plot.lineTo((k + 0.5) * w, y(each.potentials[digit])));
    plot.stroke();
    const ticks = fresh(spikes);
    ticks.fillStyle = spike;
    past.forEach((each, k) => { if (each.spikes[digit]) ticks.fillRect(k * w + w / 4, 2, w / 2, height - 4); });
  });
  const raster = fresh(part("hidden")), w = raster.canvas.width / STEPS, h = raster.canvas.height / HIDDEN;
  raster.fillStyle = spike;
  past.forEach((each, k) => each.hidden.forEach((fired, n) => { if (fired) raster.fillRect(k * w, n * h, w * 0.8, h); }));
}

// What a reader does.
const field = part("draw");
const point = (event) => {
  const box = field.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
};
field.addEventListener("pointerdown", (event) => {
  if (!strokes.length) rest();   // after an image, or a cleared field
  drawing = true;
  strokes.push([point(event)]);
  changed(counted());
});
field.addEventListener("pointermove", (event) => {
  if (!drawing) return;
  strokes[strokes.length - 1].push(point(event));
  changed(counted());
});
for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => { drawing = false; });

part("clear").addEventListener("click", () => { strokes = []; rest(); changed(counted()); });
SAMPLES.forEach((sample, digit) => {
  const button = document.createElement("button");
  button.textContent = digit;
  button.addEventListener("click", () => { strokes = []; rest(); changed(sample); });
  part("samples").append(button);
});

let timer;
function paced() {
  clearInterval(timer);
  timer = setInterval(step, 1000 / Number(part("speed").value));
}
part("speed").addEventListener("input", paced);
window.addEventListener("resize", show);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
new MutationObserver(show).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
paced();
show();
