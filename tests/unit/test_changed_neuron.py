"""A neuron that was changed after calls computes as a new neuron with those values, whatever changed and however.

Every row of ``CHANGES`` is a neuron, what is done to it, and a new neuron that has the values from the beginning. The
two are compared to the last bit, in outputs, states and gradients, after calls of each kind and without an earlier
call. Names with a leading underscore, and what is no attribute of the neuron, are not watched: there ``retrace()`` is
the rule.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import inspect
import pickle
from typing import Any, Callable, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import spikecore as sc

C = 4
#: One value per channel, which fits both dimensions of a step [C, C].
TAUS = torch.tensor([1.0, 2.0, 4.0, 8.0])
NUMBA = pytest.mark.skipif(importlib.util.find_spec("spikecore_numba") is None, reason="spikecore-numba is missing")
BACKENDS = ["torch", pytest.param("numba", marks=NUMBA)]
S = sc.surrogate
#: ``load_state_dict`` has it from torch 2.1 on.
ASSIGNED = {"assign": True} if "assign" in inspect.signature(nn.Module.load_state_dict).parameters else {}


class Gained(sc.Neuron):
    """A neuron with attributes of its own, of every kind, that its step reads."""

    states = {"v": 0.0}
    params = {"tau": 2.0}
    of_class = 1.0

    def __init__(self, gain: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.gain, self.listed = gain, [1.0]
        self.register_buffer("buffer", torch.tensor(1.0))
        self.inner = Holder(1.0)

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        gain = self.gain * self.of_class * self.listed[0] * float(self.buffer) * self.inner.k
        h = s.v + (gain * x - s.v) / p.tau
        z = self.spike(h - (0.5 if self.training else 1.5))
        return z, {"v": h - z}


class Holder(nn.Module):
    """A number of another module."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k


class WithChild(Gained):
    """A neuron that reads the mode of a module in it."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return super().dynamics(x * (1.0 if self.inner.training else 3.0), s, p)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x


class Change(NamedTuple):
    """A neuron, a change of it, and a new neuron with the values that it has then."""

    make: Callable[..., Any]
    change: Callable[[Any], Any]
    fresh: Callable[..., Any]


def lif(*args: Any, **options: Any) -> Callable[..., Any]:
    return lambda **more: sc.LIF(
        *[a.clone() if isinstance(a, torch.Tensor) else a for a in args], **{**options, **more}
    )


def gained(gain: float = 1.0, **options: Any) -> Callable[..., Any]:
    return lambda **more: Gained(gain, **options, **more)


def with_child(**options: Any) -> Callable[..., Any]:
    return lambda **more: WithChild(**options, **more)


def with_(make: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """A new neuron that is changed before its first call."""

    def made(**options: Any) -> Any:
        neuron = make(**options)
        change(neuron)
        return neuron

    return made


def put(**values: Any) -> Callable[[Any], Any]:
    return lambda neuron: [setattr(neuron, name, value) for name, value in values.items()]


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values if len(values) > 1 else values[0]))


def then(*changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda neuron: [change(neuron) for change in changes]


def removed(name: str) -> Callable[[Any], Any]:
    return lambda neuron: delattr(neuron, name)


def tables(**tensors: Any) -> Callable[[Any], Any]:
    return lambda neuron: neuron._parameters.update(tensors)


def with_grad_off(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(neuron: Any) -> None:
        with torch.no_grad():
            change(neuron)

    return changed


def weight_norm(neuron: Any) -> None:
    """The old one, by a hook before each call."""
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(neuron, "tau")


def strided(neuron: Any) -> None:
    neuron.tau.data = torch.tensor([1.0, 0.0, 2.0, 0.0, 4.0, 0.0, 8.0, 0.0])[::2]


def as_other(other: Callable[..., Any]) -> Callable[[Any], Any]:
    """All attributes of another neuron, which was called."""

    def changed(neuron: Any) -> None:
        of = other(backend=neuron.backend, step=neuron.step)
        of(torch.rand(3, C, C) if neuron.step == "multi" else torch.rand(C, C))
        sc.reset(of)
        neuron.__dict__.update(of.__dict__)

    return changed


LEARNT, OTHERS = lif(TAUS, learn=("tau",)), torch.tensor([3.0, 1.5, 1.0, 2.5])
CHANGES = {
    # settings
    "channel_dim": Change(lif(TAUS), put(channel_dim=0), lif(TAUS, channel_dim=0)),
    "channel_dim learnt": Change(LEARNT, put(channel_dim=0), lif(TAUS, learn=("tau",), channel_dim=0)),
    "detach_reset": Change(lif(), put(detach_reset=True), lif(detach_reset=True)),
    "reset": Change(lif(), put(reset="soft"), lif(reset="soft")),
    "reset twice": Change(lif(), then(put(reset="soft"), put(reset="none")), lif(reset="none")),
    "there and back": Change(lif(), then(put(reset="soft"), put(reset="hard")), lif()),
    "decay_input": Change(lif(), put(decay_input=False), lif(decay_input=False)),
    "surrogate": Change(lif(), put(surrogate=S.Sigmoid(3.0)), lif(surrogate=S.Sigmoid(3.0))),
    "surrogate annealed": Change(lif(), put(surrogate=S.ATan(5.0)), lif(surrogate=S.ATan(5.0))),
    "settings past setattr": Change(
        lif(TAUS),
        then(lambda n: n.__dict__.update(reset="soft", channel_dim=0, surrogate=S.ATan(5.0)), sc.Neuron.retrace),
        lif(TAUS, reset="soft", channel_dim=0, surrogate=S.ATan(5.0)),
    ),
    "bounds": Change(
        LEARNT,
        then(put(bounds=None), with_grad_off(lambda n: n.tau.fill_(0.75))),
        lif(torch.full((C,), 0.75), learn=("tau",), bounds=None),
    ),
    # values
    "number": Change(lif(), put(tau=3.0), lif(3.0)),
    "number past setattr": Change(lif(), lambda n: n.__dict__.update(tau=3.0, threshold=0.5), lif(3.0, threshold=0.5)),
    "number to tensor": Change(lif(), put(tau=TAUS), lif(TAUS)),
    "number to one value": Change(lif(), put(tau=torch.tensor(3.0)), lif(torch.tensor(3.0))),
    "number to parameter": Change(lif(), put(tau=parameter(*TAUS)), LEARNT),
    "tensor to parameter": Change(lif(OTHERS), put(tau=parameter(*TAUS)), LEARNT),
    "tensor to tensor": Change(lif(OTHERS), put(tau=TAUS), lif(TAUS)),
    "tensor to full shape": Change(lif(OTHERS), put(tau=TAUS.expand(C, C).clone()), lif(TAUS.expand(C, C))),
    "tensor in place": Change(lif(OTHERS), lambda n: n.tau.copy_(TAUS), lif(TAUS)),
    "parameter to number": Change(LEARNT, then(removed("tau"), put(tau=3.0)), lif(3.0)),
    "parameter to tensor": Change(LEARNT, then(removed("tau"), put(tau=OTHERS)), lif(OTHERS)),
    "parameter to buffer": Change(
        LEARNT, then(removed("tau"), lambda n: n.register_buffer("tau", OTHERS.clone())), lif(OTHERS)
    ),
    "number to registered": Change(
        lif(), then(removed("tau"), lambda n: n.register_parameter("tau", parameter(*TAUS))), LEARNT
    ),
    "parameter filled": Change(LEARNT, put(tau=3.0), lif(torch.full((C,), 3.0), learn=("tau",))),
    "parameter replaced": Change(LEARNT, put(tau=parameter(*OTHERS)), lif(OTHERS, learn=("tau",))),
    "parameter of another shape": Change(LEARNT, put(tau=parameter(3.0)), lif(3.0, learn=("tau",))),
    "parameter in its table": Change(LEARNT, tables(tau=parameter(*OTHERS)), lif(OTHERS, learn=("tau",))),
    "parameter in another table": Change(
        LEARNT, lambda n: n._buffers.update(tau=n._parameters.pop("tau").detach().clone()), lif(TAUS)
    ),
    "parameter in place": Change(LEARNT, with_grad_off(lambda n: n.tau.copy_(OTHERS)), lif(OTHERS, learn=("tau",))),
    "data": Change(LEARNT, lambda n: setattr(n.tau, "data", OTHERS.clone()), lif(OTHERS, learn=("tau",))),
    "data of another shape": Change(
        LEARNT, lambda n: setattr(n.tau, "data", torch.tensor(3.0)), lif(3.0, learn=("tau",))
    ),
    "data with strides": Change(lif(OTHERS, learn=("tau",)), strided, LEARNT),
    "out of its range": Change(
        lif(OTHERS, learn=("tau",)),
        with_grad_off(lambda n: n.tau.copy_(torch.tensor([1.0, 0.5, 4.0, -8.0]))),
        lif(torch.tensor([1.0, 1.0, 4.0, 1.0]), learn=("tau",)),
    ),
    "frozen": Change(LEARNT, lambda n: n.tau.requires_grad_(False), lif(TAUS)),
    "half": Change(
        lif(OTHERS, learn=("tau",)), lambda n: n.half(), with_(lif(OTHERS, learn=("tau",)), lambda n: n.half())
    ),
    "double": Change(LEARNT, lambda n: n.double(), with_(LEARNT, lambda n: n.double())),
    "to and back": Change(LEARNT, then(lambda n: n.to(torch.float64), lambda n: n.float()), LEARNT),
    "loaded": Change(LEARNT, lambda n: n.load_state_dict({"tau": OTHERS.clone()}), lif(OTHERS, learn=("tau",))),
    "loaded number": Change(lif(), lambda n: n.load_state_dict({"tau": torch.tensor(3.0)}), lif(3.0)),
    "assigned": Change(
        LEARNT,
        lambda n: n.load_state_dict({"tau": OTHERS.clone()}, **ASSIGNED),
        lif(OTHERS, learn=("tau",)),
    ),
    "all of another": Change(lif(5.0), as_other(lif(3.0, reset="soft")), lif(3.0, reset="soft")),
    "all of another, then a change": Change(
        lif(5.0), then(as_other(lif(3.0)), put(tau=4.0, reset="soft")), lif(4.0, reset="soft")
    ),
    # torch.nn.utils
    "parametrized": Change(
        LEARNT, lambda n: parametrize.register_parametrization(n, "tau", Doubled()), lif(2.0 * TAUS)
    ),
    "parametrized no more": Change(
        LEARNT,
        then(
            lambda n: parametrize.register_parametrization(n, "tau", Doubled()),
            lambda n: parametrize.remove_parametrizations(n, "tau"),
        ),
        lif(2.0 * TAUS, learn=("tau",)),
    ),
    "pruned": Change(
        lif(threshold=TAUS, learn=("threshold",)),
        lambda n: prune.custom_from_mask(n, "threshold", torch.tensor([1, 0, 1, 0])),
        lif(threshold=TAUS * torch.tensor([1, 0, 1, 0])),
    ),
    "pruned for good": Change(
        lif(threshold=TAUS, learn=("threshold",)),
        then(
            lambda n: prune.custom_from_mask(n, "threshold", torch.tensor([1, 0, 1, 0])),
            lambda n: prune.remove(n, "threshold"),
        ),
        lif(threshold=TAUS * torch.tensor([1, 0, 1, 0]), learn=("threshold",)),
    ),
    "weight_norm": Change(LEARNT, weight_norm, lif(TAUS)),
    "weight_norm moved": Change(LEARNT, then(weight_norm, with_grad_off(lambda n: n.tau_g.mul_(2.0))), lif(2.0 * TAUS)),
    # attributes of a neuron of one's own
    "attribute": Change(gained(), put(gain=3.0), gained(3.0)),
    "over the class": Change(gained(), put(of_class=3.0), gained(3.0)),
    "not over the class": Change(
        with_(gained(), put(of_class=9.0)), then(removed("of_class"), put(gain=3.0)), gained(3.0)
    ),
    "another list": Change(gained(), put(listed=[3.0]), gained(3.0)),
    "another buffer": Change(gained(), lambda n: n.register_buffer("buffer", torch.tensor(3.0)), gained(3.0)),
    "buffer replaced": Change(gained(), put(buffer=torch.tensor(3.0)), gained(3.0)),
    "buffer loaded": Change(gained(), lambda n: n.load_state_dict({"buffer": torch.tensor(3.0)}), gained(3.0)),
    "another module": Change(gained(), put(inner=Holder(3.0)), gained(3.0)),
    "module registered": Change(gained(), lambda n: n.add_module("inner", Holder(3.0)), gained(3.0)),
    "eval": Change(gained(), lambda n: n.eval(), with_(gained(), lambda n: n.eval())),
    "eval and train": Change(gained(), then(lambda n: n.eval(), lambda n: n.train()), gained()),
    "eval of a child": Change(with_child(), lambda n: n.eval(), with_(with_child(), lambda n: n.eval())),
    "eval and train of a child": Change(with_child(), then(lambda n: n.eval(), lambda n: n.train()), with_child()),
    "dynamics": Change(
        lif(),
        put(dynamics=lambda x, s, p: (x * 3.0, {"v": x})),
        with_(lif(), put(dynamics=lambda x, s, p: (x * 3.0, {"v": x}))),
    ),
}


# Each gives everything that a call of its kind returns, and the gradients that it has.


def drive(steps: int = 6) -> torch.Tensor:
    return torch.rand(steps, C, C, generator=torch.Generator().manual_seed(0)).mul(4.0).requires_grad_()


def with_gradients(neuron: Any, x: torch.Tensor, *outputs: torch.Tensor) -> Any:
    weights = [torch.cos(torch.arange(out.numel())).view(out.shape) for out in outputs]
    learnt = {name: value for name, value in neuron.named_parameters() if value.requires_grad}
    total = sum((out * weight).sum() for out, weight in zip(outputs, weights))
    grads = torch.autograd.grad(total, [x, *learnt.values()], allow_unused=True)
    return outputs, grads[0], dict(zip(learnt, grads[1:]))


def training(neuron: Any) -> Any:
    x = drive()
    return with_gradients(neuron, x, neuron(x))


def inference(neuron: Any) -> Any:
    with torch.no_grad():
        return (neuron(drive()),), None, {}


def run(neuron: Any) -> Any:
    x = drive()
    out, state, trace = neuron.run(x, record=tuple(neuron.states))
    return with_gradients(neuron, x, out, *state.values(), *trace.values())


def from_state(neuron: Any) -> Any:
    x, state = drive(), {name: torch.full((C, C), 0.25) for name in neuron.states}
    out, state = neuron.run(x, state=state)
    return with_gradients(neuron, x, out, *state.values())


def single(neuron: Any) -> Any:
    x = drive()
    sc.reset(neuron)
    return with_gradients(neuron, x, torch.stack([neuron(now) for now in x]))


CALLS = [training, inference, run, from_state, single]
#: numba compiles for every kind of call, so there are the two that differ most.
WAYS = [pytest.param("torch", call, id=f"torch-{call.__name__}") for call in CALLS] + [
    pytest.param("numba", call, id=f"numba-{call.__name__}", marks=NUMBA) for call in (training, single)
]
#: Changes after which a hook sets the parameter before each call.
BY_HOOKS = ("pruned", "weight_norm", "weight_norm moved")


def same(found: Any, right: Any) -> None:
    """Bit for bit; of the parameters those that both neurons have as one parameter."""
    assert all(torch.equal(one, other) for one, other in zip(found[0], right[0]))
    assert (found[1] is None and right[1] is None) or torch.equal(found[1], right[1])
    for name in found[2].keys() & right[2].keys():
        assert torch.equal(found[2][name], right[2][name]), name


def options(backend: str, call: Any) -> Any:
    return {"backend": backend, "step": "single" if call is single else "multi"}


@pytest.mark.parametrize(("backend", "call"), WAYS)
@pytest.mark.parametrize("name", CHANGES)
def test_it_computes_as_a_new_neuron(name: str, backend: str, call: Any) -> None:
    """After calls of that kind, and without an earlier call."""
    if name in BY_HOOKS and call in (run, from_state):
        pytest.skip("torch calls hooks before neuron(x), and none before neuron.run(x)")
    make, change, fresh = CHANGES[name]
    right = call(fresh(**options(backend, call)))
    for called in (0, 2):
        neuron = make(**options(backend, call))
        for _ in range(called):
            call(neuron)
        change(neuron)
        for _ in range(2):
            same(call(neuron), right)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
@pytest.mark.parametrize("name", ["channel_dim", "reset", "number", "settings past setattr"])
def test_a_copy_changes_alone(name: str, copied: Any, backend: str) -> None:
    """A copy of a neuron that was called is as one that is new, and the neuron stays what it was."""
    make, change, fresh = CHANGES[name]
    neuron = make(backend=backend)
    training(neuron)
    other = copied(neuron)
    change(other)
    same(training(other), training(fresh(backend=backend)))
    same(training(neuron), training(make(backend=backend)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_neurons_share(backend: str) -> None:
    """One parameter and one surrogate of two neurons: a change through one of them is the next call of both."""
    first, second = LEARNT(backend=backend), lif(reset="soft")(backend=backend)
    second.tau = first.tau
    second.surrogate = first.surrogate
    training(first), training(second)
    first.tau = 3.0
    learnt = {"learn": ("tau",), "backend": backend}
    same(training(first), training(sc.LIF(torch.full((C,), 3.0), **learnt)))
    same(training(second), training(sc.LIF(torch.full((C,), 3.0), reset="soft", **learnt)))
    first.surrogate = S.Sigmoid(2.0)
    same(training(second), training(sc.LIF(torch.full((C,), 3.0), reset="soft", **learnt)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_one_call_alone(backend: str) -> None:
    """``torch.func.functional_call`` computes with its parameters, and the next call with the neuron's."""
    neuron, x = LEARNT(backend=backend), drive()
    usual = training(neuron)
    assert torch.equal(
        torch.func.functional_call(neuron, {"tau": OTHERS.clone()}, (x,)), lif(OTHERS)(backend=backend)(x)
    )
    same(training(neuron), usual)


ERRORS = {
    "deleted": (lif(), removed("tau"), AttributeError, "'LIF' object has no attribute 'tau'"),
    "attribute deleted": (gained(), removed("gain"), sc.TraceError, "Gained.dynamics: .* no attribute 'gain'"),
    "no channels": (LEARNT, put(channel_dim=7), ValueError, "tau has 4 values, which does not fit dimension channel_d"),
    "another length": (LEARNT, tables(tau=parameter(1.0, 2.0)), ValueError, "tau has 2 values, which does not fit"),
    "elsewhere": (LEARNT, lambda n: n.to("meta"), ValueError, "tau is on meta and the input is on cpu"),
}


@pytest.mark.parametrize(("backend", "call"), WAYS)
@pytest.mark.parametrize("name", ERRORS)
def test_what_is_no_neuron_is_an_error(name: str, backend: str, call: Any) -> None:
    """Also after calls that were none."""
    make, change, error, text = ERRORS[name]
    neuron = make(**options(backend, call))
    call(neuron)
    change(neuron)
    for _ in range(2):
        with pytest.raises(error, match=text):
            call(neuron)


# What is not watched.

GAIN = 1.0


class Elsewhere(sc.Neuron):
    """Its factor comes from anywhere."""

    states = {"v": 0.0}
    gain = 1.0

    def __init__(self, read: Any, **options: Any) -> None:
        super().__init__(**options)
        self.read, self.held, self._private = read, {"gain": 1.0}, 1.0
        self.inner = Holder(1.0)
        self.register_buffer("buffer", torch.tensor(1.0))

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        v = self.read(self) * x
        return v, {"v": v}


_closed = [1.0]
ELSEWHERE = {
    "global": (lambda n: GAIN, lambda n, gain: globals().update(GAIN=gain)),
    "closure": (lambda n: _closed[0], lambda n, gain: _closed.__setitem__(0, gain)),
    "class": (lambda n: n.gain, lambda n, gain: setattr(Elsewhere, "gain", gain)),
    "dict": (lambda n: n.held["gain"], lambda n, gain: n.held.update(gain=gain)),
    "module": (lambda n: n.inner.k, lambda n, gain: setattr(n.inner, "k", gain)),
    "private attribute": (lambda n: n._private, lambda n, gain: setattr(n, "_private", gain)),
    "past setattr": (lambda n: n.gain, lambda n, gain: vars(n).update(gain=gain)),
    "tensor in place": (lambda n: float(n.buffer), lambda n, gain: n.buffer.fill_(gain)),
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_not_watched_needs_retrace(name: str, call: Any) -> None:
    """A definition is what it was when it was traced, until an attribute is set or ``retrace()`` is called."""
    read, change = ELSEWHERE[name]
    neuron = Elsewhere(read, **options("torch", call))
    before, program = call(neuron), neuron.program
    try:
        change(neuron, 3.0)
        same(call(neuron), before)
        neuron.retrace()
        assert neuron.program != program
        (found, *_), _, _ = call(neuron)
        assert torch.equal(found, 3.0 * before[0][0])
        change(neuron, 5.0)
        neuron.held = neuron.held
        assert torch.equal(call(neuron)[0][0], 5.0 * before[0][0])
    finally:
        change(neuron, 1.0)
    neuron.retrace()
    assert neuron.program == program


@pytest.mark.filterwarnings("ignore")  # by torch's compiler itself
@pytest.mark.parametrize("step", ["multi", "single"])
def test_data_of_ones_own_in_a_full_graph(step: str) -> None:
    """A hook may keep what it likes under a name with a leading underscore, and nothing is traced."""
    neuron = lif(step=step, backend="torch")()
    neuron.register_forward_hook(lambda module, given, y: setattr(module, "_last", y))
    sc.reset(neuron)
    neuron(drive())
    cache = neuron._dispatch
    sc.reset(neuron)
    found = torch.compile(neuron, fullgraph=step == "multi", backend="eager")(drive().detach())
    assert torch.equal(neuron._last, found)
    assert neuron._dispatch is cache
    neuron.to("cpu").load_state_dict({})
    assert neuron._dispatch is cache


def test_retrace_says_what_is_wrong() -> None:
    """It raises what the next call would."""
    neuron = Elsewhere(lambda n: n.held["gain"])
    neuron(drive())
    neuron.held.clear()
    with pytest.raises(KeyError, match="gain"):
        neuron.retrace()
    with pytest.raises(KeyError, match="gain"):
        neuron(drive())


# Surrogates.


class Loose(sc.Surrogate):
    """With a plain attribute."""

    def __init__(self, k: float) -> None:
        self.k = k

    def derivative(self, u: Any) -> Any:
        return self.k / (1.0 + u * u)


class Around(Loose):
    """With another surrogate within."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def derivative(self, u: Any) -> Any:
        return self.inner.derivative(u)


class Aside(sc.Neuron):
    """Its surrogate is under a name of its own."""

    def __init__(self, surrogate: Any, **options: Any) -> None:
        super().__init__(**options)
        self.own = surrogate

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return self.spike(x - 1.0, surrogate=self.own), {}


@pytest.mark.parametrize("make", [lambda k: sc.LIF(surrogate=k), Aside, lambda k: sc.LIF(surrogate=Around(k))])
def test_a_surrogate_in_use_never_changes(make: Any) -> None:
    """A program has its numbers, also those of a surrogate within; until the first call it may change."""
    first = Loose(1.0)
    neuron = make(first)
    first.k = 2.0
    same(training(neuron), training(make(Loose(2.0))))
    with pytest.raises(AttributeError, match=r"Loose.k cannot change, .*: neuron.surrogate = \.\.\."):
        first.k = 3.0
    same(training(neuron), training(make(Loose(2.0))))


# torch.no_grad().


class Undetached(sc.Neuron):
    """It wants a value without a gradient."""

    states = {"v": 0.0}
    params = {"a": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        with self.mode():
            k = s.v * p.a
        v = k + x
        return v, {"v": v}

    mode = staticmethod(torch.no_grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)])
@pytest.mark.parametrize("grad", [True, False])
def test_no_grad_in_a_definition(mode: Any, grad: bool) -> None:
    """It is refused, whatever the mode of the caller is; by hand, on tensors, it is what it is in torch."""
    neuron = type("Undetached", (Undetached,), {"mode": staticmethod(mode)})()
    text = r"torch.no_grad\(\) in a definition is not part of the language in Undetached.dynamics"
    with torch.set_grad_enabled(grad), pytest.raises(sc.TraceError, match=text + "; write sc.ops.detach"):
        neuron(drive())
    x, v, a = (torch.tensor(1.5, requires_grad=True) for _ in range(3))
    out, _ = neuron.dynamics(x, argparse.Namespace(v=v), argparse.Namespace(a=a))
    assert torch.autograd.grad(out, (x, v), allow_unused=True) == (1.0, None)


def test_grad_mode_of_the_caller() -> None:
    """A neuron whose first call is without gradients has them later, and ``detach`` is what stops them."""

    class Detached(Undetached):
        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = sc.ops.detach(s.v * p.a) + x
            return v, {"v": v}

    neuron = Detached()
    inference(neuron)
    x = drive()
    (found,) = torch.autograd.grad(neuron(x).sum(), x)
    assert torch.equal(found, torch.ones_like(x))


def test_a_derivative_may_be_without_gradients() -> None:
    """None flows through it."""

    class Quiet(Loose):
        @torch.no_grad()
        def derivative(self, u: Any) -> Any:
            return super().derivative(u)

    same(training(sc.LIF(surrogate=Quiet(2.0))), training(sc.LIF(surrogate=Loose(2.0))))
