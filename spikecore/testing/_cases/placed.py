"""The layout in memory of every tensor that a call takes, forward or backward."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.testing._case import Collection
from spikecore.testing._compare import backward
from spikecore.testing._context import Context
from spikecore.testing._models import spread
from spikecore.testing._subject import Subject
from spikecore.testing._tolerances import OTHER_DTYPES
from spikecore.testing._turning import TURN

_STATES = ("a", "b", "c")
_SHAPE = (6, 4, 5)
_NEEDS = ("gradients", "parameter_gradients", "state_gradients", "record", "several_inputs", "several_outputs")


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


def _expanded(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape) if x.dim() else x


#: Name -> layout. The last one changes values: those along the last dimension become one.
LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "strided": _strided,
    "transposed": _transposed,
    "offset": _offset,
    "part-of-a-larger-one": _part,
    "first-of-the-batch": _first_of_the_batch,
    "expanded": _expanded,
}
#: What is laid out, by the name of the case -> its names in the call.
ROLES: Dict[str, Tuple[str, ...]] = {
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


def add_to(cases: Collection) -> None:
    """Add these cases to the tier of layouts."""
    for role in (*ROLES, "everything"):
        for layout in LAYOUTS:
            cases.add(
                f"layouts/{role}-{layout}",
                "layouts",
                "a tensor of these strides, wherever it is given, is read as what it stands for",
                partial(placed, role=role, layout=layout),
                (*_NEEDS, "channel_parameters", "full_parameters"),
            )
    for dtype in OTHER_DTYPES:
        for layout in ("transposed", "strided", "expanded"):
            cases.add(
                f"layouts/everything-{layout}-{dtype}",
                "layouts",
                "also in other dtypes, where several values may share a word",
                partial(placed, role="everything", layout=layout, dtype=dtype),
                (*_NEEDS, "channel_parameters", "full_parameters"),
                dtype=dtype,
            )


def placed(context: Context, role: str, layout: str, dtype: str = "float32") -> None:
    """Everything that a call gives, and every gradient, with the tensors of one role laid out so."""
    which = ROLES.get(role) or tuple(name for names in ROLES.values() for name in names)

    def put(name: str, x: Tensor) -> Tensor:
        return LAYOUTS[layout](x) if name in which else x

    def values(name: str, x: Any) -> Any:
        if layout != "expanded" or name not in which:
            return x
        return np.broadcast_to(x[..., :1], np.shape(x)).copy()

    params = {
        "leak": values("leak", spread(0.7, _SHAPE[1:])),
        "gain": values("gain", spread(0.6, _SHAPE[2:])),
    }
    s = Subject(context, TURN, "none", shape=_SHAPE, state=True, values=params, dtype=dtype)
    held = torch.float64 if dtype == "float64" else torch.float32
    s.takes(
        [values(name, x) for name, x in zip(s.twin.inputs, s.inputs)],
        {name: values(name, x) for name, x in (s.state or {}).items()},
    )
    given: Dict[str, Tensor] = dict(zip(s.twin.inputs, s.xs()))
    given.update(s.start() or {})
    given.update({name: context.tensor(value, held) for name, value in params.items()})
    leaves = {name: put(name, value).detach().requires_grad_() for name, value in given.items()}
    neuron: Any = s.neuron
    for name in params:
        setattr(neuron, name, nn.Parameter(leaves[name]))
        leaves[name] = getattr(neuron, name)
    output, final, trace = neuron.run(
        *[leaves[name] for name in s.twin.inputs], state={name: leaves[name] for name in _STATES}, record=_STATES
    )
    how = f", {role} {layout}"
    s.check_outputs(output, how)
    s.check_states(final, s.bits().final, f"final state{how},", exact=True)
    s.check_states(trace, s.bits().states, f"recorded{how},", exact=True)
    results: Dict[str, Tensor] = {f"output {i}": one for i, one in enumerate(output)}
    results.update({f"final {name}": final[name] for name in _STATES})
    results.update({f"trace {name}": trace[name] for name in _STATES})
    g = {name: put(f"g {name}", s.cotangent(one)) for name, one in results.items()}
    s.cotangents = g
    of: List[Tensor] = [torch.as_tensor(one) for one in g.values()]
    backward(s.of, list(results.values()), of)
    right = s.gradients(
        [g["output 0"], g["output 1"]],
        {name: g[f"final {name}"] for name in _STATES},
        {name: g[f"trace {name}"] for name in _STATES},
    )
    for name, x in zip(s.twin.inputs, right.inputs):
        s.check("input gradient", leaves[name].grad, x, name=name + how, of=name)
    for name in _STATES:
        s.check("state gradient", leaves[name].grad, right.state[name], name=f"the initial {name}{how}", of=name)
    for name in params:
        s.check("parameter gradient", leaves[name].grad, right.params[name], name=name + how, of=name)
