"""Networks in Node and in headless Chromium: ONNX by onnxruntime-web, as docs/export.md shows it, and docs/live.md."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from browsers import in_chromium, in_node, onnxruntime_web, wasm_compiler

pytestmark = [pytest.mark.web, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
DOCS = Path(__file__).parents[2] / "docs"
TimeBatched = sc.layers.TimeBatched
PLACES = ("Node", "Chromium")


def block(page: str, language: str) -> str:
    """The one block of a page in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return str(text)


# -- ONNX


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 20), sc.LIF(), nn.Linear(20, 5), sc.LIF())


def convolutional() -> nn.Module:
    return nn.Sequential(
        TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
        sc.PLIF(),
        TimeBatched(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
        sc.ALIF(),
    )


def recurrent() -> nn.Module:
    late = sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(12, 12), 3, learn=()))
    return nn.Sequential(nn.Linear(6, 12), late, sc.Recurrent(sc.ALIF(), nn.Linear(12, 12)), sc.LI())


NETWORKS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...]]] = {
    "dense": (dense, (784,)),
    "convolutional": (convolutional, (1, 8, 8)),
    "recurrent": (recurrent, (6,)),
}
#: Steps and samples of calls of one file.
SIZES = ((1, 3), (7, 1), (40, 2))
RUN = """
import { load } from "./net.mjs";
const results = {};
for (const [name, calls] of Object.entries(given)) {
  const run = await load(await file(`${name}.onnx`));
  results[name] = [];
  for (const { x, sizes } of calls) {
    const y = await run(Float32Array.from(x), sizes);
    results[name].push({ y: [...y.data], dims: [...y.dims] });
  }
}
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, Dict[str, List[Tensor]]]:
    """A folder with the files, the calls and net.mjs; what PyTorch answers."""
    pytest.importorskip("onnxscript", reason="onnxscript, which is in the extra onnx, is not installed")
    if not hasattr(torch.ops.higher_order, "scan"):
        pytest.skip("this torch has no scan")
    folder = tmp_path_factory.mktemp("onnx")
    version = onnxruntime_web(folder)
    sizes = ({0: torch.export.Dim("steps", min=2), 1: torch.export.Dim("batch")},)
    given, wanted = {}, {}
    for name, (make, shape) in NETWORKS.items():
        torch.manual_seed(0)
        net = make().eval()
        for module in net.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.weight.data.mul_(3)
                module.bias.data.add_(0.7)
        with torch.no_grad():
            program = torch.export.export(net, (torch.randn(3, 3, *shape),), dynamic_shapes=sizes)
            torch.onnx.export(
                program, (), str(folder / f"{name}.onnx"), dynamo=True, verbose=False, external_data=False
            )
            xs = [torch.randn(*size, *shape) * 2 for size in SIZES]
            wanted[name] = [net(x) for x in xs]
        given[name] = [{"x": x.flatten().tolist(), "sizes": [*x.shape]} for x in xs]
        assert wanted[name][-1].ne(0).float().mean() > 0.02, name
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "net.mjs").write_text(block("export.md", "js"))
    page = block("export.md", "html")
    assert f"onnxruntime-web@{version}/" in page, f"docs/export.md shows another version than {version}"
    (folder / "page.html").write_text(re.sub(r"https://cdn[^@]*@[^/]*", "./node_modules/onnxruntime-web", page))
    shutil.copy(folder / "dense.onnx", folder / "net.onnx")
    return folder, wanted


@pytest.mark.parametrize("place", PLACES)
def test_onnx_gives_the_outputs_of_pytorch(place: str, exported: Any) -> None:
    """Networks of each kind, one file for all numbers of steps and samples, by the program of docs/export.md."""
    folder, wanted = exported
    if place == "Node":
        read = 'import { readFile } from "node:fs/promises";\nconst file = readFile;\n'
        answers = in_node(folder, f'{read}const given = JSON.parse(await file("given.json"));\n{RUN}\nanswer(results);')
    else:
        (table,) = re.findall(
            r'<script type="importmap">.*?</script>', (folder / "page.html").read_text(), flags=re.DOTALL
        )
        read = 'const file = async (name) => name;\nconst given = await (await fetch("given.json")).json();\n'
        answers = in_chromium(folder, f"{read}{RUN}\nanswer(results);", table)
    assert [len(answers[name]) for name in wanted] == [len(SIZES)] * len(NETWORKS)
    for name, outputs in wanted.items():
        for want, got in zip(outputs, answers[name]):
            y = torch.tensor(got["y"], dtype=torch.float32).view(got["dims"])
            torch.testing.assert_close(y, want, rtol=0, atol=1e-6 if name == "recurrent" else 0)


def test_the_page_of_the_guide_shows_spikes(exported: Any) -> None:
    """The page itself, and after another number of steps."""
    program = """
    const frame = document.createElement("iframe");
    frame.src = "page.html";
    document.body.append(frame);
    await new Promise((done) => frame.addEventListener("load", done));
    const page = frame.contentDocument, shown = [];
    for (const steps of [25, 3]) {
      page.querySelector("output").textContent = "";
      page.querySelector("input").value = steps;
      page.querySelector("input").dispatchEvent(new Event("change"));
      while (!page.querySelector("output").textContent) await new Promise((done) => setTimeout(done, 20));
      shown.push(page.querySelector("output").textContent);
    }
    answer(shown);
    """
    shown = in_chromium(exported[0], program)
    numbers = [int(re.fullmatch(r"(\d+) spikes", text)[1]) for text in shown]  # type: ignore[index]
    assert numbers[0] > numbers[1]


# -- docs/live.md

STEPS = 24
#: The numbers of each step of some images.
STEPPED = """
const net = await load(await file("web/digits.wasm")), names = ["lif_1", "lif_1_v", "y", "lif_3_v"];
const rows = images.map((image) => {
  net.reset();
  return Array.from({ length: steps }, () => { net.step(image); return names.map((name) => [...net.arrays[name]]); });
});
answer({ rows, scales: names.map((name) => net.scales[name]) });
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The network of the page, as the build of the site makes it, with the page in its folder."""
    wasm_compiler()
    spec: Any = importlib.util.spec_from_file_location("live_digits", DOCS / "live_digits.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    made = program.build(tmp_path_factory.mktemp("live"))
    (made.folder / "page.html").write_text(program.page(made), encoding="utf-8")
    return made


@pytest.mark.parametrize("place", PLACES)
def test_the_live_network_has_the_bits_of_pytorch(place: str, live: Any) -> None:
    """Spikes and potentials of both layers, of every step of some images."""
    images = live.images[:12].flatten(1)
    with torch.no_grad():
        x = (images / 16).expand(STEPS, -1, -1)
        hidden, _, first = live.net[1].run(live.net[0](x), record=("v",))
        out, _, second = live.net[3].run(live.net[2](hidden), record=("v",))
    given = f"const images = {images.int().tolist()}, steps = {STEPS};\n"
    load = 'import { load } from "./web/digits.mjs";\n'
    if place == "Node":
        read = 'import { readFile } from "node:fs/promises";\nconst file = readFile;\n'
        got = in_node(live.folder, f"{load}{read}{given}{STEPPED}")
    else:
        got = in_chromium(live.folder, f"{load}const file = (name) => name;\n{given}{STEPPED}")
    for k, want in enumerate((hidden, first["v"], out, second["v"])):
        numbers = torch.tensor([[step[k] for step in rows] for rows in got["rows"]]) * got["scales"][k]
        assert torch.equal(numbers.float().transpose(0, 1), want)
    assert 0.01 < out.mean() < 0.5


def test_the_live_page_decides(live: Any) -> None:
    """What is drawn, and images that it never saw; the page is small and needs no other file."""
    page = live.folder / "page.html"
    assert page.stat().st_size < 40_000
    assert not re.search(r"(src|href)=|import .* from|https?:", page.read_text(encoding="utf-8"))
    assert live.accuracy > 0.9
    program = """
    const frame = document.createElement("iframe");
    frame.src = "page.html";
    frame.width = 1000;
    frame.height = 800;
    document.body.append(frame);
    await new Promise((done) => frame.addEventListener("load", done));
    const page = frame.contentDocument, part = (name) => page.querySelector(`.live .${name}`);
    while (!page.querySelector(".samples button")) await new Promise((done) => setTimeout(done, 20));
    part("speed").value = 30;
    part("speed").dispatchEvent(new Event("input"));
    const steps = () => Number(part("step").textContent.slice(5));
    async function decided() {
      while (steps() < 16) await new Promise((done) => setTimeout(done, 20));
      return part("decision").textContent;
    }
    function draw(stroke) {
      const field = part("draw"), box = field.getBoundingClientRect();
      stroke.forEach(([x, y], k) => {
        const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true };
        field.dispatchEvent(new frame.contentWindow.PointerEvent(k ? "pointermove" : "pointerdown", at));
      });
      frame.contentWindow.dispatchEvent(new frame.contentWindow.PointerEvent("pointerup"));
    }
    const turn = (k) => k / 16 * Math.PI;
    const circle = Array.from({ length: 33 }, (_, k) => [0.5 + 0.2 * Math.sin(turn(k)), 0.5 - 0.3 * Math.cos(turn(k))]);
    const two = [[0.32, 0.3], [0.4, 0.2], [0.55, 0.18], [0.66, 0.28], [0.64, 0.42], [0.32, 0.8], [0.7, 0.8]];
    const four = [[[0.55, 0.2], [0.3, 0.6], [0.75, 0.6]], [[0.6, 0.4], [0.58, 0.85]]];
    const drawn = { 0: [circle], 1: [[[0.5, 0.2], [0.5, 0.8]]], 2: [two], 4: four };
    const results = { empty: part("decision").textContent, samples: [], drawn: {} };
    for (const button of [...page.querySelectorAll(".samples button")]) {
      button.click();
      results.samples.push(await decided());
    }
    for (const [digit, strokes] of Object.entries(drawn)) {
      part("clear").click();
      strokes.forEach(draw);
      results.drawn[digit] = await decided();
    }
    answer(results);
    """
    results = in_chromium(live.folder, program)
    assert results["empty"] == "?"
    assert results["drawn"] == {digit: digit for digit in "0124"}
    with torch.no_grad():
        chosen = torch.stack([live.images[int((live.labels == digit).nonzero()[0])] for digit in range(10)])
        counts = live.net((chosen.flatten(1) / 16).expand(16, -1, -1)).sum(0)
    assert results["samples"] == [str(int(each)) for each in counts.argmax(1)]
