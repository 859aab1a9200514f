"""A neuron under test beside its oracle, on one input."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor, nn

from spikecore.core.neuron import Neuron
from spikecore.dtypes import DTYPES, NARROW
from spikecore.testing._config import Config, piece_lengths
from spikecore.testing._context import Context
from spikecore.testing._fixed import Rewritten, fixed, on_grids
from spikecore.testing._inputs import dyadic, generator, laid_step, margin, repeated, rounded, settled
from spikecore.testing._layers import Layer, feedback, normalisation
from spikecore.testing._oracle import Array, Gradients, Oracle, Trajectory, adjoint, run, summed
from spikecore.testing.compare import Mismatch, as_array, backward, same
from spikecore.testing.conditioning import Conditioning
from spikecore.testing.custom import library_surrogate
from spikecore.testing.models import Model
from spikecore.testing.tolerances import EXACT, EXACT_STEPS, TOLERANCES


class Subject:
    """The neuron of a configuration, an input ``[T, *N]``, and the oracle's run on it.

    values: parameter values beside the configuration's; an array becomes a tensor. neuron: one that is there, with
    these parameters. options: further arguments of the neuron.
    """

    def __init__(
        self,
        context: Context,
        config: Config,
        *,
        values: Mapping[str, Any] = {},  # never written to
        neuron: Optional[Neuron] = None,
        options: Mapping[str, Any] = {},  # never written to
    ) -> None:
        self.context, self.config = context, config
        self.dtype_name, self.dtype = config.dtype, DTYPES[config.dtype]
        #: dtype of arithmetic and of states.
        self.held = torch.float64 if config.dtype == "float64" else torch.float32
        self.model: Model = config.neuron
        self._options = {**config.options, **options}
        arrays = config.values()
        if config.param_dtype:
            arrays = {name: rounded(value, DTYPES[config.param_dtype]) for name, value in arrays.items()}
        exact, word = config.exact, config.word
        self.params: Dict[str, Any] = {**(self.model.exact_params if exact else self.model.params), **arrays, **values}
        self._param_dtype = DTYPES[config.param_dtype] if config.param_dtype else self.held
        self.layer: Optional[Layer] = None
        self._conditioning: Optional[Conditioning] = None
        self.neuron = self.another(context.name) if neuron is None else neuron
        self.twin: Oracle = (
            Rewritten(self.neuron.program, config.derivative)
            if word
            else self.model.twin(config.reset, config.derivative, config.detach)
        )
        reset, shape, draw, tie = config.reset, config.shape, config.draw, config.tied
        steps = min(shape[0], self.model.exact_steps, EXACT_STEPS[config.dtype]) if exact else shape[0]
        self.shape = (steps, *shape[1:])
        again = (f"draw {draw}",) if draw else ()
        rng = generator(self.model.name, reset, config.derivative.name, self.shape, *again)
        broadcast = _broadcast(self.params, len(self.shape) - 1, config.channel_dim)
        self.state: Optional[Dict[str, Array]] = None
        if config.state:
            numbers = {s: rng.uniform(-0.5, 0.8, self.shape[1:]) for s in self.twin.rest}
            numbers = on_grids(self.neuron.program, numbers, self.held) if word else numbers
            self.state = {s: repeated(rounded(value, self.held), config.layout(s)) for s, value in numbers.items()}
        #: Parameters as they broadcast over one time step.
        self.broadcast = broadcast
        if self.drawn:
            # one value per neuron, so that the gradients of each neuron are seen
            broadcast = {name: np.broadcast_to(value, self.shape[1:]) for name, value in broadcast.items()}
            quarters, bits = draw % 2 == 0, self.exact
            self.inputs = settled(
                self.twin, broadcast, self.shape, self.dtype, rng, self.state, tie, quarters=quarters, exact=bits
            )
        elif exact:
            self.inputs = dyadic(self.twin, broadcast, self.shape, self.model.exact_levels, rng, tie)
        else:
            self.inputs = margin(self.twin, broadcast, self.shape, self.model.drive, self.dtype, rng, self.state, tie)
        #: Parameters as they lie over one time step.
        self.spread = broadcast
        self.seen: Trajectory = self.bits() if self.drawn and self.exact else self.run()
        #: Called module: the neuron, or the layer around it.
        self.module: Any = self.neuron
        if config.layered:
            self.layer = self._around()
            self.takes(self.layer.inputs)
            self.module = self.context.place(self.layer.around(self.neuron))
        self._rng = generator("cotangents", self.model.name, reset, self.shape, *again)

    def _around(self) -> Layer:
        """The layer around the neuron."""
        config = self.config
        if config.norm != "none":
            return normalisation(self, config)
        step = "single" if config.call == "single" else "multi"
        return feedback(self, config, fused=config.feedback == "fused", step=step)

    def another(self, backend: str) -> Neuron:
        """The neuron, made anew, on a backend."""
        config = self.config
        values: Dict[str, Any] = dict(self.params)
        for name, value in self.params.items():
            if isinstance(value, np.ndarray):
                tensor = torch.tensor(value, dtype=self._param_dtype)
                tensor = laid_step(tensor, config.layout(name))
                values[name] = nn.Parameter(tensor) if name in config.learnt else tensor
        neuron: Neuron = self.model.build(
            backend,
            config.reset,
            values,
            surrogate=library_surrogate(config.derivative),
            detach=config.detach,
            learn=config.learnt,
            **self._options,
        )
        wide = self.dtype_name == "float64" and self._param_dtype == torch.float64
        neuron = neuron.double() if wide else neuron
        neuron = fixed(neuron, config.word, config.rounding, self.held) if config.word else neuron
        made: Neuron = self.context.place(neuron if self.layer is None else self.layer.around(neuron))
        return made

    @property
    def drawn(self) -> bool:
        """True if the neuron is a drawn one, or in fixed point: no inputs are made for it."""
        return self.model.surrogate is not None or self.config.word > 0

    @property
    def exact(self) -> bool:
        """True if each bit of its values is that of one arithmetic."""
        return self.model.arithmetic or self.config.word > 0

    # -- what a case gives

    @property
    def of(self) -> str:
        """The neuron and the dtype, for messages."""
        layer = "" if self.layer is None else f" {self.layer.words}"
        return f"{self.neuron!r}{layer} on {self.dtype_name} input {list(self.shape)}"

    def x(self, grad: bool = False) -> Tensor:
        """The one input as a tensor."""
        (x,) = self.xs(grad)
        return x

    def xs(self, grad: bool = False) -> List[Tensor]:
        """All inputs as tensors."""
        return [self.context.tensor(x, self.dtype, grad) for x in self.inputs]

    def takes(self, inputs: Sequence[Array], state: Optional[Mapping[str, Array]] = None) -> None:
        """Other inputs, and another given state, than those drawn."""
        self.inputs = tuple(inputs)
        self.state = self.state if state is None else dict(state)
        self.seen, self._conditioning = self.run(), None

    def start(self, grad: bool = False) -> Optional[Dict[str, Tensor]]:
        """The initial state as tensors, None at rest."""
        if self.state is None:
            return None
        return {name: self.context.tensor(value, self.held, grad) for name, value in self.state.items()}

    def cotangent(self, like: Tensor) -> Tensor:
        """A random cotangent for a result."""
        return self.context.tensor(self._rng.normal(size=tuple(like.shape)), like.dtype)

    def cotangent_of(self, name: str) -> Tensor:
        """A random cotangent for a result by its name: ``output 0``, ``final v``, ``trace v``."""
        shape = self.shape[1:] if name.startswith("final") else self.shape
        return self.context.tensor(self._rng.normal(size=shape), self.dtype if name.startswith("output") else self.held)

    def random(self, shape: Sequence[int]) -> Array:
        """Random numbers between 0 and 1."""
        return self._rng.random(tuple(shape))

    def backward(self, result: Tensor, cotangent: Tensor, **options: Any) -> None:
        """Run backwards from a result; it is an error of the backend if that is connected to nothing."""
        backward(self.of, [result], [cotangent], **options)

    # -- what is right

    def run(self, dtype: Any = np.float64) -> Trajectory:
        """The oracle in a dtype."""
        layer = None if self.layer is None else self.layer.oracle
        return run(self.twin, self.inputs, self.spread, self.state, dtype, layer=layer)

    def bits(self) -> Trajectory:
        """The oracle in the dtype of the backend's arithmetic."""
        return self.run(np.float64 if self.dtype_name == "float64" else np.float32)

    def gradients(
        self,
        output: Union[Tensor, Sequence[Optional[Tensor]], None] = None,
        final: Optional[Mapping[str, Tensor]] = None,
        trace: Optional[Mapping[str, Tensor]] = None,
    ) -> Gradients:
        """The oracle's gradients for these cotangents; parameter gradients in the shapes the parameters were given."""
        found = self.gradients_of(self.seen, output, final, trace)
        return found._replace(params={name: self._shared(name, value) for name, value in found.params.items()})

    def _shared(self, name: str, value: Array) -> Array:
        """The gradient of a parameter in the shape it was given, summed over the neurons of a drawn one."""
        value = summed(value, self.shape[1:], np.shape(self.broadcast[name])) if self.drawn else value
        return np.asarray(value.reshape(np.shape(self.params.get(name, value))))

    def gradients_of(
        self,
        seen: Trajectory,
        output: Union[Tensor, Sequence[Optional[Tensor]], None],
        final: Optional[Mapping[str, Tensor]],
        trace: Optional[Mapping[str, Tensor]],
    ) -> Gradients:
        """The oracle's gradients of a call that it ran, for these cotangents."""
        outputs: Sequence[Optional[Tensor]] = [output] if output is None or isinstance(output, Tensor) else output
        return adjoint(
            seen,
            [None if one is None else as_array(one) for one in outputs],
            {name: as_array(value) for name, value in (final or {}).items()},
            {name: as_array(value) for name, value in (trace or {}).items()},
            piece_lengths(self.config.shape[0])[0] if self.config.call == "cut" else 0,
        )

    @property
    def conditioning(self) -> Conditioning:
        """Allowed deviation of the numbers of the run."""
        if self._conditioning is None:
            dtype = np.float64 if self.held == torch.float64 else np.float32
            bits = self.drawn and self.exact
            self._conditioning = Conditioning(self.twin, self.inputs, self.broadcast, self.state, dtype, bits)
        return self._conditioning

    def conditioned(self, *cotangents: Any) -> Optional[Callable[[], Gradients]]:
        """Function that gives the allowed deviation of gradients, for the cotangents of :meth:`gradients`; None with a
        layer, whose sums the oracle does not move.
        """
        if self.layer is not None:
            return None

        @lru_cache(maxsize=None)
        def limits() -> Gradients:
            of = self.conditioning.gradients(lambda seen: self.gradients_of(seen, *cotangents))
            shapes = {name: np.shape(self.params.get(name, 0.0)) for name in of.params}
            return of._replace(params={name: value.reshape(shapes[name]) for name, value in of.params.items()})

        return limits

    # -- checks

    def check_outputs(self, actual: Any, what: str = "", exact: bool = False) -> None:
        """The outputs are the oracle's: spikes to the bit, potentials within tolerance or, if ``exact``, to the bit.

        ``what`` says of which call, where there are several.
        """
        given = actual if isinstance(actual, tuple) else (actual,)
        if len(given) != len(self.model.outputs):
            raise Mismatch(f"{self.of} gives {len(given)} outputs, expected {len(self.model.outputs)}")
        for i, (output, quantity) in enumerate(zip(given, self.model.outputs)):
            name = quantity + (f" {i}" if quantity == "output" and i else "") + what
            if output.dtype != self.dtype:
                raise Mismatch(f"{name} of {self.of} has dtype {output.dtype}, expected {self.dtype}")
            expected, tolerance = self.seen.outputs[i], TOLERANCES[self.dtype_name, quantity]
            if exact and quantity == "output":
                expected, tolerance = rounded(self.bits().outputs[i], self.dtype), EXACT
            same(
                name,
                self.of,
                as_array(output),
                expected,
                tolerance,
                tested=self.seen.tested,
                strict=self.twin.strict,
                conditioning=self._unless_fixed(exact, partial(self._of_output, i)),
            )

    def check_states(self, actual: Mapping[str, Tensor], expected: Mapping[str, Array], what: str, exact: bool) -> None:
        """States are the oracle's, and have the dtype of arithmetic."""
        for name, value in actual.items():
            if value.dtype != self.held:
                raise Mismatch(f"{what} {name} of {self.of} has dtype {value.dtype}, expected {self.held}")
            tolerance = EXACT if exact else TOLERANCES[self.dtype_name, "potential"]
            same(
                f"{what} {name}",
                self.of,
                as_array(value),
                expected[name],
                tolerance,
                axes="t, n" if value.ndim == len(self.shape) else "n",
                conditioning=self._unless_fixed(exact, partial(self._of_state, name, value.ndim == len(self.shape))),
            )

    def _unless_fixed(self, exact: bool, limits: Callable[[], Array]) -> Optional[Callable[[], Array]]:
        fixed = exact or self.config.exact or self.layer is not None or not self.shape[0]
        return None if fixed else limits

    def _of_output(self, number: int) -> Array:
        return self.conditioning.outputs(number)

    def _of_state(self, name: str, recorded: bool) -> Array:
        of = self.conditioning.states(name)
        return of if recorded else of[-1]

    def check(
        self,
        quantity: str,
        actual: Any,
        expected: Array,
        *,
        name: str = "",
        stored: str = "",
        terms: Optional[Array] = None,
        conditioning: Optional[Callable[[], Array]] = None,
    ) -> None:
        """A quantity of the table of tolerances is the oracle's.

        stored: the dtype of a parameter and its gradient. terms: the size of what was summed, where rounding counts.
        conditioning: what :func:`same` asks.
        """
        what = f"{quantity}{f' of {name}' if name else ''}"
        if actual is None:
            if quantity == "state gradient" and not np.any(expected):
                return  # nothing depends on this state: a gradient that is not there is 0
            raise Mismatch(f"{what} of {self.of}: there is none; the result is not connected to it")
        stored = stored if stored in NARROW or self.dtype_name == "float64" else ""
        tolerance = TOLERANCES[stored or self.dtype_name, "input gradient" if stored else quantity]
        axes = "t, n" if quantity in ("input gradient", "output") else "n"
        value = as_array(actual)
        if actual.dtype == torch.float16 and value.shape == expected.shape:
            value, expected = as_half(value, expected, tolerance.rtol)
        if terms is not None and value.shape == expected.shape:
            value = np.where(np.abs(value - expected) <= tolerance.rtol * terms, expected, value)
        same(what, self.of, value, expected, tolerance, axes=axes, conditioning=conditioning)


def subject(
    context: Context,
    model: Union[str, Model] = "lif",
    reset: str = "hard",
    *,
    values: Mapping[str, Any] = {},  # never written to
    neuron: Optional[Neuron] = None,
    options: Mapping[str, Any] = {},  # never written to
    **factors: Any,
) -> Subject:
    """The subject of a configuration that is given by its factors."""
    return Subject(context, Config(model, reset, **factors), values=values, neuron=neuron, options=options)


def as_half(actual: Array, expected: Array, rtol: float) -> Tuple[Array, Array]:
    """Numbers as float16 holds them: infinity where they are surely beyond its range, either near its end."""
    size, end = np.abs(expected), 65520.0
    beyond = size * (1 - rtol) >= end
    near = ~beyond & (size * (1 + rtol) > 65504.0) & np.isinf(actual)
    return np.where(near, expected, actual), np.where(beyond, np.copysign(np.inf, expected), expected)


def _broadcast(params: Mapping[str, Any], dims: int, channel_dim: int) -> Dict[str, Any]:
    """Parameters as they lie over one time step: a vector along the channels."""
    spread: Dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, np.ndarray) and value.ndim == 1 and dims > 1:
            view: Tuple[int, ...] = tuple(len(value) if i == channel_dim % dims else 1 for i in range(dims))
            value = value.reshape(view)
        spread[name] = value
    return spread
