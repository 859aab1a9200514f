"""Oracle of the layers around a neuron, in NumPy.

Feedback through a matrix: ``u[t] = x[t] + y[t-1] W' + b``. Batch normalisation over all axes but that of
channels: ``u = (x - mean) / sqrt(variance + eps) w + b``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from spikecore.testing._oracle.rules import Array

#: Name of the last output in the state.
FEEDBACK = "feedback"


class Matrix(NamedTuple):
    """Matrix of a feedback."""

    weight: Array
    bias: Optional[Array] = None
    #: Rounding of 16-bit arithmetic: of the feedback, and of its sum with the input.
    rounded: Callable[[Array], Array] = np.asarray
    #: By what a parametrisation multiplies the weight that learns.
    mask: Any = 1.0
    #: True if the fed-back output is a constant.
    detach: bool = False
    #: Numbers of the inputs that its rows are added to, in parts, and of the output that comes back.
    into: Tuple[int, ...] = (0,)
    output: int = 0
    #: For each neuron how many steps later its output comes back, ``[H]``; None for none.
    delay: Any = None

    def arriving(self, y: Array, t: int) -> Array:
        """The output that comes back at step ``t``. ``y`` begins with the output before the first step."""
        if self.delay is None:
            return np.asarray(y[t])
        return _chosen(y, t - self.delay)

    def departing(self, sent: Sequence[Array], t: int) -> Array:
        """Cotangent of the output of step ``t - 1`` from the step at which it comes back. ``sent`` begins at step t."""
        return sent[0] if self.delay is None else _chosen(np.stack(sent), self.delay)

    def past(self, y: Array, longest: int) -> Array:
        """The outputs before the last one, of those of all steps behind that before the first; 0 before these."""
        rows = y[max(0, len(y) - 1 - longest) : -1]
        padded = np.concatenate([np.zeros((longest - len(rows), *y.shape[1:])), rows])
        return np.moveaxis(padded, 0, -1)

    def back(self, y: Array) -> Array:
        """Feedback of an output."""
        return self.rounded(y @ self.weight.T + (0.0 if self.bias is None else self.bias))

    def gradients(self, g: Array, y: Array) -> Dict[str, Array]:
        """Those of weight and bias at a step: for the cotangent of what the neuron got, and the output before it."""
        rows, before = (value.reshape(-1, value.shape[-1]) for value in (g, y))
        return {"weight": rows.T @ before * self.mask, "bias": rows.sum(0)}


class Matrices(NamedTuple):
    """All matrices of a layer. What comes back to one input adds up."""

    each: Tuple[Matrix, ...]

    @property
    def names(self) -> Dict[int, str]:
        """Output that comes back -> its name in the state."""
        return names_of_outputs([matrix.output for matrix in self.each])

    def drives(self, inputs: Sequence[Array], fed: Mapping[int, Array], t: int, sign: float = 1.0) -> List[Array]:
        """Inputs with what comes back at step ``t``. ``fed``: outputs from that before the first step on."""
        drives = [*inputs]
        for matrix in self.each:
            back = matrix.back(matrix.arriving(fed[matrix.output], t))
            for number, part in zip(matrix.into, np.split(back, len(matrix.into), -1)):
                drives[number] = matrix.rounded(drives[number] + sign * part)
        return drives

    def sent(self, to_inputs: Sequence[Array]) -> Dict[int, Array]:
        """For each output the cotangent that comes from those of the inputs of a step."""
        sent: Dict[int, Array] = {}
        for matrix in self.each:
            rows = np.concatenate([to_inputs[number] for number in matrix.into], -1) @ matrix.weight
            sent[matrix.output] = sent.get(matrix.output, 0.0) + (0.0 if matrix.detach else 1.0) * rows
        return sent

    def gradients(self, to_inputs: Sequence[Array], fed: Mapping[int, Array], t: int) -> Dict[str, Array]:
        """Those of weights and biases at a step; of several with their number in front."""
        named: Dict[str, Array] = {}
        for number, matrix in enumerate(self.each):
            rows = np.concatenate([to_inputs[k] for k in matrix.into], -1)
            front = f"{number}." if len(self.each) > 1 else ""
            for name, value in matrix.gradients(rows, matrix.arriving(fed[matrix.output], t)).items():
                named[front + name] = value
        return named


def names_of_outputs(outputs: Sequence[int]) -> Dict[int, str]:
    """Numbers of outputs that come back -> their names in the state."""
    numbers = sorted({*outputs})
    return {k: FEEDBACK if len(numbers) == 1 else f"{FEEDBACK}.{k}" for k in numbers}


class Affine(NamedTuple):
    """A batch normalisation of one input: weight and bias, ``[C]`` each."""

    weight: Array
    bias: Array
    eps: float = 1e-5
    #: The axis of the channels.
    axis: int = 2
    #: Mean and variance that are given, as in eval mode, in the place of those of the input.
    statistics: Optional[Tuple[Array, Array]] = None

    def normal(self, x: Array) -> Tuple[Array, Array]:
        """The input less mean over the standard deviation, and one over that."""
        over = self.over(x)
        mean, variance = self.statistics or (x.mean(over), x.var(over))
        rstd = self.wide(1.0 / np.sqrt(variance + self.eps), x)
        return (x - self.wide(mean, x)) * rstd, rstd

    def forward(self, x: Array) -> Array:
        """Normalised output."""
        return self.normal(x)[0] * self.wide(self.weight, x) + self.wide(self.bias, x)

    def back(self, x: Array, g: Array) -> Tuple[Array, Array, Array]:
        """Gradients of the input, of weight and of bias. Mean and variance are functions of the input, unless they are
        given.
        """
        hat, rstd = self.normal(x)
        over = self.over(g)
        bias, weight = g.sum(over), (g * hat).sum(over)
        n = g.size / len(bias)
        inner = g if self.statistics else g - self.wide(bias / n, g) - hat * self.wide(weight / n, g)
        return inner * self.wide(self.weight, g) * rstd, weight, bias

    def over(self, x: Array) -> Tuple[int, ...]:
        """All axes but that of channels."""
        return tuple(d for d in range(x.ndim) if d != self.axis % x.ndim)

    def wide(self, value: Array, x: Array) -> Array:
        """A value for each channel, as it broadcasts over ``x``."""
        return value.reshape([-1 if d == self.axis % x.ndim else 1 for d in range(x.ndim)])


class Norm(NamedTuple):
    """A layer in front of the neuron that normalises its input, and the shortcut if it has two normalisations."""

    norms: Sequence[Affine]
    #: Place where a second input is added: ``before`` or ``after`` the neuron, or ``none``.
    shortcut: str = "none"

    def forward(self, inputs: Sequence[Array]) -> List[Array]:
        """Inputs of the neuron."""
        normal = [norm.forward(x) for norm, x in zip(self.norms, inputs)]
        normal += inputs[len(normal) :]
        return [normal[0] + normal[1] if self.shortcut == "before" else normal[0]]

    def back(
        self, inputs: Sequence[Array], g: Array, g_out: Optional[Array]
    ) -> Tuple[Tuple[Array, ...], Dict[str, Array]]:
        """Gradients of the inputs, and of weights and biases, for the cotangents of what the neuron gets, and of the
        output.
        """
        of_inputs, of_params = [], {}
        for prefix, norm, x in zip(("", "skip_"), self.norms, inputs):
            to_x, of_params[f"{prefix}weight"], of_params[f"{prefix}bias"] = norm.back(x, g)
            of_inputs.append(to_x)
        if len(of_inputs) < len(inputs):
            behind = np.zeros_like(g) if g_out is None else g_out
            of_inputs.append(g if self.shortcut == "before" else behind)
        return tuple(of_inputs), of_params


def _chosen(rows: Array, numbers: Array) -> Array:
    """For each neuron its number of the row of this number; 0 where there is no such row."""
    there = (numbers >= 0) & (numbers < len(rows))
    index = np.broadcast_to(np.clip(numbers, 0, len(rows) - 1), rows.shape[1:])
    return np.asarray(np.take_along_axis(rows, index[None], 0)[0] * there)
