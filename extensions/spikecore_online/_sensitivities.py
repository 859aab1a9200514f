"""The exact traces of a neuron's own parameters: how its states depend on them, forward in time.

For a parameter p the trace is ``P_k = ds0_k / dp``, a number for each neuron, and over a chunk

    dE/dp += dE/dp within the chunk + sum_k g_k P_k      P_k' = sum_l M[k, l] P_l + ds1_k / dp within the chunk

with the whole transition of the neuron, under every rule. The neuron computes the chunk once more for it, with a value
of the parameter for each neuron, so that derivatives by it come out for each.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple

import torch
from torch import Tensor

from spikecore.core import parameters
from spikecore.core.call import run_by
from spikecore.neurons import Recurrent
from spikecore_online._chunk import Gradients, NeuronCall, gradients, learn, learnt
from spikecore_online._traces import Traces


def learn_parameters(call: NeuronCall, errors: Gradients, traces: Traces) -> None:
    """Add the gradients of the learnt parameters of a neuron for those of its outputs, and move their traces on."""
    names = [name for name in learnt(call.neuron) if name in call.neuron.program.params]
    if not names:
        return
    values, starts, outputs, ends = _again(call, names)
    by = [*values.values(), *starts.values()]
    total = dict(zip(by, gradients(outputs, by, errors)))
    gradient = {name: total[value] for name, value in values.items()}
    moved: Traces = {}
    for state, end in ends.items():
        step = dict(zip(by, gradients([end], by, [torch.ones_like(end)])))
        for name, value in values.items():
            new = step[value]
            for other, start in starts.items():
                old, M = traces.get(_key(call, name, other)), step[start]
                if old is not None and M is not None:
                    new = M * old if new is None else new.to(old.dtype) + M * old
            if new is not None:
                moved[_key(call, name, state)] = new
    for name in names:
        for state, start in starts.items():
            old, g = traces.get(_key(call, name, state)), total[start]
            if old is not None and g is not None:
                within = gradient[name]
                gradient[name] = g * old if within is None else within + g * old
        whole = gradient[name]
        if whole is not None:
            parameter = getattr(call.neuron, name)
            view = _placed(call, name, parameter)
            learn(call.neuron, name, whole.sum_to_size(view.shape).view(parameter.shape))
    for name in values:
        for state in call.states:
            traces.pop(_key(call, name, state), None)
    traces.update(moved)


def _key(call: NeuronCall, name: str, state: str) -> Tuple[str, ...]:
    return call.name, "parameter", name, state


def _placed(call: NeuronCall, name: str, value: Tensor) -> Tensor:
    """A parameter, viewed over one time step."""
    ((view,), _) = parameters.place(call.name, [(name, value)], call.inputs[0].shape[1:], call.neuron.channel_dim)
    return view  # type: ignore[return-value]  # a tensor in, a tensor out


def _again(
    call: NeuronCall, names: List[str]
) -> Tuple[Dict[str, Tensor], Dict[str, Tensor], Tuple[Tensor, ...], Mapping[str, Tensor]]:
    """The call once more: a value of each parameter for each neuron, states before, outputs, states behind."""
    neuron, x = call.neuron, call.inputs[0]
    values = {
        name: _placed(call, name, getattr(neuron, name).detach()).expand(x.shape[1:]).contiguous().requires_grad_()
        for name in names
    }
    starts = {name: call.start[name].detach().requires_grad_() for name in call.states if name in call.start}
    inputs = tuple([value.detach() for value in call.inputs])
    if isinstance(call.module, Recurrent):
        inputs = _with_feedback(call, inputs)
    outputs, end = run_by(neuron, None, inputs, starts, values)
    return values, starts, outputs, end


@torch.no_grad()
def _with_feedback(call: NeuronCall, inputs: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
    """The inputs of the neuron within ``Recurrent``."""
    into, fed = call.ends[0], call.fed_back()
    back = call.module.linear(fed.flatten(0, 1)).view(inputs[into].shape)
    return (*inputs[:into], inputs[into] + back, *inputs[into + 1 :])
