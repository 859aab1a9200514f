"""Parts of a network that a rule trains: neurons and layers by name; and refusals, with the rule that can."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Set, Tuple

from torch import nn

from spikecore.backend import Unsupported
from spikecore.core.modules import calls_as, has_own_hooks, makes_time, outside, unwrapped
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stateful, Stepped
from spikecore.graph import Call, Graph, NotFollowed, computed_by, is_parametrised, layer_of, read
from spikecore.inspect.record import neuron_of
from spikecore.layers import Delay, NormNeuron
from spikecore.neurons import Recurrent
from spikecore.words import shown
from spikecore_online._chunk import ONE_CALL, learnt
from spikecore_online._plasticity import Plasticity
from spikecore_online._rules import Rule
from spikecore_online._traces import AFFINE, KINDS

#: Classes that learn from the calls of a chunk, by the word of a rule.
_LEARN: Dict[str, Any] = {**KINDS, "pairs": Plasticity}
_FREEZE = "take rule='bptt', or give it requires_grad_(False)"
_HOOKS, _REMOVE = "has hooks or a forward of its own", f"remove them, {_FREEZE}"


class Network:
    """The neurons, the other modules with state, and the layers with weights of a network, by their names."""

    def __init__(self, net: nn.Module, rule: Rule) -> None:
        self.net, self.rule = net, rule
        #: Facts of the network at the last check of its uses of parameters.
        self._checked: List[Any] = []
        self._sort()

    def _sort(self) -> None:
        self.neurons: Dict[str, Stateful] = {}
        self.others: List[Stateful] = []
        computing: Set[nn.Module] = set()
        others: Dict[str, nn.Module] = {}
        for name, module in outside(self.net, (Neuron, Recurrent)):
            if isinstance(module, (Neuron, Recurrent)):
                self.neurons[name] = module
                continue
            others[name] = module
            if isinstance(module, Stateful):
                self.others.append(module)
            elif is_parametrised(module):
                computing.update(part for part in module.modules() if part is not module)
        self._owners = [module for module in others.values() if module._parameters]
        #: Every module that has parameters itself, or computes them.
        self.layers = {
            name: m for name, m in others.items() if m not in computing and (m._parameters or is_parametrised(m))
        }
        #: Those whose weights may have traces.
        kinds = _LEARN[self.rule.trace].kinds if self.rule.trace else ()
        self.traced = {layer for layer in self.layers.values() if layer_of(layer) in kinds}

    @property
    def weights(self) -> List[nn.Parameter]:
        """The parameters that are learnt outside of neurons, each once where layers share it."""
        parameters = [p for module in self._owners for p in module._parameters.values()]
        return list({p: None for p in parameters if p is not None and p.requires_grad})

    def check(self, inputs: int) -> None:
        """Raise Unsupported, with its name, for what the rule cannot train; ``inputs``: how many the network takes.

        It is read again where its modules, their modes and hooks, or what learns have changed.
        """
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
        modules = [(module, module.training, has_own_hooks(module)) for module in net.modules()]
        now = [inputs, *modules, *[(id(p), p.requires_grad, _is_hooked(p)) for p in net.parameters()]]
        if now != self._checked:
            self._sort()
            try:
                _Uses(self, read(net, inputs=inputs)).check()
            except NotFollowed as error:
                if rule.trace or any(map(_of_equations, self.neurons.values())):  # else autograd has all of a chunk
                    raise Unsupported(
                        f"rule={rule.name!r} must see all that a learnt parameter does, and {error}; {ONE_CALL}"
                    ) from error
            self._checked = now


class _Uses:
    """Uses of learnt parameters: by the equations of a neuron, by a layer with a trace, by something that no neuron
    stands behind, which autograd knows all of, or in another way, which is refused.
    """

    def __init__(self, network: Network, graph: Graph) -> None:
        self.rule, self.graph = network.rule, graph
        self.neurons, self.weights = {*network.neurons.values()}, {*network.weights}
        #: Call -> the neurons that its value gets to before another one; without them nothing remembers it.
        self.behind: Dict[Call, Set[Call]] = {}
        for call in reversed(graph.calls):
            paths = [{reader} if self._is_neuron(reader) else self.behind[reader] for reader in call.readers]
            self.behind[call] = set().union(*paths) if call.function != "detach" else set()

    def _is_neuron(self, call: Call) -> bool:
        return call.module is not None and not self.neurons.isdisjoint(call.module.modules())

    def check(self) -> None:
        """Raise Unsupported for the first use that the rule does not train a parameter by."""
        for call in self.graph.calls:
            changed = computed_by(call.source) if call.is_in_place else None
            if changed is not None and self._is_neuron(changed):
                raise Unsupported(
                    f"rule={self.rule.name!r}: {call.title} changes what {changed.title} gives in place; write v = v + "
                    "y for v += y, or take rule='bptt'"
                )
            uses: Dict[str, Any] = {} if call.module is None else dict(call.module.named_parameters())
            if call.kind == "attribute" and call.readers:
                uses = {"": self.graph.tensors[call.name]}
            for name, tensor in uses.items():
                why, way_out = self._fault(tensor, call) if tensor.requires_grad else ("", "")
                if why:
                    path = ".".join(filter(None, (call.name, name)))
                    raise Unsupported(f"rule={self.rule.name!r} does not train {path!r}: {call.title} {why}; {way_out}")

    def _fault(self, p: Any, call: Call) -> Tuple[str, str]:
        """Reason why the rule does not train a parameter by this use, and the way out; ("", "") if it does."""
        module, trace = call.module, self.rule.trace
        if _is_hooked(p):
            return (
                "has a hook of its gradient, which a rule adds up in parts",
                f"change p.grad afterwards, {_FREEZE}",
            )
        if module in self.neurons:
            fed_back = {*module.linear.parameters()} if isinstance(module, Recurrent) else set()
            if p in fed_back and trace and not call.is_hooked:
                return self._fault_of_layer(module.linear)
            if p not in fed_back and trace != "pairs" and p not in _of_equations(module):
                return "has it beside its equations", _FREEZE
            return (_HOOKS, _REMOVE) if call.is_hooked and (trace if p in fed_back else trace != "pairs") else ("", "")
        if p.is_leaf and p not in self.weights:
            return "uses it beside the neuron that has it", f"make a parameter for each, {_FREEZE}"
        others = [other for other in self.graph.calls_of(module) if self.behind[other]] if module else []
        if not trace or not (trace == "pairs" or self.behind[call] or self._is_neuron(call)):
            return "", ""
        if module is None:
            return "is read by forward itself", f"call the layer that has it, {_FREEZE}"
        if len(others) > 1:
            return "is called twice for a chunk, and a trace is that of one call", ONE_CALL
        if trace != "pairs" and len(self.behind[call]) > 1:
            titles = " and ".join(sorted(other.title for other in self.behind[call]))
            return f"reaches {titles}, and has one trace", "make a layer for each, or take rule='sltt' or 'bptt'"
        return self._fault_of_layer(module)

    def _fault_of_layer(self, module: nn.Module) -> Tuple[str, str]:
        """The same of a layer that needs a trace."""
        if not self.rule.trace:
            return "", ""
        learner, kind = _LEARN[self.rule.trace], layer_of(module)
        if kind not in learner.kinds:
            own = isinstance(module, learner.kinds)
            why = "has a forward of its own" if own else f"has a weight of {type(module).__name__}"
            others = "'pp_prop', 'ottt', 'sltt'" if kind in AFFINE and learner.kinds is not AFFINE else "'sltt'"
            plain = "write it as a parametrisation (torch.nn.utils.parametrize), " if own else ""
            way_out = f"{plain}take rule={others} or 'bptt', or give it requires_grad_(False)"
            return f"{why}, and traces are for {learner.takes}", way_out
        if has_own_hooks(module):
            return _HOOKS, _REMOVE
        if self.rule.trace == "pairs" and is_parametrised(module):
            return "computes its weight by a parametrisation", f"take another rule, {_FREEZE}"
        more = learnt(module).keys() - {"weight", "bias"}
        return (f"has {', '.join(sorted(more))} beside weight and bias", _FREEZE) if more else ("", "")


def _refused(rule: Rule, module: nn.Module) -> str:
    """Reason why a rule does not take a module, and the rule that does; "" if it does."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "it normalises by the statistics of a batch, which join all its samples and steps; call .eval() on it, "
            "which takes the running ones, or take rule='bptt'"
        )
    if isinstance(module, NormNeuron):
        return "it is normalisation and neuron in one; call sc.unfuse(net), or take rule='bptt'"
    plain = calls_as(module, Recurrent) or calls_as(module, Neuron)
    if isinstance(module, (Neuron, Recurrent)) and (not plain or "forward" in vars(module)):
        return "it has a forward of its own; put what that does into a module around it, or take rule='bptt'"
    if isinstance(module, Recurrent):
        if module.several:
            return "it feeds back through a list of modules, or to several inputs; take rule='bptt'"
        if isinstance(module.linear, Delay):
            return "it feeds back through a Delay; take rule='bptt'"
        if not module.detach and rule.trace != "pairs":
            return "its feedback carries gradients from neuron to neuron; make it with detach=True, or take rule='bptt'"
    if isinstance(module, Neuron) and (module.vectors or isinstance(type(module).inputs, Mapping)):
        return f"{type(module).__name__} has vectors, and a trace is of one number of a neuron; take rule='bptt'"
    if isinstance(module, (Neuron, Recurrent)) and module.step == "single":
        return "it takes one step a call; call sc.set_step(net, 'multi'): a chunk may have one step"
    if isinstance(module, Stepped) and module.mixes_time:
        return f"{type(module).__name__} joins all steps of a sequence; take rule='bptt' with a chunk of all steps"
    if isinstance(module, Stateful) and not isinstance(module, (Neuron, Recurrent)) and not module.may_rest:
        return f"{type(module).__name__} keeps inputs of earlier steps, which have no traces; take rule='bptt'"
    return ""


def _is_hooked(p: nn.Parameter) -> bool:
    """Tell whether a hook sees or changes the gradient of a parameter."""
    return bool(p._backward_hooks) or bool(getattr(p, "_post_accumulate_grad_hooks", None))


def _of_equations(module: Any) -> Set[nn.Parameter]:
    """The parameters that a neuron's equations learn, themselves or computed."""
    neuron = neuron_of(module)
    return {p for name, of in learnt(neuron).items() if name in neuron.program.params for p in of}
