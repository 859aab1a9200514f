"""Layers around the neuron of a configuration, each beside its oracle, and a network that trains it.

The input of the neuron is drawn as in any other case, with a margin at each threshold. The input of the layer is
computed from it. The layers are a matrix of feedback and batch normalisation.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.dtypes import DTYPES, NARROW
from spikecore.layers import NormNeuron
from spikecore.testing._config import Config
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator, repeated, rounded
from spikecore.testing._oracle import Affine, Array, Matrices, Matrix, Norm
from spikecore.testing.compare import Mismatch

if TYPE_CHECKING:
    from spikecore.testing._subject import Subject


class Layer(NamedTuple):
    """A layer: its oracle, its inputs, and what puts it around a neuron."""

    oracle: Union[Matrices, Norm]
    inputs: List[Array]
    around: Callable[[Any], Any]
    #: Description for messages.
    words: str


def feedback(s: Subject, config: Config, **options: Any) -> Layer:
    """``Recurrent``. ``weights``: ``learnt``, ``frozen``, ``absent`` (no bias) or ``masked`` by a parametrisation."""
    width, weights, longest = s.shape[-1], config.weights, config.longest
    rng = generator("recurrent", s.model.name, s.shape)
    narrow = partial(rounded, dtype=s.dtype) if s.dtype_name in NARROW else np.asarray
    # the first neurons have no delay, the longest one, and one of more steps than there are
    delay = np.arange(width) * longest % (longest + 1) if longest else None
    made: List[Tuple[Matrix, Any]] = []
    for output, into, constant in config.ends:
        rows = len(into) * width
        # multiples of 1/8, of which sums with spikes are exact in every order and in every dtype
        weight = np.rint(rng.normal(size=(rows, width)) * 8.0 / np.sqrt(min(width, 8))) / 8.0
        bias = None if weights == "absent" else np.rint(rng.normal(size=rows) * 4.0) / 8.0
        linear: Any = nn.Linear(width, rows, bias=bias is not None).to(s.dtype)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weight))
            if bias is not None:
                linear.bias.copy_(torch.tensor(bias))
        mask: Any = (np.arange(rows * width) % 2).reshape(rows, width) if weights == "masked" else 1.0
        if weights == "masked":
            nn.utils.parametrize.register_parametrization(linear, "weight", _Mask())
        linear.requires_grad_(weights != "frozen")
        matrix = Matrix(weight * mask, bias, narrow, mask, constant, into, output, delay)
        if longest:
            linear = sc.Delay(linear, longest, delay=torch.tensor(delay).to(torch.float32), learn=())
        made.append((matrix, linear))
    matrices = Matrices(tuple([matrix for matrix, _ in made]))
    first = dict.fromkeys(matrices.names, np.zeros(s.shape[1:]))
    if s.state is not None:
        for output, name in matrices.names.items():
            first[output] = s.state[name] = rng.integers(0, 2, s.shape[1:]).astype(float)
    fed = {output: np.concatenate([start[None], s.seen.outputs[output]]) for output, start in first.items()}
    steps = [matrices.drives([x[t] for x in s.inputs], fed, t, sign=-1.0) for t in range(s.shape[0])]
    inputs = [rounded(np.stack(at), s.dtype) for at in zip(*steps)] if steps else [*s.inputs]
    if config.alone:
        inputs[-1] = np.zeros_like(inputs[-1])
        options["given"] = config.inputs
    several = len(s.inputs) > 1, len(s.seen.outputs) > 1

    def around(neuron: Any) -> Any:
        ways: List[Any] = []
        for matrix, linear in made:
            names = tuple([s.twin.inputs[k] for k in matrix.into])
            ends: Any = {"into": names if len(names) > 1 else names[0]} if several[0] else {}
            ends["output"] = matrix.output if several[1] else None
            ways.append((copy.deepcopy(linear), {**ends, "detach": matrix.detach}))
        if len(ways) == 1:
            return sc.Recurrent(neuron, ways[0][0], **ways[0][1], **options)
        return sc.Recurrent(neuron, [sc.layers.Feedback(linear, **ends) for linear, ends in ways], **options)

    return Layer(matrices, inputs, around, "with feedback")


class _Mask(nn.Module):
    """Every other weight is 0."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with its mask."""
        keep = torch.arange(weight.numel(), device=weight.device).view(weight.shape) % 2
        return weight * keep.to(weight.dtype)


def normalisation(s: Subject, config: Config) -> Layer:
    """``NormNeuron``."""
    mode, weights, shortcut, channels = config.norm, config.weights, config.shortcut, config.channels
    # quarters are exact in every dtype
    skip = np.random.default_rng(5).integers(-2, 3, s.inputs[0].shape) / 4.0
    skip = repeated(skip, "expanded-steps") if config.repeat else skip
    y = s.inputs[0] - (skip if shortcut in ("before", "normalised") else 0.0)
    made = [_norm(s, value, mode, weights, channels) for value in ((y, skip) if shortcut == "normalised" else (y,))]
    where = {"none": None, "normalised": "before"}.get(shortcut, shortcut)
    options: Any = {"shortcut": where, "channel_dim": -1 if channels == "last" else 1, "fused": not config.apart}

    def around(neuron: Any) -> Any:
        norm, *others = copy.deepcopy([module for _, _, module in made])
        layer = NormNeuron(norm, neuron, shortcut_norm=others[0] if others else None, **options)
        return layer.train(mode == "train")

    inputs = [x for _, x, _ in made]
    inputs += [skip] if len(inputs) == 1 and where is not None else []
    return Layer(Norm([oracle for oracle, _, _ in made], where or "none"), inputs, around, "behind batch normalisation")


def _norm(s: Subject, y: Array, mode: str, weights: str, channels: str) -> Tuple[Affine, Array, Any]:
    """A batch normalisation that gives ``y``, what it gives that of, and the module."""
    # 16-bit numbers times a power of two are 16-bit numbers
    scale, shift = (0.5, 0.0) if s.dtype_name in NARROW else (0.5, 3.0)
    axis = -1 if channels == "last" else 2
    x, count = rounded(y * scale + shift, s.dtype), y.shape[axis]
    kind: Any = {5: nn.BatchNorm2d, 6: nn.BatchNorm3d}.get(y.ndim if axis == 2 else 0, nn.BatchNorm1d)
    untracked: Any = {"track_running_stats": False, "eps": 0.125} if weights == "untracked" else {}
    made = kind(count, affine=weights != "absent", **untracked)
    made = made.double() if s.dtype_name == "float64" else made
    norm = Affine(np.ones(count), np.zeros(count), made.eps, axis)
    axes = norm.over(y)
    if weights != "absent":  # the layer makes y of x
        norm = norm._replace(weight=np.sqrt(y.var(axes) + made.eps / scale**2), bias=y.mean(axes))
        with torch.no_grad():
            made.weight.copy_(torch.tensor(norm.weight))
            made.bias.copy_(torch.tensor(norm.bias))
    if mode == "eval" and not untracked:
        norm = norm._replace(statistics=(x.mean(axes), x.var(axes)))
        made.running_mean.copy_(torch.tensor(x.mean(axes)))
        made.running_var.copy_(torch.tensor(x.var(axes)))
    made.train(mode == "train").requires_grad_(weights != "frozen")
    return norm, x, made


def multiplies(context: Context, dtype: str) -> bool:
    """True if torch multiplies matrices of this dtype on the device; torch 2.0 does not in float16 on a CPU."""
    number = context.tensor([[1.0]], DTYPES[dtype])
    try:
        return bool((number @ number).item() == 1.0)
    except RuntimeError:
        return False


def near(name: str, actual: Array, expected: Array, of: str) -> None:
    """Within what products in 16 bits may make of it, in the norm."""
    away = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    if not away < 0.03:
        raise Mismatch(f"{name} of {of}, with products in 16 bits, is {away:.2g} off in the norm")


# -- a network

#: The rate at which learnt parameters are changed; a power of two, by which nothing is rounded.
RATE = 1024.0

Results = Callable[[Mapping[str, Tensor]], Dict[str, Tensor]]
Named = Dict[str, Tensor]


class Network(nn.Module):
    """``forward(*inputs, *states)`` gives the results of a call by name.

    A training step returns no gradients, it changes weights. So every input and state whose gradient is wanted has a
    weight of zeros added to it, and plain gradient descent leaves the negative gradient there. For learnt parameters,
    which are not zero, the rate is large, so that the update is not lost in the last digits of the value.
    """

    def __init__(self, neuron: Any, leaves: Named, results: Results) -> None:
        super().__init__()
        self.neuron, self.names, self.results = neuron, list(leaves), results
        self.wanted = [value.requires_grad for value in leaves.values()]
        self.batch = tuple(value.detach() for value in leaves.values())
        self.added = nn.ParameterList(
            [
                nn.Parameter(torch.zeros(value.shape, dtype=value.dtype, device=value.device), requires_grad=asked)
                for value, asked in zip(self.batch, self.wanted)
            ]
        )

    def forward(self, *tensors: Tensor) -> Named:
        """All results."""
        values = [x + zero if asked else x for x, zero, asked in zip(tensors, self.added, self.wanted)]
        return self.results(dict(zip(self.names, values)))

    def weights(self) -> Dict[str, Tuple[nn.Parameter, float]]:
        """Name of a gradient -> the weight that gets it, and its rate."""
        found = {name: (zero, 1.0) for name, zero in zip(self.names, self.added) if zero.requires_grad}
        learnt = {name: (value, RATE) for name, value in self.neuron.named_parameters() if value.requires_grad}
        return {**found, **learnt}


def in_network(
    backend: str, make: Callable[[str], Any], leaves: Named, results: Callable[[Any], Results], cotangents: Named
) -> Iterator[Tuple[str, Named, Named]]:
    """In which model, its results, and its gradients by the names of leaves; nothing for a call without steps.

    make: a neuron on a backend. results: what calls it. Where no weight is reached by a cotangent there is nothing to
    train, and no training step is made.
    """
    if not len(next(iter(leaves.values()))):
        return

    def network(name: str) -> Network:
        neuron = make(name)
        return Network(neuron, leaves, results(neuron))

    first = network(backend)
    yield "inference_model", sc.inference_model(first)(first.batch), {}
    plain = network("torch")
    reached = plain(*plain.batch)
    if not plain.weights() or not any(reached[name].requires_grad for name in cotangents):
        return
    second = network(backend)
    weights = second.weights()
    before = {name: weight.detach().cpu().clone() for name, (weight, _) in weights.items()}
    names = list(cotangents)

    def loss(outputs: Named, given: Sequence[Tensor]) -> Tensor:
        wide = torch.float64 if any(value.dtype == torch.float64 for value in outputs.values()) else torch.float32
        return torch.stack([(outputs[name].to(wide) * g.to(wide)).sum() for name, g in zip(names, given)]).sum()

    groups: List[Dict[str, Any]] = [{"params": [weight], "lr": rate} for weight, rate in weights.values()]
    step = sc.training_model(second, loss, torch.optim.SGD(groups, lr=RATE), backend=backend)
    outputs, _ = step(second.batch, tuple(cotangents.values()))
    changes = {name: (before[name] - weight.detach().cpu()) / rate for name, (weight, rate) in weights.items()}
    yield "training_model", outputs, changes
