"""The traces of weights: what a weight of earlier steps still has to say, and how it moves over a chunk.

A connection is a layer with weights ``z = F(u; W)`` and the neuron that ``z`` reaches through space. For a chunk that
begins with the states ``s0`` and ends with ``s1``, the adjoint of the neuron gives, for each state k,

    M[k, l] = ds1_k / ds0_l        c_k[t] = ds1_k / dx[t]        g_k = dE / ds0_k  (E: the chunk's loss)

- :class:`Full`, for ``z = W u + b``, carries ``E_k = ds0_k / dW``, a number for each sample and weight::

      dE/dW += sum_k g_k E_k                        what the chunk owes to earlier steps
      E_k'   = sum_l M[k, l] E_l + sum_t c_k[t] u[t]^T

- :class:`Outer` carries ``F_k = ds0_k / db``, a number for each neuron, and for each layer a mean input ``m``, in which
  an input has the weight of what it added to F, as far as that is left::

      E_k is about F_k m^T      F_k' = sum_l M[k, l] F_l + sum_t c_k[t]
      m' = (p m + sum_t q[t] u[t]) / (p + sum_t q[t])      p = |M F|, q[t] = |c[t]|, sums over states and neurons

- :class:`Filtered` has the leak of the neuron for its transition, so that the input alone has a trace: ``û[t]``, and
  ``w[t]``, the same filter of 1 (:func:`~spikecore_online._rules.leak`)::

      dE/dW += sum_t F'(û[t]; W)^T dE/dz[t] + sum_t (w[t] - 1) F'(0; W)^T dE/dz[t]

A layer is affine in its input, so that a sum of its derivatives by W at several inputs is that at a sum of these. So
the last two need no formula of a layer, and a bias, whose input is 1, has its trace with the rest.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Unsupported
from spikecore.context import no_autocast
from spikecore.core.call import run_by
from spikecore.dtypes import compute_dtype
from spikecore.graph import CONVOLUTIONS, NORMS
from spikecore.lang import Program
from spikecore_online._chunk import (
    Gradients,
    LayerCall,
    NeuronCall,
    accumulate,
    at_first,
    gradients,
    learn,
    learnt,
)
from spikecore_online._rules import Leak, leak

#: All that a step carries from chunk to chunk beside the states, by tuples: the neuron, what of it, and names of that.
#: A name of a module may have any character, so that none can part it from the next.
Traces = Dict[Tuple[str, ...], Tensor]
#: Of each state, the derivatives of its final value by the inputs, and by the states before.
Transition = Mapping[str, Tuple[Gradients, Mapping[str, Tensor]]]

#: The layers whose weights are synapses.
SYNAPSES = (nn.Linear, *CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
#: Layers that are affine in their input, and linear in their weights.
AFFINE = (*SYNAPSES, *NORMS, nn.SyncBatchNorm)


class Connection(NamedTuple):
    """A layer with weights, and the neuron that its output reaches."""

    name: str
    layer: nn.Module
    #: Input of the layer.
    inputs: Tensor
    neuron: NeuronCall
    #: The call of the layer; None for what comes back in ``Recurrent``, which is added to an input of the neuron.
    call: Optional[LayerCall]

    @property
    def steps(self) -> int:
        """The number of steps of the chunk."""
        return self.neuron.inputs[0].shape[0]

    @property
    def is_direct(self) -> bool:
        """True if the output of the layer is the input of the neuron itself."""
        return self.call is not None and len(self.neuron.inputs) == 1 and self.neuron.inputs[0] is self.call.output

    def cotangent(self, inputs: Gradients) -> Optional[Tensor]:
        """The gradient of the layer's output for those of the neuron's inputs."""
        if self.call is None:
            return inputs[self.neuron.ends[0]]
        return inputs[0] if self.is_direct else gradients(self.neuron.inputs, [self.call.output], inputs)[0]

    @property
    def is_folded(self) -> bool:
        """True if the layer reads ``[C * B, ...]``."""
        steps, batch = self.neuron.inputs[0].shape[:2]
        return self.inputs.shape[:2] != (steps, batch) and len(self.inputs) == steps * batch

    def over_time(self, value: Tensor) -> Tensor:
        """An input or an output of the layer as ``[C, B, ...]``; Unsupported for one without time first."""
        if self.is_folded:
            return value.unflatten(0, (self.steps, -1))  # type: ignore[no-any-return]  # a tensor
        if len(self.inputs) != self.steps:
            raise self.refused()
        return value

    def as_read(self, value: Tensor) -> Tensor:
        """Inputs of some steps, ``[C, B, ...]``, as the layer takes them."""
        return value.flatten(0, 1) if self.is_folded else value

    def refused(self) -> Unsupported:
        """The error for an input of the layer that is not of steps and samples."""
        return Unsupported(
            f"{self.name!r} reads an input of shape {list(self.inputs.shape)}, which has not time and batch first, as "
            f"the input of {self.neuron.name!r} has; take rule='sltt'"
        )

    def learn(self, inputs: Tensor, output: Tensor, counts: Optional[Tensor] = None) -> None:
        """Add the gradient of the weights for inputs and cotangents of the output, ``[C, B, ...]`` each.

        ``counts``: how often the input of a bias, which is 1, counts at each step, ``[C, 1]``; None for once.
        """
        if isinstance(self.layer, nn.Linear):
            self._learn_linear(inputs, output, counts)
            return
        weights = [p for p in self.layer.parameters() if p.requires_grad]
        pairs = [(inputs, output)]
        if counts is not None:
            more = (counts - 1.0).view(-1, *[1] * (output.ndim - 1)) * output
            pairs.append((torch.zeros_like(inputs[:1]), more.sum(0, keepdim=True)))
        for u, cotangent in pairs:
            with torch.enable_grad():
                z = self.layer(self.as_read(u))
            for weight, gradient in zip(weights, gradients([z], weights, [cotangent.reshape(z.shape)])):
                if gradient is not None:
                    accumulate(weight, gradient)

    def _learn_linear(self, inputs: Tensor, output: Tensor, counts: Optional[Tensor]) -> None:
        """The same of ``nn.Linear``, without the call of it that backward would need."""
        rows, weights = output.reshape(-1, output.shape[-1]), learnt(self.layer)
        if "weight" in weights:
            with no_autocast(rows.device.type):
                learn(self.layer, "weight", rows.t() @ inputs.reshape(len(rows), -1).to(rows.dtype), True)
        if "bias" in weights:
            steps = output.reshape(len(output), -1, output.shape[-1]).sum(1)
            learn(self.layer, "bias", (steps if counts is None else steps * counts).sum(0), True)


#: Connections by name -> the shapes that they were checked with.
Checked = Dict[str, Tuple[torch.Size, torch.Size]]


def check_places(of: Connection, checked: Checked, each: bool) -> None:
    """Refuse a connection in which an input of the neuron depends on outputs of the layer at other places than its own:
    of another step or sample, with ``each`` of another element, too.

    A Jacobian J mixes no places where ``J^T (s g)`` is ``s J^T g`` for any g and any number s of each place.
    """
    if of.call is None or of.is_direct:
        return
    z, inputs = of.call.output, of.neuron.inputs
    shapes, (steps, batch) = (z.shape, inputs[0].shape), inputs[0].shape[:2]
    if checked.get(of.name) == shapes:
        return
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) + 0.5).to(z.device, z.dtype)

    fits = not each or all(x.numel() == z.numel() for x in inputs)
    if fits and z.numel():
        scale = drawn(steps, batch, z.numel() // (steps * batch) if each else 1)
        cotangents = [drawn(*x.shape).to(x.dtype) for x in inputs]
        scaled = of.cotangent([(g.reshape(steps, batch, -1) * scale).reshape(g.shape).to(g.dtype) for g in cotangents])
        plain = of.cotangent(cotangents)
        fits = scaled is not None and plain is not None
        if scaled is not None and plain is not None:
            want = (plain.reshape(steps, batch, -1) * scale).reshape(z.shape)
            fits = torch.allclose(scaled, want.to(scaled.dtype), rtol=1e-2, atol=1e-2 * float(want.abs().max()))
    if not fits:
        raise Unsupported(
            f"{of.name!r} reaches {of.neuron.name!r} through more than element-wise operations, and a trace for each "
            "weight needs one output of the layer for each neuron; take rule='pp_prop', 'ottt' or 'sltt'"
            if each
            else f"{of.name!r} reaches {of.neuron.name!r} across steps or samples, or in another order of them, and a "
            "trace is of one sample over time; keep [T, B, ...] between them, or take rule='sltt'"
        )
    checked[of.name] = shapes


class Full:
    """A number for each sample, neuron and weight."""

    kinds = (nn.Linear,)
    takes = "nn.Linear"

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self._checked: Checked = {}

    def owe(self, of: Connection, starts: Mapping[str, Tensor]) -> None:
        """Add what the chunk owes to earlier steps; ``starts``: the gradients of the states before."""
        weights = learnt(of.layer)
        for state, g in starts.items():
            trace = self.traces.get(key_of(of, "weight", state))
            if "weight" in weights and trace is not None:
                rows = g.reshape(trace.shape[:2])
                learn(of.layer, "weight", _summed(rows, trace), True)
            bias = self.traces.get(key_of(of, "bias", state))
            if "bias" in weights and bias is not None:
                learn(of.layer, "bias", (g.reshape(bias.shape) * bias).sum(0), True)

    def advance(self, connections: Sequence[Connection], transition: Transition) -> None:
        """Move the traces over the chunk."""
        for of in connections:
            check_places(of, self._checked, each=True)
            weights = learnt(of.layer)
            inputs = of.inputs.reshape(of.steps, -1, of.inputs.shape[-1])  # [C, R, I]
            rows = inputs.transpose(0, 1).to(compute_dtype(inputs.dtype))
            cotangents = {state: of.cotangent(by_input) for state, (by_input, _) in transition.items()}
            for name in weights:
                self._advance(of, name, rows, cotangents, transition)

    def _advance(
        self,
        of: Connection,
        name: str,
        rows: Tensor,
        cotangents: Mapping[str, Optional[Tensor]],
        transition: Transition,
    ) -> None:
        before = {state: self.traces.get(key_of(of, name, state)) for state in transition}
        in_place = all(set(by_state) <= {state} for state, (_, by_state) in transition.items())
        for state, (_, by_state) in transition.items():
            trace: Optional[Tensor] = None
            for other, M in by_state.items():
                old = before.get(other)  # none of a state whose next value is a number
                if old is not None:
                    factor = M.reshape(old.shape[:2] + (1,) * (old.ndim - 2))
                    if trace is None:
                        trace = old.mul_(factor) if in_place else old * factor
                    else:
                        trace.addcmul_(old, factor)
            c = cotangents[state]
            if c is not None:
                # [R, C, J]: for each sample the derivatives by the inputs of the steps
                c = c.reshape(of.steps, len(rows), -1).transpose(0, 1).to(rows.dtype)
                trace = _added(trace, c, rows) if name == "weight" else _plus(trace, c.sum(1))
            key = key_of(of, name, state)
            if trace is None:
                self.traces.pop(key, None)
            else:
                self.traces[key] = trace


def _added(trace: Optional[Tensor], c: Tensor, u: Tensor) -> Tensor:
    """``trace[r, j, i] + sum_t c[r, t, j] u[r, t, i]``."""
    with no_autocast(u.device.type):
        if trace is None:
            return torch.bmm(c.transpose(1, 2), u)
        if c.shape[1] == 1:  # an outer product is quicker by elements
            return trace.addcmul_(c.transpose(1, 2), u)
        return trace.baddbmm_(c.transpose(1, 2), u)


def _plus(trace: Optional[Tensor], value: Tensor) -> Tensor:
    return value if trace is None else trace.add_(value)


def _summed(g: Tensor, trace: Tensor) -> Tensor:
    """``sum_r g[r, j] trace[r, j, i]``."""
    with no_autocast(trace.device.type):
        return torch.bmm(g.to(trace.dtype).t().unsqueeze(1), trace.transpose(0, 1)).squeeze(1)


class Outer:
    """A number for each neuron, and a mean input for each layer."""

    kinds = AFFINE
    takes = "linear layers and convolutions"

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self._checked: Checked = {}

    def owe(self, of: Connection, starts: Mapping[str, Tensor]) -> None:
        """Add the gradient that the chunk owes to earlier steps, as :meth:`Full.owe`."""
        mean, neuron = self.traces.get(key_of(of, "mean")), of.neuron
        if mean is None:
            return
        inputs = [self._owed(neuron, k, starts) for k in range(len(neuron.inputs))]
        if of.is_direct or of.call is None:
            output = of.cotangent([g if g is None else g.unsqueeze(0) for g in inputs])
        else:  # through what lies between, at the first step of the chunk
            first = [g if g is None else at_first(g, x) for g, x in zip(inputs, neuron.inputs)]
            output = of.cotangent(first)
            output = output if output is None else of.over_time(output)[:1]
        if output is not None:
            of.learn(mean.unsqueeze(0).to(of.inputs.dtype), output.to(of.inputs.dtype))

    def _owed(self, neuron: NeuronCall, k: int, starts: Mapping[str, Tensor]) -> Optional[Tensor]:
        """Gradient that the chunk owes to input k of the neuron, as if it had been the same at all steps before."""
        total: Optional[Tensor] = None
        for state, g in starts.items():
            shift = self.traces.get((neuron.name, "shift", str(k), state))
            if shift is not None:
                total = g * shift if total is None else total.addcmul_(g, shift)
        return total

    def advance(self, connections: Sequence[Connection], transition: Transition) -> None:
        """Move the traces over the chunk, as :meth:`Full.advance`."""
        if not connections:
            return
        neuron = connections[0].neuron
        steps, batch = neuron.inputs[0].shape[:2]
        past = neuron.inputs[0].new_zeros(batch, dtype=compute_dtype(neuron.inputs[0].dtype))
        added = past.new_zeros(steps, batch)
        new: Traces = {}
        for k in range(len(neuron.inputs)):
            for state, (by_input, by_state) in transition.items():
                earlier = [(M, self.traces.get((neuron.name, "shift", str(k), other))) for other, M in by_state.items()]
                owed = [M * old for M, old in earlier if old is not None]
                shift: Any = sum(owed)
                if owed:
                    past += shift.abs().reshape(batch, -1).sum(1)
                c = by_input[k]
                if c is not None:
                    c = c.to(past.dtype)
                    added += c.abs().reshape(steps, batch, -1).sum(2)
                    shift = shift + c.sum(0)
                if owed or c is not None:
                    new[neuron.name, "shift", str(k), state] = shift
        self.traces.update(new)
        total = past + added.sum(0)
        share = torch.where(total > 0, total, torch.ones_like(total)).reciprocal()
        for of in connections:
            self._move_mean(of, torch.where(total > 0, past * share, torch.ones_like(total)), added * share)

    def _move_mean(self, of: Connection, past: Tensor, added: Tensor) -> None:
        inputs = of.over_time(of.inputs)
        if inputs.shape[:2] != added.shape:
            raise of.refused()
        check_places(of, self._checked, each=False)
        with no_autocast(added.device.type):
            mean = torch.einsum("cb,cb...->b...", added, inputs.to(added.dtype))
        old = self.traces.get(key_of(of, "mean"))
        if old is not None:
            mean.addcmul_(old, past.view(-1, *[1] * (mean.ndim - 1)))
        self.traces[key_of(of, "mean")] = mean


class Filtered:
    """The input of a layer, filtered by the leak of the neuron."""

    kinds = AFFINE
    takes = "linear layers and convolutions"

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self._checked: Checked = {}
        #: Program of a neuron -> the parameters that its leak reads.
        self._read: Dict[Program, FrozenSet[str]] = {}

    def learn(self, of: Connection, output: Tensor) -> None:
        """Add the gradient of the weights for that of the layer's output, and move the trace over the chunk."""
        inputs, cotangent = of.over_time(of.inputs), of.over_time(output)
        check_places(of, self._checked, each=False)
        has_bias = learnt(of.layer).keys() != {"weight"} or isinstance(of.layer, nn.modules.batchnorm._BatchNorm)
        counts = self._run(of, "count", inputs.new_ones(of.steps, 1)) if has_bias else None
        of.learn(self._run(of, "filtered", inputs), cotangent, counts)

    def _run(self, of: Connection, what: str, x: Tensor) -> Tensor:
        neuron = of.neuron.neuron
        program = neuron.program
        if program not in self._read:
            self._read[program] = frozenset(leak(program).params)
        named = [pair for pair in neuron.named_values().items() if pair[0] in self._read[program]]
        tensors = {name: _number(of.neuron.name, name, value) for name, value in named if isinstance(value, Tensor)}
        prefix = key_of(of, what)
        start = {key[-1]: trace for key, trace in self.traces.items() if key[:-1] == prefix}
        with torch.no_grad():
            outputs, end = run_by(neuron, Leak(), (x.contiguous(),), start, tensors)
        self.traces.update({(*prefix, state): value for state, value in end.items()})
        output: Tensor = outputs[0]
        return output


#: The kinds of traces, by the word of a rule.
KINDS: Dict[str, Any] = {"full": Full, "outer": Outer, "input": Filtered}


def _number(owner: str, name: str, value: Tensor) -> Tensor:
    if value.numel() != 1:
        raise Unsupported(
            f"rule='ottt' filters the inputs of a layer by one leak, and {owner!r} has a {name} for each of "
            f"{value.numel()} channels; take rule='pp_prop'"
        )
    return value.detach().reshape(())


def key_of(of: Connection, *what: str) -> Tuple[str, ...]:
    """The name of a trace of a connection."""
    return (of.neuron.name, "layer", of.name, *what)
