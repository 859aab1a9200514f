"""What of a network a rule can train: its neurons and layers by name, and what is refused, with the rule that can."""

from __future__ import annotations

from typing import Dict, List

from torch import nn

from spikecore._shell.checks import shown
from spikecore._shell.modules import makes_time, unwrapped
from spikecore._shell.state import Stateful, Stepped
from spikecore.backend import Unsupported
from spikecore.layers import Delay, NormNeuron
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent
from spikecore.training._online._chunk import learnt
from spikecore.training._online._plasticity import SYNAPSES
from spikecore.training._online._rules import Rule
from spikecore.training._online._traces import AFFINE

#: The layers that a rule has traces for, by the kind of trace, and their names.
_TAKES = {"full": (nn.Linear,), "outer": AFFINE, "input": AFFINE, "pairs": SYNAPSES}
_NAMED = {"full": "nn.Linear", **dict.fromkeys(("outer", "input", "pairs"), "linear layers and convolutions")}


class Network:
    """The neurons, the other modules with state, and the layers with weights of a network, by their names."""

    def __init__(self, net: nn.Module, rule: Rule) -> None:
        self.net, self.rule = net, rule
        self.neurons: Dict[str, Stateful] = {}
        self.others: List[Stateful] = []
        inner: List[nn.Module] = []
        for name, module in net.named_modules():
            if isinstance(module, Recurrent):
                inner += [part for part in module.modules() if part is not module]
            if module in inner or not isinstance(module, Stateful):
                continue
            if isinstance(module, (Neuron, Recurrent)):
                self.neurons[name] = module
            else:
                self.others.append(module)
        within = {part for neuron in self.neurons.values() for part in neuron.modules()}
        #: Every module that has parameters itself.
        self.layers = {
            n: m for n, m in net.named_modules() if m not in within and any(True for _ in m.parameters(False))
        }

    def check(self) -> None:
        """Raise Unsupported, with its name, for what the rule cannot train."""
        rule, net = self.rule, self.net
        if unwrapped(net) is not net:
            raise Unsupported(f"rule={rule.name!r} takes the network itself, and net={shown(net)} wraps it")
        if makes_time(net):
            raise Unsupported(
                f"rule={rule.name!r} gives the network chunks of steps, and this one makes time itself, by an encoder "
                "or a neuron with repeat; encode before, and give the step [T, B, ...]"
            )
        for name, module in net.named_modules():
            why = _refused(rule, module)
            if why:
                raise Unsupported(f"rule={rule.name!r} and {name!r}: {why}")
        for name, layer in self.layers.items():
            if rule.trace and learnt(layer) and not isinstance(layer, _TAKES[rule.trace]):
                raise Unsupported(
                    f"rule={rule.name!r} has traces for {_NAMED[rule.trace]}, and {name!r} is {type(layer).__name__} "
                    f"with weights of its own; take {_way_out(rule, layer)}, or give its weights requires_grad_(False)"
                )
        for name, neuron in self.neurons.items():
            if isinstance(neuron, Recurrent) and rule.trace:
                linear = neuron.linear
                if learnt(linear) and not isinstance(linear, _TAKES[rule.trace]):
                    raise Unsupported(
                        f"rule={rule.name!r} has traces for {_NAMED[rule.trace]}, and {name!r} feeds back through "
                        f"{type(linear).__name__}; take {_way_out(rule, linear)}"
                    )


def _way_out(rule: Rule, layer: nn.Module) -> str:
    return "rule='pp_prop', 'ottt' or 'sltt'" if rule.trace == "full" and isinstance(layer, AFFINE) else "rule='sltt'"


def _refused(rule: Rule, module: nn.Module) -> str:
    """Why a rule does not take a module, and what does; "" if it does."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "it normalises by the statistics of a batch, which join all its samples and steps; call .eval() on it, "
            "which takes the running ones, or take rule='bptt'"
        )
    if isinstance(module, NormNeuron):
        return "it is normalisation and neuron in one; call sc.unfuse(net), or take rule='bptt'"
    if isinstance(module, Recurrent):
        if isinstance(module.linear, Delay):
            return "it feeds back through a Delay; take rule='bptt'"
        if not module.detach and rule.trace != "pairs":
            return "its feedback carries gradients from neuron to neuron; make it with detach=True, or take rule='bptt'"
    if isinstance(module, (Neuron, Recurrent)) and module.step == "single":
        return "it takes one step a call; call sc.set_step(net, 'multi'): a chunk may have one step"
    if isinstance(module, Stepped) and module.mixes_time:
        return f"{type(module).__name__} joins all steps of a sequence; take rule='bptt' with a chunk of all steps"
    if isinstance(module, Stateful) and not isinstance(module, (Neuron, Recurrent)) and not module.may_rest:
        return f"{type(module).__name__} keeps inputs of earlier steps, which have no traces; take rule='bptt'"
    return ""
