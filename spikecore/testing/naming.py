"""Neurons that are called, and call their values, whatever a test wants: kernels must not mind."""

from __future__ import annotations

import dataclasses
import itertools
import keyword
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple, Type

import torch
from torch import Tensor

from spikecore.core.checks import COMMON
from spikecore.core.neuron import Neuron
from spikecore.lang import ops
from spikecore.surrogate import Surrogate

#: Roles of a name. An output has no name but that of the local variable that it is.
ROLES = ("local", "param", "state", "input", "field")

#: In names that nothing else has.
HARMLESS = "harmless"
#: Kinds of parameters, one for each in turn.
KINDS = ("number", "scalar", "channel", "full")


@dataclasses.dataclass(frozen=True)
class Naming:
    """Names by what they are of."""

    local: Tuple[str, ...] = ()
    param: Tuple[str, ...] = ()
    state: Tuple[str, ...] = ("v",)
    input: Tuple[str, ...] = ("x",)
    field: Tuple[str, ...] = ()
    owner: str = "Named"

    def harmless(self) -> Naming:
        """Equally many names that nothing else has."""
        counts = {role: range(len(getattr(self, role))) for role in ROLES}
        return _naming({role: [f"{HARMLESS}{role}{k}" for k in count] for role, count in counts.items()}, HARMLESS)

    def neuron(self) -> Type[Neuron]:
        """A neuron that uses every one of them, each in a value, a choice or a derivative of its own."""
        lines = ["def dynamics(self, x_, s_, p_):", "    inner_ = sum_(x_) * 0.5"]
        for k, name in enumerate(self.param):
            lines.append(f"    inner_ = inner_ + p_.{name} * {0.1 + 0.05 * (k % 7)}")
        for k, name in enumerate(self.local):
            lines.append(f"    {name} = inner_ * {0.5 + 0.03 * (k % 5)} - 0.25")
            lines.append(f"    inner_ = inner_ + {name} * {name} * 0.02 - {0.01 * (k % 3)}")
        following = []
        for k, name in enumerate(self.state):
            lines.append(f"    inner_ = inner_ - s_.{name} * {0.2 + 0.1 * (k % 3)}")
            following.append(f"{name!r}: choose_(spike_, s_.{name} * 0.5, inner_ * {0.3 + 0.05 * (k % 4)})")
        lines.append("    spike_ = self.spike(inner_ - 0.4)")
        lines.append(f"    return (spike_, inner_), {{{', '.join(following)}}}")
        space: Dict[str, Any] = {"sum_": _sum, "choose_": ops.select}
        exec("\n".join(lines), space)
        body = {
            "states": dict(zip(self.state, itertools.cycle([0.0, 0.25, -0.5]))),
            "params": dict(zip(self.param, itertools.cycle([0.5, -0.25, 0.75, 1.5]))),
            "inputs": self.input,
            "dynamics": space["dynamics"],
        }
        made: Type[Neuron] = type(self.owner, (Neuron,), body)
        return made

    def surrogate(self) -> Surrogate:
        """A surrogate that uses every field."""
        fields = [(name, float, dataclasses.field(default=0.5 + 0.1 * k)) for k, name in enumerate(self.field)]
        names = self.field

        def derivative(self: Any, u: Any) -> Any:
            return 1.0 / (1.0 + abs(u) * sum(getattr(self, name) for name in names))

        body = {"derivative": derivative}
        made: Type[Surrogate] = dataclasses.make_dataclass(
            "Named", fields, bases=(Surrogate,), namespace=body, frozen=True
        )
        return made()


def _naming(groups: Mapping[str, Sequence[str]], owner: str) -> Naming:
    local, param, state, input_, field = (tuple(groups[role]) for role in ROLES)
    return Naming(local, param, state, input_, field, owner)


def _sum(x: Any) -> Any:
    return sum(x[1:], x[0]) if isinstance(x, tuple) else x


def usable(names: Iterable[str]) -> List[str]:
    """Those that a neuron can have, in order; a keyword of Python, for one, cannot be an attribute."""
    taken = ("self", "x_", "s_", "p_", "inner_", "spike_", "sum_", "choose_")
    return sorted(
        name
        for name in {*names}
        if name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_") and name not in taken
    )


def namings(names: Sequence[str], each: int, owner: str = "Named") -> Iterator[Naming]:
    """Every name in every role: ``each`` names a neuron, and each neuron's again with the roles turned on."""
    for start in range(0, len(names), each):
        part = names[start : start + each]
        for turn in range(len(ROLES)):
            groups: Dict[str, List[str]] = {role: [] for role in ROLES}
            for k, name in enumerate(part):
                role = ROLES[(k + turn) % len(ROLES)]
                taken = {"param": (*COMMON, "training", *dir(Neuron)), "field": dir(Surrogate)}.get(role, ())
                groups["local" if name in taken else role].append(name)
            for role in ("state", "input"):
                groups[role] = groups[role] or [f"some_{role}"]
            yield _naming(groups, owner)


def awkward() -> Naming:
    """500 letters, letters beyond ASCII, and a class that ``type()`` made."""
    long = "n" * 500
    return Naming(
        (f"{long}a", f"{long}b"), (f"{long}c", "τ"), (f"{long}e", "ü"), (f"{long}f",), ("α",), f'1 "\\\n{long}'
    )


def results(naming: Naming, backend: str, device: str = "cpu", steps: int = 5) -> Dict[str, Tensor]:
    """All values and gradients of a call, with every kind of parameter."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) - 0.3).to(device)

    shapes: Dict[str, Tuple[int, ...]] = {"scalar": (), "channel": (3,), "full": (2, 3, 4)}
    kinds = dict(zip(naming.param, itertools.cycle(KINDS)))
    values = {name: rand(*shapes[kind]) for name, kind in kinds.items() if kind != "number"}
    made: Any = naming.neuron()
    neuron = made(surrogate=naming.surrogate(), learn=tuple(values), backend=backend, **values).to(device)
    inputs = [rand(steps, 2, 3, 4).requires_grad_() for _ in naming.input]
    start = {name: rand(2, 3, 4).requires_grad_() for name in naming.state}
    outputs, end, trace = neuron.run(*inputs, state=start, record=naming.state)
    found = {f"output {k}": value for k, value in enumerate(outputs)}
    found.update((f"final {name}", value) for name, value in end.items())
    found.update((f"trace {name}", value) for name, value in trace.items())
    weights = [rand(*value.shape) for value in found.values()]
    torch.stack([(value * weight).sum() for value, weight in zip(found.values(), weights)]).sum().backward()
    leaves = {**dict(zip(naming.input, inputs)), **start, **dict(neuron.named_parameters())}
    found.update((f"gradient of {name}", leaf.grad) for name, leaf in leaves.items())
    return found
