"""Lines of CUDA C++: loops, words between commas, what every kernel has around its body."""

from __future__ import annotations

import textwrap
from typing import Any, Iterable, List, Sequence

from spikecore.kernels.writing import filled, indented

#: Threads of a block.
BLOCK = 128


#: A long name is longer than a line, and stays whole.
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def first_neuron(name: str = "i") -> str:
    """The first line of a kernel's body: the first of the neighbouring neurons of a thread, which has V of them."""
    return f"const long long {name} = V * (blockIdx.x * (long long)blockDim.x + threadIdx.x);"


def head(name: str, blocks: int = 0, threads: int = BLOCK) -> str:
    """The first line of a kernel, before its arguments. The compiler may use all registers that a block leaves it, or
    those that so many blocks of a multiprocessor leave each.
    """
    bounds = f"{threads}, {blocks}" if blocks else f"{threads}"
    return f'extern "C" __global__ void __launch_bounds__({bounds}) {name}('


def declared(kind: str, name: str, restrict: bool = True) -> str:
    """An argument of a kernel. With ``restrict`` no pointer shares memory with another one, so that loads may come
    before stores.
    """
    if "*" not in kind:
        return f"const {kind} {name}"
    return f"{kind}{' __restrict__' if restrict else ''} {name}"


def over_neurons(lines: Sequence[str]) -> List[str]:
    """A loop over the neurons of a thread."""
    head = ["#pragma unroll", "for (int j = 0; j < V; ++j)"]
    # a loop of one line needs no braces
    if len(lines) == 1:
        return [*head, f"    {lines[0]}"]
    return [head[0], f"{head[1]} {{", *indented(lines), "}"]


def over_steps(lines: Sequence[str], whole: str = "", backwards: bool = False) -> List[str]:
    """An unrolled loop over the steps of a chunk; its last step only where ``whole`` holds, if that is given."""
    head = "for (int t = T - 1; t >= 0; --t)" if backwards else "for (int t = 0; t < T; ++t)"
    guard = f"if (t < T - 1 || {whole}) " if whole and lines else ""
    if len(lines) == 1:
        return ["#pragma unroll", f"{head} {guard}{lines[0]}"]
    inner = [f"{guard}{{", *indented(lines), "}"] if guard else list(lines)
    return ["#pragma unroll", f"{head} {{", *indented(inner), "}"]


def wrapped(words: Iterable[str]) -> List[str]:
    """Words between commas, as lines."""
    return filled(", ".join(word.replace(" ", "\0") for word in words).split(" "), 112)


def folded(line: str) -> List[str]:
    """A line that is too long for a page, as several."""
    # a comment would go on without its mark
    if len(line) <= 120 or line.startswith("//"):
        return [line]
    begin = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), 120, initial_indent=begin, subsequent_indent=begin + "    ", **_WHOLE_WORDS)
