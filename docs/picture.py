"""The pictures of README.md, a definition with its kernel and its speed, and badges: ``python docs/picture.py``.

The kernel is what ``sc.inspect.kernel_source`` gives for the definition, times are read from files of docs/benchmarks,
verdicts from docs/results. A test compares the files with what this makes.
"""

from __future__ import annotations

import inspect
import json
import re
from html import escape
from pathlib import Path
from typing import Any, Dict, List, Tuple

import spikecore as sc

DOCS = Path(__file__).parent
PICTURE = DOCS / "_static" / "definition-kernel-speed.svg"
BADGES = DOCS / "_static" / "badges.svg"
#: Characters of a line of the kernel's panel, beyond which it goes on in the next one.
COLUMNS = 62
LIGHT = "--page: #f6f8fa; --panel: #ffffff; --edge: #d0d7de; --text: #1f2328; --dim: #59636e; --theirs: #8c959f"
DARK = "--page: #0d1117; --panel: #161b22; --edge: #3d444d; --text: #e6edf3; --dim: #9198a1; --theirs: #6e7681"
STYLE = f"""
svg {{ {LIGHT}; --ours: #1a7f37 }}
@media (prefers-color-scheme: dark) {{ svg {{ {DARK}; --ours: #3fb950 }} }}
.page {{ fill: var(--page) }} .panel {{ fill: var(--panel); stroke: var(--edge) }}
.ours {{ fill: var(--ours) }} .theirs {{ fill: var(--theirs) }}
text {{ fill: var(--text); font: 12px system-ui, sans-serif }}
.title {{ font-weight: 600; font-size: 13px }} .dim {{ fill: var(--dim); font-size: 11px }}
.code {{ font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}
"""


class AdaptiveLIF(sc.Neuron):
    """LIF whose threshold rises with every spike."""

    states = {"v": 0.0, "a": 0.0}
    params = {"tau": 2.0, "rho": 0.9,
              "beta": 0.2, "threshold": 1.0}  # fmt: skip

    def dynamics(self, x, s, p):  # noqa: D102
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - (p.threshold + p.beta * s.a))
        v = sc.ops.select(z, 0.0, h)
        return z, {"v": v, "a": p.rho * s.a + z}


def definition() -> List[str]:
    """The class above, as it is written."""
    lines = inspect.getsource(AdaptiveLIF).replace('"""\n\n', '"""\n').splitlines()
    return [line.partition("  # ")[0].rstrip() for line in lines]


def kernel() -> List[str]:
    """The arithmetic of one step in both kernels: the bodies of two functions of their text."""
    texts = sc.inspect.kernel_source(AdaptiveLIF(), backend="cupy")
    lines: List[str] = []
    for direction, function in (("forward", "step"), ("backward", "adjoint")):
        (body,) = re.findall(rf" {function}\(.*?\) {{\n(.*?)\n}}", texts[direction], re.DOTALL)
        lines += [f"// {direction}, one step", *(part for line in body.splitlines() for part in _wrapped(line)), ""]
    return lines[:-1]


def _wrapped(line: str) -> List[str]:
    if len(line) <= COLUMNS:
        return [line]
    cut = line.rindex(" ", 0, COLUMNS)
    return [line[:cut], f"        {line[cut + 1 :]}"]


def rows(file: str, neuron: str) -> Dict[str, float]:
    """Forward and backward at T = 16 in float32, ms, of each implementation in a file of docs/benchmarks."""
    found = {}
    for row in json.loads((DOCS / "benchmarks" / file).read_text(encoding="utf-8"))["rows"]:
        case = row["case"]
        if (case.get("neuron"), case.get("steps"), case.get("dtype")) == (neuron, 16, "float32"):
            time = row["figures"].get("training_ms")
            if time is not None:
                found[row.get("implementation") or row["contender"]] = time
    return found


def bars() -> List[Tuple[str, float, bool]]:
    """What the panel of speed shows: a label, ms, and whether it is ours."""
    own, lif = rows("h200-neurons.json", "own-neuron"), rows("h200-lif.json", "LIF")
    return [
        # a copy moves two words, and forward and backward of a neuron cannot do with less than five
        ("moving the data", own["copy"] * 5 / 2, False),
        ("your neuron, two states", own["cupy"], True),
        ("sc.LIF", lif["cupy"], True),
        ("SpikingJelly LIF, kernels", lif["SpikingJelly functional"], False),
        ("SpikingJelly LIF, a loop", lif["SpikingJelly steps"], False),
    ]


def _text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" xml:space="preserve">{escape(words, quote=False)}</text>'


def picture() -> str:
    """The picture as SVG, with a page of its own behind it, so that it reads on light and on dark pages."""
    left, right, speed = definition(), kernel(), bars()
    height = max(58 + 15 * len(right), 114 + 16 * len(left) + 18 * len(speed))
    parts: List[Any] = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {height}" role="img" '
        'aria-label="A neuron of ten lines, the CUDA kernel made from it, and its speed beside other libraries">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="920" height="{height}" rx="8"/>',
        f'<rect class="panel" x="10" y="10" width="430" height="{32 + 16 * len(left)}" rx="6"/>',
        _text(22, 30, "title", "A neuron is its equations"),
    ]
    parts += [_text(22, 50 + 16 * k, "code", line) for k, line in enumerate(left)]
    parts += [
        f'<rect class="panel" x="450" y="10" width="460" height="{height - 20}" rx="6"/>',
        _text(462, 30, "title", "Its CUDA kernels: derived, gradient included"),
    ]
    parts += [_text(462, 50 + 15 * k, "code", line) for k, line in enumerate(right)]
    top = 52 + 16 * len(left)
    parts += [
        f'<rect class="panel" x="10" y="{top}" width="430" height="{height - 10 - top}" rx="6"/>',
        _text(22, top + 20, "title", "Its speed: forward and backward, ms"),
    ]
    longest = max(time for _, time, _ in speed)
    for k, (label, time, ours) in enumerate(speed):
        y = top + 30 + 18 * k
        parts += [
            _text(22, y + 11, "dim", label),
            f'<rect class="{"ours" if ours else "theirs"}" x="165" y="{y + 1}" '
            f'width="{215 * time / longest:.1f}" height="12"/>',
            _text(170 + 215 * time / longest, y + 11, "dim", f"{time:.2f}"),
        ]
    source = "134 M inputs, T = 16, float32, one H200; docs/benchmarks/h200-*.json"
    parts.append(_text(22, top + 42 + 18 * len(speed), "dim", source))
    return "\n".join([*parts, "</svg>", ""])


def facts() -> List[Tuple[str, str]]:
    """What the badges say: the floors of Python and torch, the licence, and the verdicts of conformance runs."""
    settings = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    (python,) = re.findall(r'(?m)^requires-python = ">=(.*)"', settings)
    (torch,) = re.findall(r'(?m)^    "torch>=(.*)",', settings)
    (licence,) = re.findall(r'(?m)^license = { text = "(.*)" }', settings)
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((DOCS / "results").glob("*.json"))]
    said = {f"{run['backend']} on {run['device']['device']}": run["verdict"] for run in runs}
    return [
        ("Python", f"{python} or newer"),
        ("torch", f"{torch} or newer"),
        ("licence", licence),
        *sorted(said.items()),
    ]


def badges() -> str:
    """A row of badges as SVG."""
    parts, x = [], 0.0
    for name, value in facts():
        first, second = 14 + 6.4 * len(name), 14 + 6.4 * len(value)
        parts += [
            f'<rect x="{x:g}" width="{first:g}" height="20" fill="#444c56"/>',
            f'<rect x="{x + first:g}" width="{second:g}" height="20" fill="#1a7f37"/>',
            f'<text x="{x + first / 2:g}" y="14">{escape(name)}</text>',
            f'<text x="{x + first + second / 2:g}" y="14">{escape(value)}</text>',
        ]
        x += first + second + 6
    words = ", ".join(f"{name}: {value}" for name, value in facts())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {x:g} 20" width="{x:g}" height="20" role="img"'
    style = "<style>text { fill: #fff; font: 11px Verdana, DejaVu Sans, sans-serif; text-anchor: middle }</style>"
    return "\n".join([f'{head} aria-label="{escape(words)}">', style, *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    BADGES.write_text(badges(), encoding="utf-8")
