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
from spikecore.training._online._plasticity import Plasticity
from spikecore.training._online._rules import Rule
from spikecore.training._online._traces import AFFINE, KINDS

#: What learns from the calls of a chunk, by the word of a rule.
_LEARN = {**KINDS, "pairs": Plasticity}


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

    @property
    def weights(self) -> List[nn.Parameter]:
        """The parameters that are learnt outside of neurons, each once where layers share it."""
        return list({p: None for layer in self.layers.values() for p in learnt(layer).values()})

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
        fed_back = {f"{name}.linear": m.linear for name, m in self.neurons.items() if isinstance(m, Recurrent)}
        for name, layer in self.layers.items() if rule.trace else ():
            self._check_layer(name, layer, bool(learnt(layer)))
        for name, layer in fed_back.items() if rule.trace else ():
            self._check_layer(name, layer, any(p.requires_grad for p in layer.parameters()))

    def _check_layer(self, name: str, layer: nn.Module, learns: bool) -> None:
        """Refuse a layer that learns, and that the rule has no trace for."""
        trace, is_affine = _LEARN[self.rule.trace], isinstance(layer, AFFINE)
        fits = isinstance(layer, trace.kinds) and (trace.kinds is AFFINE or {"weight", "bias"} >= learnt(layer).keys())
        if learns and not fits:
            others = "'pp_prop', 'ottt' or 'sltt'" if is_affine and trace.kinds is not AFFINE else "'sltt'"
            raise Unsupported(
                f"rule={self.rule.name!r} has traces for {trace.takes}, and {name!r} is {type(layer).__name__} "
                f"with weights of its own; take rule={others}, or give its weights requires_grad_(False)"
            )


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
