"""What users do with neurons: short programs that take a backend's name and return what came of it.

``call`` runs a neuron once, forward and backward, and returns all that there is to see; ``bits`` compares to the last
bit; ``train`` takes steps of an optimiser. Where none of them fits, a mutant has a program of its own beside it.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Sequence, Tuple

import torch

import spikecore as sc

Make = Callable[[str], Any]
Shown = Callable[[str], Any]


def of(cls: Any, **options: Any) -> Make:
    """A neuron with these options, and with copies of their tensors, on the backend that is asked for."""

    def make(backend: str) -> Any:
        own = {k: copy.deepcopy(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        return cls(**own, backend=backend)

    return make


def lif(**options: Any) -> Make:
    """A LIF neuron, see :func:`of`."""
    return of(sc.LIF, **{"tau": 2.7, "threshold": 0.9, **options})


def li(**options: Any) -> Make:
    """A leaky integrator, see :func:`of`."""
    return of(sc.LI, **{"tau": 2.7, **options})


class Gated(sc.Neuron):
    """Two inputs and two outputs."""

    inputs = ("x", "gate")
    states = {"v": 0.0}
    params = {"threshold": 0.7}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v * x.gate + x.x
        z = self.spike(h - p.threshold)
        return (z, h), {"v": sc.ops.select(z, 0.0, h)}


class Swapped(sc.Neuron):
    """Two states that change places."""

    states = {"a": 0.5, "b": -0.25}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return s.a * s.b + x, {"a": s.b + x, "b": s.a}


def applied(function: Callable[..., Any], inputs: int = 1) -> Make:
    """A neuron that applies a function of the language to its inputs."""
    names = ("x", "y")[:inputs]

    class Applied(sc.Neuron):
        """A function and nothing else."""

        states = {"v": 0.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            given = [x] if inputs == 1 else [x.x, x.y]
            return function(*given), {"v": s.v}

    Applied.inputs = names  # type: ignore[misc]  # a class variable that depends on an argument
    return of(Applied)


def at(function: Callable[..., Any], *columns: Sequence[float], gradient: bool = False) -> Shown:
    """The values of a function of the language at these points, with the sign of zeros; or its gradients."""
    make = applied(function, len(columns))

    def program(backend: str) -> Any:
        xs = [torch.tensor([list(column)], requires_grad=gradient) for column in columns]
        out = make(backend)(*xs)
        if not gradient:
            return {"values": out, "signs": torch.signbit(out) & ~torch.isnan(out), "zeros": out == 0}
        out.sum().backward()
        return [x.grad for x in xs]

    return program


def drawn(shape: Sequence[int], seed: int = 0, scale: float = 1.5, dtype: torch.dtype = torch.float32) -> Any:
    """Random numbers, mostly above 0."""
    numbers = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (numbers * scale + 0.7).to(dtype)


def call(
    make: Make,
    shape: Sequence[int] = (6, 3, 5),
    *,
    dtype: torch.dtype = torch.float32,
    inputs: int = 1,
    scale: float = 1.5,
    state: bool = False,
    record: Tuple[str, ...] = (),
    loss: Sequence[str] = ("output",),
    weight: float = 1.0,
    laid: Callable[[str, Any], Any] = lambda what, tensor: tensor,
    wanted: Tuple[str, ...] = ("x", "state", "params"),
) -> Shown:
    """One call and one backward.

    loss: the results that a cotangent comes to, ``"output"``, ``"output 1"``, ``"final"``, ``"trace"``; none for no
    backward. laid: ``(name, tensor) -> tensor`` gives inputs, state and cotangents another layout. wanted: which
    gradients are asked for.
    """

    def program(backend: str) -> Any:
        neuron = make(backend)
        neuron = neuron.double() if dtype == torch.float64 else neuron
        held = torch.float64 if dtype == torch.float64 else torch.float32
        leaves: Dict[str, Any] = {}
        for k in range(inputs):
            want = f"x{k or ''}" in wanted and bool(loss)
            leaves[f"x{k or ''}"] = drawn(shape, k, scale, dtype).requires_grad_(want)
        if state:
            for k, name in enumerate(neuron.states):
                want = "state" in wanted and bool(loss)
                leaves[name] = (drawn(shape[1:], 7 + k, 0.5, held) - 0.5).requires_grad_(want)
        given = {name: laid(name, leaf) for name, leaf in leaves.items()}
        xs = [given[f"x{k or ''}"] for k in range(inputs)]
        start = {name: given[name] for name in neuron.states} if state else None
        found = neuron.run(*xs, state=start, record=record)
        outputs = found[0] if isinstance(found[0], tuple) else (found[0],)
        results = {f"output {k}" if k else "output": out for k, out in enumerate(outputs)}
        results.update({f"final {name}": value for name, value in found[1].items()})
        results.update({f"trace {name}": value for name, value in (found[2] if record else {}).items()})
        into = [name for name in results if name in loss or name.partition(" ")[0] in {*loss} - {"output"}]
        cotangents = [
            laid(name, weight * drawn(results[name].shape, 20 + k, 1.0, results[name].dtype))
            for k, name in enumerate(into)
        ]
        if into:
            torch.autograd.backward([results[name] for name in into], cotangents)
        gradients = {f"gradient {name}": leaf.grad for name, leaf in leaves.items()}
        gradients.update({f"gradient {name}": p.grad for name, p in neuron.named_parameters()})
        return {name: None if v is None else v.detach().clone() for name, v in {**results, **gradients}.items()}

    return program


def fed(make: Make, *rows: Any, dtype: torch.dtype = torch.float32, gradient: bool = False) -> Shown:
    """What a neuron makes of these numbers, one row a step: outputs and final states, or the input's gradient."""

    def program(backend: str) -> Any:
        x = torch.tensor(rows, dtype=dtype, requires_grad=gradient)
        out, state = make(backend).run(x)
        if gradient:
            out.sum().backward()
            return x.grad
        return out, dict(state)

    return program


def bits(program: Shown) -> Shown:
    """The same, compared to the last bit."""

    def exact(backend: str) -> Any:
        return {k: (v.dtype, v.shape, v.tolist()) for k, v in program(backend).items() if v is not None}

    return exact


def train(make: Make, steps: int = 3, shape: Sequence[int] = (6, 3, 5), rate: float = 0.5) -> Shown:
    """Losses of some steps of gradient descent on the neuron's own parameters, and the parameters after them."""

    def program(backend: str) -> Any:
        neuron = make(backend)
        optimizer = torch.optim.SGD(neuron.parameters(), lr=rate)
        losses = []
        for k in range(steps):
            optimizer.zero_grad()
            loss = (neuron(drawn(shape, k)) - 0.3).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in neuron.parameters()]

    return program


def two_calls(make: Make, other: Any = None, between: Callable[[Any], Any] = lambda neuron: None) -> Shown:
    """Two calls with different numbers, then one backward through both; ``between`` gets the neuron after the first.

    other: the neuron of the second call, if it is another.
    """

    def program(backend: str) -> Any:
        neuron = make(backend)
        second = other(backend) if other else neuron
        x, y = (drawn((6, 3, 5), k).requires_grad_() for k in range(2))
        out = neuron(x)
        between(neuron)
        (out.sum() + 2 * second(y).sum()).backward()
        return [x.grad, y.grad, *(p.grad for p in [*neuron.parameters(), *second.parameters()])]

    return program
