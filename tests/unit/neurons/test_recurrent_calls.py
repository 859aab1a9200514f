"""Recurrent: which calls are one call of the backend, and which are a loop over the steps, with the same results."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrize

import spikecore as sc
from spikecore.testing._loopback import EVERYTHING, Loopback, installed

T, B, C = 8, 3, 4


def layer(linear: Any = None, neuron: Any = None, **options: Any) -> Any:
    """A recurrent layer in float64 that is always the same."""
    torch.manual_seed(0)
    return sc.Recurrent(neuron or sc.LIF(1.7), linear or nn.Linear(C, C), **options).double()


def drawn(*shape: int) -> torch.Tensor:
    """Normal numbers around 0.5."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5


class Masked(nn.Module):
    """The lower triangle."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.tril()


class Scaled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().forward(x)


class Called(nn.Linear):
    """A layer whose call does more than its forward."""

    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x) * 2


#: One of the name of nn.Linear, as quantised layers have.
Linear = type("Linear", (Scaled,), {"__module__": "quantised"})
#: Why a module is called step by step.
IS_NO_LINEAR = "linear is {}, and one call takes the forward of nn.Linear only"


class Renamed(nn.Linear):
    """A layer with the forward of nn.Linear."""


class Own(sc.LIF):
    """A neuron whose run does something else."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return super().run(*args, **kwargs)


def hooked() -> nn.Module:
    linear = nn.Linear(C, C)
    linear.register_forward_hook(lambda module, args, out: out * 2)
    return linear


def patched() -> nn.Module:
    linear = nn.Linear(C, C)
    forward = linear.forward
    linear.forward = lambda x: forward(x) * 2  # type: ignore[method-assign]
    return linear


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (lambda: layer(nn.Identity()), IS_NO_LINEAR.format("torch.nn.modules.linear.Identity")),
        (lambda: layer(nn.Conv1d(C, C, 1)), IS_NO_LINEAR.format("torch.nn.modules.conv.Conv1d")),
        (lambda: layer(Scaled(C, C)), IS_NO_LINEAR.format(f"{__name__}.Scaled")),
        (lambda: layer(Called(C, C)), IS_NO_LINEAR.format(f"{__name__}.Called")),
        (lambda: layer(Linear(C, C)), IS_NO_LINEAR.format("quantised.Linear")),
        (lambda: layer(patched()), "linear has a forward of its own"),
        (lambda: layer(hooked()), "linear has hooks, which are called at every step"),
        (lambda: layer(nn.utils.spectral_norm(nn.Linear(C, C))), "linear has hooks, which are called at every step"),
        (lambda: layer(neuron=Own(1.7)), "Own has a run() of its own"),
        (lambda: layer(fused=False), "fused=False was asked for"),
    ],
)
def test_what_no_matrix_can_be_is_a_loop(net: Any, says: str) -> None:
    """It says so, and where one call was asked for it is refused."""
    made = net()
    x = drawn(T, C, B) if isinstance(made.linear, nn.Conv1d) else drawn(T, B, C)
    out = made(x)
    assert (made.looped, out.shape) == (says, x.shape)
    assert f"steps=a loop ({says})" in repr(made)
    if made.fused is None:
        made.fused = True
        with pytest.raises(sc.Unsupported) as told:
            made(x)
        assert str(told.value) == f"Recurrent was to run all steps in one call (fused=True): {says}"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_weights_are_a_loop() -> None:
    """Kernels read memory by strides, which a sparse weight has none of; torch multiplies by it."""
    dense, sparse = layer(fused=False), layer()
    weight = dense.linear.weight.detach().tril()
    dense.linear.weight = nn.Parameter(weight)
    sparse.linear.weight = nn.Parameter(weight.to_sparse_csr())
    x = drawn(T, B, C)
    assert torch.allclose(sparse(x), dense(x), rtol=1e-12, atol=1e-12)
    assert sparse.looped == "weight, bias, state or x is sparse, or has no strides"


def test_hooks_of_all_modules_are_called_at_every_step() -> None:
    """Those that torch calls for every module, of whatever kind."""
    seen = []

    def hook(module: nn.Module, *_: Any) -> None:
        seen.append(type(module))

    net = layer()
    for register in (register_module_forward_hook, register_module_forward_pre_hook):
        seen.clear()
        handle = register(hook)
        try:
            net(drawn(T, B, C))
        finally:
            handle.remove()
        assert seen.count(nn.Linear) == T
        assert net.looped == "linear has hooks, which are called at every step"
    net(drawn(T, B, C))
    assert net.looped == ""


def test_one_call_in_the_models_of_training_and_inference() -> None:
    """Nothing in them keeps the layer from it."""
    x = drawn(T, B, C)
    out = layer(fused=False)(x)
    assert torch.equal(sc.inference_model(layer(fused=True))(x), out)
    trained = layer(fused=True)
    step = sc.training_model(trained, nn.MSELoss(), torch.optim.SGD(trained.parameters(), 0.1))
    step(x, torch.zeros_like(out))
    assert trained.looped == ""


def test_one_call_says_so() -> None:
    """Before a call nothing is known; after it, in repr and in an explanation."""
    net = layer()
    assert net.looped is None
    assert "steps" not in repr(net)
    net(drawn(T, B, C))
    assert net.looped == ""
    assert "steps=one call" in repr(net)
    assert "fused=True, steps=one call" in repr(copy.deepcopy(layer_called(fused=True)))
    (seen,) = sc.explain(layer(neuron=sc.LIF(backend="torch")), drawn(T, B, C)).layers
    assert seen.reason.endswith("; all steps in one call")
    (seen,) = sc.explain(layer(nn.Identity(), neuron=sc.LIF(backend="torch")), drawn(T, B, C)).layers
    assert seen.reason.endswith("linear.Identity, and one call takes the forward of nn.Linear only")


def layer_called(**options: Any) -> Any:
    net = layer(**options)
    net(drawn(T, B, C))
    return net


def test_a_backend_without_it_is_given_single_steps() -> None:
    """The loop computes, and one call is refused by name."""

    class Plain(Loopback):
        name = "plain"
        capabilities = replace(EVERYTHING, recurrent=False)

    x = drawn(T, B, C)
    with installed(Plain) as name:
        net = layer(neuron=sc.LIF(1.7, backend=name))
        assert torch.equal(net(x), layer()(x))
        assert net.looped == "backend 'plain' does not declare recurrent"
        net.fused = True
        with pytest.raises(sc.Unsupported, match="backend 'plain' does not declare recurrent$"):
            net(x)


@pytest.mark.parametrize("name", ["record", "parameter_gradients"])
def test_a_backend_that_does_less_in_one_call_is_given_single_steps(name: str) -> None:
    """What the loop does without, a record or the gradient of the matrix, is asked of no backend."""

    class Less(Loopback):
        capabilities = replace(EVERYTHING, **{name: False})

    Less.name = f"less_{name}"
    x = drawn(T, B, C)
    with installed(Less) as less:
        net = layer(neuron=sc.LIF(1.7, backend=less))
        with torch.no_grad():
            net(x)
            assert net.looped == ""
            found = net.run(x, record=("v",))[2]["v"]
        if name == "parameter_gradients":
            assert net.looped == ""
            net(x).sum().backward()
        assert net.looped == f"backend {less!r} does not declare {name}"
    other = layer()
    assert torch.equal(found, other.run(x, record=("v",))[2]["v"])
    other(x).sum().backward()
    if name == "parameter_gradients":
        torch.testing.assert_close(net.linear.weight.grad, other.linear.weight.grad)


def test_a_module_pickled_before_there_was_a_choice() -> None:
    """It has neither ``fused`` nor a reason."""
    net = layer()
    del net.__dict__["fused"]
    net = pickle.loads(pickle.dumps(net))
    assert (net.fused, net.looped) == (None, None)
    assert torch.equal(net(drawn(T, B, C)), layer()(drawn(T, B, C)))
    assert net.looped == ""


def test_both_ways_have_the_same_numbers() -> None:
    """Outputs, state, trace and gradients, from rest and from a state."""
    x = drawn(T, B, C)
    for state in (None, {"v": drawn(B, C), "a": drawn(B, C), "feedback": (drawn(B, C) > 0.5).double()}):
        found = []
        for fused in (True, False):
            net = layer(neuron=sc.ALIF(learn=("rho",)), fused=fused)
            out, end, trace = net.run(x, state=state, record=("a",))
            (out.sum() + end["feedback"].sum() * 2 + end["v"].sum() + trace["a"].square().sum()).backward()
            found.append([out, *end.values(), trace["a"], *(p.grad for p in net.parameters())])
        torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-13)
        assert torch.equal(found[0][0], found[1][0])


def test_a_parametrisation_is_computed_once_a_call() -> None:
    """And its gradient flows to what it is computed from."""
    calls = []

    class Counted(Masked):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return super().forward(weight)

    linear = nn.Linear(C, C)
    net = layer(linear)
    parametrize.register_parametrization(linear, "weight", Counted())
    calls.clear()
    net(drawn(T, B, C)).sum().backward()
    assert (net.looped, len(calls)) == ("", 1)
    grad = linear.parametrizations.weight.original.grad
    assert grad.tril().any()
    assert not grad.triu(1).any()


def test_second_derivatives_of_the_reference() -> None:
    """By the reference they are right, against finite differences."""
    net, x = layer(neuron=sc.LI(2.0)), drawn(3, 2, C).requires_grad_()
    weight = net.linear.weight

    def called(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return net(x).square()

    assert torch.autograd.gradcheck(called, (x, weight))
    assert torch.autograd.gradgradcheck(called, (x, weight))
    assert net.looped == ""


def test_dtypes_that_do_not_fit_are_left_to_the_loop() -> None:
    """Where torch multiplies, it is its product; where it does not, it is its error."""
    net = layer()
    with pytest.raises(RuntimeError, match="dtype"):
        net(drawn(T, B, C).float())
    assert net.looped == "the weight is torch.float64 and x is torch.float32"
    single = layer().float()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="dtype"):
        single(drawn(T, B, C))
    assert single.looped == "the weight is torch.float32 and x is torch.float64"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = single(drawn(T, B, C).float())
        single.fused = False
        assert torch.equal(single(drawn(T, B, C).float()), out)
    assert out.dtype == torch.float32
    single.fused = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        single(drawn(T, B, C).float())
    assert single.looped == ""


def test_transforms_and_traces_take_the_loop() -> None:
    """torch.func and torch.jit.trace follow operations of torch."""
    net, x = layer(neuron=sc.LI(2.0)), drawn(T, B, C)
    grad = torch.func.grad(lambda x: net(x).square().sum())(x)
    assert net.looped is not None
    assert net.looped.startswith("torch traces or transforms the call")
    leaf = x.clone().requires_grad_()
    net(leaf).square().sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(grad, leaf.grad)


def test_fused_is_checked() -> None:
    """Where it is given and where it is set."""
    with pytest.raises(TypeError, match="^Recurrent: fused='yes' must be True or False$"):
        layer(fused="yes")
    net = layer()
    with pytest.raises(TypeError, match="^Recurrent: fused=1 must be True or False$"):
        net.fused = 1


def test_a_subclass_with_the_forward_of_linear_is_one_call() -> None:
    """Whatever else it has."""
    mine, usual = layer(Renamed(C, C)), layer()
    usual.load_state_dict(mine.state_dict())
    x = drawn(T, B, C)
    assert torch.equal(mine(x), usual(x))
    assert mine.looped == ""


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.LSTMCell])
def test_what_gives_a_tuple_is_refused(kind: Any) -> None:
    """torch's recurrent layers have a state of their own; the error spoke of a tuple without a shape."""
    says = rf"^Recurrent: linear, a {kind.__name__}, gives a tuple; give a module without state that makes a tensor"
    with pytest.raises(TypeError, match=says):
        layer(kind(C, C))(drawn(T, B, C))
