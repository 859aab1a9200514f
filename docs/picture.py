"""The pictures of README.md, a definition with its speed, and badges: ``python docs/picture.py``.

Both are as wide as a telephone shows them without making the letters small. Times are read from files of
docs/benchmarks, verdicts from docs/results. A test compares the files with what this makes.
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
PICTURE = DOCS / "_static" / "definition-speed.svg"
BADGES = DOCS / "_static" / "badges.svg"
#: Units across both pictures.
WIDTH = 470
LIGHT = "--page: #f6f8fa; --panel: #ffffff; --edge: #d0d7de; --text: #1f2328; --dim: #59636e; --theirs: #8c959f"
DARK = "--page: #0d1117; --panel: #161b22; --edge: #3d444d; --text: #e6edf3; --dim: #9198a1; --theirs: #6e7681"
STYLE = f"""
svg {{ {LIGHT}; --ours: #1a7f37 }}
@media (prefers-color-scheme: dark) {{ svg {{ {DARK}; --ours: #3fb950 }} }}
.page {{ fill: var(--page) }} .panel {{ fill: var(--panel); stroke: var(--edge) }}
.ours {{ fill: var(--ours) }} .theirs {{ fill: var(--theirs) }}
text {{ fill: var(--text); font: 14px system-ui, sans-serif }}
.title {{ font-weight: 600; font-size: 16px }} .dim {{ fill: var(--dim); font-size: 13px }}
.code {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}
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
        ("only the data that both passes must move", own["copy"] * 5 / 2, False),
        ("spikecore, a neuron of your own with two states", own["cupy"], True),
        ("spikecore, LIF", lif["cupy"], True),
        ("SpikingJelly 2.0.0, LIF in Triton kernels", lif["SpikingJelly functional"], False),
        ("SpikingJelly 2.0.0, LIF in a loop over the steps", lif["SpikingJelly steps"], False),
    ]


def _text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" xml:space="preserve">{escape(words, quote=False)}</text>'


def picture() -> str:
    """The picture as SVG, with a page of its own behind it, so that it reads on light and on dark pages."""
    code, speed = definition(), bars()
    top = 60 + 19 * len(code)
    height = top + 74 + 40 * len(speed)
    parts: List[Any] = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{1.3 * WIDTH:g}" role="img" '
        'aria-label="A neuron of ten lines, and its speed beside another library">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<rect class="panel" x="8" y="8" width="{WIDTH - 16}" height="{top - 16}" rx="6"/>',
        _text(18, 32, "title", "A neuron is its equations"),
    ]
    parts += [_text(18, 58 + 19 * k, "code", line) for k, line in enumerate(code)]
    parts += [
        f'<rect class="panel" x="8" y="{top}" width="{WIDTH - 16}" height="{height - 8 - top}" rx="6"/>',
        _text(18, top + 24, "title", "Forward and backward in ms: shorter is better"),
    ]
    longest = max(time for _, time, _ in speed)
    for k, (label, time, ours) in enumerate(speed):
        y, width = top + 36 + 40 * k, 370 * time / longest
        parts += [
            _text(18, y + 14, "", label),
            f'<rect class="{"ours" if ours else "theirs"}" x="18" y="{y + 20}" width="{width:.1f}" height="12"/>',
            _text(24 + width, y + 31, "", f"{time:.2f}"),
        ]
    source = "134 million float32 inputs, T = 16, one NVIDIA H200"
    parts.append(_text(18, top + 54 + 40 * len(speed), "dim", source))
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
    """Rows of badges as SVG."""
    parts, x, y = [], 0.0, 0
    for name, value in facts():
        first, second = 14 + 6.4 * len(name), 14 + 6.4 * len(value)
        if x + first + second > WIDTH:
            x, y = 0.0, y + 26
        parts += [
            f'<rect x="{x:g}" y="{y}" width="{first:g}" height="20" fill="#444c56"/>',
            f'<rect x="{x + first:g}" y="{y}" width="{second:g}" height="20" fill="#1a7f37"/>',
            f'<text x="{x + first / 2:g}" y="{y + 14}">{escape(name)}</text>',
            f'<text x="{x + first + second / 2:g}" y="{y + 14}">{escape(value)}</text>',
        ]
        x += first + second + 6
    words = ", ".join(f"{name}: {value}" for name, value in facts())
    size = f'viewBox="0 0 {WIDTH} {y + 20}" width="{WIDTH}" height="{y + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"'
    style = "<style>text { fill: #fff; font: 11px Verdana, DejaVu Sans, sans-serif; text-anchor: middle }</style>"
    return "\n".join([f'{head} aria-label="{escape(words)}">', style, *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    BADGES.write_text(badges(), encoding="utf-8")
