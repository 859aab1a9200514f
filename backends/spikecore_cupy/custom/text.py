"""A kernel as text: its arguments, what a thread loads before its elements, and the lines of one step."""

from __future__ import annotations

import logging
from typing import Dict, List, NamedTuple, Sequence, Tuple

from spikecore_cupy.custom.core import Core, mentions
from spikecore_cupy.custom.declared import Declared, Typed, of_role
from spikecore_cupy.lines import indented, over_neurons, wrapped
from spikecore_cupy.printer import CudaPrinter
from spikecore_cupy.writer import BLOCK

_log = logging.getLogger("spikecore")


class Printed(NamedTuple):
    """A printed kernel.

    ``arguments`` are what it takes, as (kind, name): ``"pointer"`` of a tensor (0 for a state that starts at a number),
    ``"step"`` from one step of it to the next, ``"apart"`` for a parameter's numbers, 0 if it has one for all elements,
    ``"number"``, or ``"N"`` and ``"T"``.
    """

    text: str
    arguments: Tuple[Tuple[str, str], ...]
    #: Their C types.
    types: Tuple[str, ...]


def section(name: str) -> List[str]:
    """A comment that says which part of a kernel begins, where the logger ``spikecore`` is at DEBUG."""
    return [f"// -- {name}"] if _log.isEnabledFor(logging.DEBUG) else []


class CustomWriter:
    """Writes one kernel for ``width`` neighbouring elements a thread.

    With ``restrict``, tensors are promised not to share memory.
    """

    def __init__(self, values: Sequence[Declared], typed: Typed, core: Core, width: int, restrict: bool) -> None:
        self.values, self.typed, self.core, self.width = values, typed, core, width
        self._restrict = " __restrict__" if restrict else ""
        self._printer = CudaPrinter(typed.compute)
        self._taken = {value.name for value in values}
        #: What an output's number is called before it is stored.
        self._late: Dict[str, str] = {}
        for name in of_role(values, "output"):
            self._late[name] = self._printer.identifier(f"{name}_j", self._taken)
            self._taken.add(self._late[name])
        self._arguments: Dict[Tuple[str, str], Tuple[str, str]] = {}
        self.argument("N", "N", "long long", "N")

    def argument(self, kind: str, of: str, c_type: str, name: str) -> str:
        """The name of an argument, which the kernel has from now on."""
        if (kind, of) not in self._arguments:
            name = name if name == of else self._printer.identifier(name, self._taken)
            self._taken.add(name)
            self._arguments[kind, of] = (c_type, name)
        return self._arguments[kind, of][1]

    def pointer(self, name: str, fills: bool = False) -> str:
        """The argument that says where a tensor is."""
        kind = f"{'' if fills else 'const '}{self.typed.stored(name)}*"
        return self.argument("pointer", name, kind, f"{name}s")

    def opening(self) -> List[str]:
        """Which elements a thread has, and its parameters."""
        lines = ["const long long i = V * (blockIdx.x * (long long)blockDim.x + threadIdx.x);", "if (i >= N) return;"]
        for name in of_role(self.values, "param"):
            apart = self.argument("apart", name, "long long", f"{name}_apart")
            place = self.typed.read(name, f"{self.pointer(name)}[{apart} * (i + j)]")
            lines += [f"{self.typed.local(name)} {name}[V];", *over_neurons([f"{name}[j] = {place};"])]
        for name in of_role(self.values, "number"):
            self.argument("number", name, self.typed.local(name), name)
        return lines

    def starting(self) -> List[str]:
        """The first values of states."""
        lines = []
        for name in of_role(self.values, "state"):
            start = self.argument("pointer", name, f"const {self.typed.real}*", f"{name}_start")
            first = self.argument("number", name, self.typed.real, f"{name}_first")
            lines += [f"Pack<{self.typed.real}, V> {name};"]
            lines += over_neurons([f"{name}[j] = {start} ? {start}[i + j] : {first};"])
        return lines

    def step(self, timed: bool) -> List[str]:
        """Load, compute and store one step of all elements of a thread."""
        lines = []
        for name in of_role(self.values, "input"):
            place = self.pointer(name)
            if timed:
                place += f" + t * {self.argument('step', name, 'long long', f'{name}_step')}"
            lines.append(f"const Pack<{self.typed.stored(name)}, V> {name} = load<V>({place} + i);")
        outputs = of_role(self.values, "output")
        lines += [f"Pack<{self.typed.stored(name)}, V> {name};" for name in outputs]
        inner = [f"{self.typed.local(name)} {self._late[name]} = 0;" for name in outputs]
        inner.append(f"core({', '.join(self._given())});")
        inner += [f"{name}.set(j, {self.typed.written(name, self._late[name])});" for name in outputs]
        lines += over_neurons(inner)
        offset = "t * N + i" if timed else "i"
        return [*lines, *(f"store({self.pointer(name, fills=True)} + {offset}, {name});" for name in outputs)]

    def _given(self) -> List[str]:
        """What the core gets for element j."""
        roles = {value.name: value.role for value in self.values}
        texts = {"i": "i + j"}
        for name, role in roles.items():
            at = self.typed.read(name, f"{name}[j]") if role == "input" else f"{name}[j]"
            texts[name] = {"number": name, "output": self._late.get(name, "")}.get(role, at)
        return [texts.get(name, name) for name in (*self.core.takes, *self.core.sets)]

    def ending(self) -> List[str]:
        """Stores of states after the last step."""
        lines = []
        for name in of_role(self.values, "end"):
            place = self.argument("pointer", name, f"{self.typed.real}*", name)
            lines.append(f"store({place} + i, {name[: -len('_end')]});")
        return lines

    def finished(self, kernel: str, title: Sequence[str], header: str, body: Sequence[str]) -> Printed:
        """The kernel around these lines."""
        words = [
            f"{kind}{self._restrict} {name}" if "*" in kind else f"const {kind} {name}"
            for kind, name in self._arguments.values()
        ]
        needs_real = mentions("\n".join([header, *self.core.lines]), "real")
        lines = [
            *section("declaration"),
            *(f"// {line}".rstrip() for line in title),
            "",
            '#include "spikecore.cuh"',
            "",
            f"constexpr int V = {self.width};  // neighbouring elements of a thread",
            *([f"using real = {self.typed.real};"] if needs_real else []),
            "",
            *([*header.strip("\n").splitlines(), ""] if header.strip() else []),
            *section("core"),
            *self.core.lines,
            "",
            *section("head"),
            f'extern "C" __global__ void __launch_bounds__({BLOCK}) {kernel}(',
            *wrapped(words),
            ") {",
            *indented(body),
            "}",
        ]
        types = tuple(kind for kind, _ in self._arguments.values())
        return Printed("\n".join(lines) + "\n", tuple(self._arguments), types)
