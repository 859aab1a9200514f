"""Layouts in memory and sizes, beside the rows: of every tensor that a call takes, forward or backward."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterator, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch, as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator
from spikecore.testing._models import spread
from spikecore.testing._oracle import Array, summed
from spikecore.testing._strides import EXPANDED, strided
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import OTHER_DTYPES
from spikecore.testing._turning import TURN

CASES = Collection()


def _case(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
    return CASES.case(f"layouts/{name}", "layouts", holds, *needs, **more)


# -- inputs in which values repeat, and states


@_case("input-expanded", "an expanded input is read as what it stands for")
def _expanded(context: Context) -> None:
    """One column for all, and one step for all."""
    s = Subject(context, "lif", "hard", shape=(6, 3, 5))
    for layout in EXPANDED.values():
        thin = layout(s.x())
        what = "spikes of an expanded input against those of its copy"
        same(what, s.of, as_array(s.neuron(thin)), as_array(s.neuron(thin.contiguous())))
    column = Subject(context, "lif", "hard", shape=(6, 1))
    for i, output in enumerate(column.neuron(column.x().expand(6, 9)).unbind(1)):
        column.check_outputs(output[:, None], f", copy {i} of an expanded input")


@_case("input-expanded-gradient", "and the gradients of its copies are summed", "gradients")
def _expanded_gradient(context: Context) -> None:
    """Nine copies of a column."""
    s = Subject(context, "lif", "hard", shape=(6, 1))
    x = s.x(grad=True)
    output = s.neuron(x.expand(6, 9))
    cotangent = s.cotangent(output)
    s.backward(output, cotangent)
    # the adjoint is linear in the cotangent, so the sum of nine gradients is the gradient of the summed cotangent
    right = s.gradients(cotangent.sum(1, keepdim=True)).inputs[0]
    s.check("input gradient", x.grad, right, name="nine copies")


@_case("state", "a given state of any strides is read where it lies")
def _state(context: Context) -> None:
    s = Subject(context, "lif", "hard", shape=(6, 4, 5), state=True)
    v = (s.start() or {})["v"]
    for name, given in (("strided", strided(v)), ("transposed", v.T.contiguous().T)):
        output, final = s.neuron.run(s.x(), state={"v": given})
        s.check_outputs(output, f" from a {name} state")
        s.check_states(final, s.bits().final, f"final state, from a {name} state,", exact=True)
    zero = torch.zeros((), device=context.device).expand(4, 5)
    from_zero = Subject(context, "lif", "hard", shape=(6, 4, 5), values={"v_reset": 0.0})
    from_zero.check_outputs(from_zero.neuron.run(from_zero.x(), state={"v": zero})[0], " from an expanded state")


@_case("state-incoming", "so are the gradients of the final state", "gradients", "state_gradients")
def _state_incoming(context: Context) -> None:
    """``final.sum()`` and a transposed cotangent."""
    s = Subject(context, "lif", "hard", shape=(6, 4, 5), state=True)
    for layout in (lambda g: torch.ones_like(g[:1, :1]).expand(g.shape), lambda g: g.T.contiguous().T):
        x = s.x(grad=True)
        _, final = s.neuron.run(x, state=s.start())
        cotangent = layout(s.cotangent(final["v"]))
        s.backward(final["v"], cotangent)
        s.check("input gradient", x.grad, s.gradients(None, {"v": cotangent}).inputs[0], name="the final state")


# -- the layout of one tensor of a call, or of all

_STATES = ("a", "b", "c")


def _strided(x: Tensor) -> Tensor:
    wide = x.new_full((*x.shape, 2), float("nan"))
    wide[..., 0] = x
    return wide[..., 0]


def _transposed(x: Tensor) -> Tensor:
    order = list(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _offset(x: Tensor) -> Tensor:
    flat = x.new_full((x.numel() + 3,), float("nan"))
    flat[3:] = x.reshape(-1)
    return flat[3:].view(x.shape)


def _part(x: Tensor) -> Tensor:
    around = x.new_full([size + 2 for size in x.shape], float("nan"))
    inner = around[tuple(slice(1, -1) for _ in x.shape)]
    inner.copy_(x)
    return inner


def _first_of_the_batch(x: Tensor) -> Tensor:
    axis = min(1, x.dim() - 1)
    return torch.cat([x, torch.full_like(x, float("nan"))], axis).narrow(axis, 0, x.shape[axis]) if x.dim() else x


#: Name -> layout. The last one changes values: those along the last dimension become one.
_LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "strided": _strided,
    "transposed": _transposed,
    "offset": _offset,
    "part-of-a-larger-one": _part,
    "first-of-the-batch": _first_of_the_batch,
    "expanded": lambda x: x[..., :1].expand(x.shape) if x.dim() else x,
}
#: What is laid out, by the name of the case -> its names in the call.
_ROLES: Dict[str, Tuple[str, ...]] = {
    "first-input": ("x",),
    "second-input": ("y",),
    "given-state": ("a", "c"),
    "second-state-alone": ("b",),
    "channel-parameter": ("gain",),
    "full-parameter": ("leak",),
    "cotangent-of-first-output": ("g output 0",),
    "cotangent-of-second-output": ("g output 1",),
    "cotangent-of-final-state": ("g final a", "g final b"),
    "cotangent-of-trace": ("g trace b", "g trace c"),
}
_ROLES["everything"] = tuple(name for names in _ROLES.values() for name in names)


def _placed(context: Context, role: str, layout: str, input_dtype: str = "float32") -> None:
    """Everything that a call gives, and every gradient, with the tensors of one role laid out so."""

    def put(name: str, x: Tensor) -> Tensor:
        return _LAYOUTS[layout](x) if name in _ROLES[role] else x

    def values(name: str, x: Any) -> Any:
        if layout != "expanded" or name not in _ROLES[role]:
            return x
        return np.broadcast_to(x[..., :1], np.shape(x)).copy()

    shape = (6, 4, 5)
    params = {"leak": values("leak", spread(0.7, shape[1:])), "gain": values("gain", spread(0.6, shape[2:]))}
    s = Subject(context, TURN, "none", shape=shape, state=True, values=params, dtype=input_dtype)
    held = torch.float64 if input_dtype == "float64" else torch.float32
    state = {name: values(name, x) for name, x in (s.state or {}).items()}
    s.takes([values(name, x) for name, x in zip(s.twin.inputs, s.inputs)], state)
    given: Dict[str, Tensor] = {**dict(zip(s.twin.inputs, s.xs())), **(s.start() or {})}
    given.update({name: context.tensor(value, held) for name, value in params.items()})
    leaves = {name: put(name, value).detach().requires_grad_() for name, value in given.items()}
    neuron: Any = s.neuron
    for name in params:
        leaves[name] = nn.Parameter(leaves[name])
        setattr(neuron, name, leaves[name])
    inputs, start = [leaves[name] for name in s.twin.inputs], {name: leaves[name] for name in _STATES}
    output, final, trace = neuron.run(*inputs, state=start, record=_STATES)
    how = f", {role} {layout}"
    s.check_outputs(output, how)
    s.check_states(final, s.bits().final, f"final state{how},", exact=True)
    s.check_states(trace, s.bits().states, f"recorded{how},", exact=True)
    results: Dict[str, Tensor] = {f"output {i}": one for i, one in enumerate(output)}
    results.update({f"final {name}": final[name] for name in _STATES})
    results.update({f"trace {name}": trace[name] for name in _STATES})
    s.cotangents = g = {name: put(f"g {name}", s.cotangent(one)) for name, one in results.items()}
    backward(s.of, list(results.values()), list(g.values()))
    of_final, of_trace = ({name: g[f"{kind} {name}"] for name in _STATES} for kind in ("final", "trace"))
    right = s.gradients([g["output 0"], g["output 1"]], of_final, of_trace)
    expected = {**dict(zip(s.twin.inputs, right.inputs)), **right.state, **right.params}
    for name, leaf in leaves.items():
        quantity = "parameter" if name in params else "state" if name in _STATES else "input"
        s.check(f"{quantity} gradient", leaf.grad, expected[name], name=name + how, of=name)


def _add_places() -> None:
    needs = (
        *("gradients", "parameter_gradients", "state_gradients", "record", "several_inputs", "several_outputs"),
        *("channel_parameters", "full_parameters"),
    )
    holds = "a tensor of these strides, wherever it is given, is read as what it stands for"
    for role in _ROLES:
        for layout in _LAYOUTS:
            _case(f"{role}-{layout}", holds, *needs)(partial(_placed, role=role, layout=layout))
    holds = "also in other dtypes, where several values may share a word"
    for dtype in OTHER_DTYPES:
        for layout in ("transposed", "strided", "expanded"):
            run = partial(_placed, role="everything", layout=layout, input_dtype=dtype)
            _case(f"everything-{layout}-{dtype}", holds, *needs, dtype=dtype)(run)


_add_places()

# -- more neurons than one grid, one launch or one partial sum can take, many dimensions, and one of everything.
# Inputs and cotangents are small whole numbers, so that sums of hundreds of thousands of products are exact in float32
# in whatever order they are made: one neuron left out, or counted twice, shows.

#: Name -> shape ``[T, *N]`` and, where the parameter is one per channel, channel_dim.
_SIZES: Dict[str, Tuple[Tuple[int, ...], Any]] = {
    "65539-neurons": ((1, 65539), None),
    "131075-neurons": ((2, 131075), None),
    "131075-neurons-in-rows": ((1, 5, 26215), None),
    "batch-of-65537": ((1, 65537, 2), None),
    "rows-of-65537": ((1, 2, 65537), None),
    "five-dimensions": ((2, 2, 3, 5, 2, 7), None),
    "six-dimensions": ((2, 2, 3, 1, 2, 5, 3), None),
    "odd-inner-sizes": ((2, 3, 33, 17), None),
    "one-neuron": ((2, 1), None),
    "one-of-everything": ((1, 1, 1, 1), None),
    "one-channel": ((2, 3, 1, 5), 1),
    "1025-channels": ((2, 3, 1025), 1),
    "1025-channels-inside": ((2, 2, 1025, 3), 1),
    "1025-channels-last": ((2, 3, 5, 1025), -1),
    "65537-channels-first": ((1, 65537, 2), 0),
    "three-channels-of-65537": ((1, 1, 3, 65537), 1),
    "three-channels-last-of-43693": ((1, 43693, 3), -1),
    "channels-of-five-dimensions": ((2, 2, 3, 5, 2, 7), 2),
}


class Leak(sc.Neuron):
    """``v' = v / 2 + a x``, which is the output."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """A leak and a gain."""
        v = s.v * 0.5 + x * p.a
        return v, {"v": v}


def _sized(context: Context, shape: Tuple[int, ...], dim: Any) -> None:
    """Outputs, final state, and the gradients of input and parameter, to the bit."""
    rng = generator("sizes", shape)
    x, g = (rng.integers(1, 4, size=shape).astype(float) for _ in range(2))
    a: Any = 0.5
    wide: Any = 0.5
    options: Dict[str, Any] = {}
    if dim is not None:
        neurons = shape[1:]
        a = 0.5 + np.arange(neurons[dim]) % 3
        wide = a.reshape([neurons[dim] if i == dim % len(neurons) else 1 for i in range(len(neurons))])
        options["channel_dim"] = dim
    neuron = context.place(Leak(a=torch.tensor(a, dtype=torch.float32), learn=("a",), backend=context.name, **options))
    leaf = context.tensor(x, grad=True)
    output, final = neuron.run(leaf)
    of = f"{neuron!r} on input {list(shape)}"
    v, back, seen, total = np.zeros(shape[1:]), np.zeros(shape[1:]), [], []
    for now, coming in zip(x, g[::-1]):
        v = v * 0.5 + now * wide
        back = coming + back * 0.5
        seen.append(v)
        total.append(back)
    axes = "t, " + ", ".join("nklmij"[: len(shape) - 1])
    same("output", of, as_array(output), np.stack(seen), axes=axes)
    same("final v", of, as_array(final["v"]), v, axes=axes[3:])
    backward(of, [output], [context.tensor(g)])
    if leaf.grad is None or neuron.a.grad is None:
        raise Mismatch(f"{of}: input or parameter got no gradient")
    reached = np.stack(total[::-1])
    same("input gradient", of, as_array(leaf.grad), reached * wide, axes=axes)
    parts = (reached * x).sum(0)
    came, right = as_array(neuron.a.grad), _summed(parts, wide, a)
    suspects = {}
    if not np.array_equal(came, right):
        # sums are exact, so what is only near is another one
        found = ((phrase, _summed(parts * mask, wide, a)) for phrase, mask in _blocks(shape[1:]))
        suspects = {phrase: partial(np.asarray, some) for phrase, some in found if np.array_equal(some, came)}
    same("gradient of a, a sum of whole numbers,", of, came, right, axes="channel", suspects=suspects)


def _summed(parts: Array, wide: Any, a: Any) -> Array:
    return np.reshape(summed(parts, parts.shape, np.shape(wide)), np.shape(a))


def _blocks(shape: Tuple[int, ...]) -> Iterator[Tuple[str, Array]]:
    """Neurons that a sum in blocks may leave out, in words, and 1 for those that it has."""
    number = np.arange(int(np.prod(shape))).reshape(shape)
    count = number.size
    for block in (2**k for k in range(17, 4, -1)):
        if block < count:
            yield f"of the first {block} neurons alone, of {count}: is it summed over all blocks?", number < block
        if block < count and count % block:
            whole = count - count % block
            yield f"of all neurons but the last, incomplete block of {block}", number < whole
            yield f"of the last, incomplete block of {block} neurons alone", number >= whole
    yield f"of all neurons but the last, of {count}", number < count - 1


for _name, (_shape, _dim) in _SIZES.items():
    _holds = "every neuron of so many is computed, and counted once in the gradient of its parameter"
    _needs = ("gradients", "parameter_gradients", *(() if _dim is None else ("channel_parameters",)))
    _case(f"size-{_name}", _holds, *_needs)(partial(_sized, shape=_shape, dim=_dim))
