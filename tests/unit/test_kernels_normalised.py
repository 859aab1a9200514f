"""Batch normalisation within a kernel backend's program: two backward passes, and nothing normalised is kept."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, List, Optional

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import LAYOUTS, SHAPE, Loop, bound, image, rows, same
from spikecore._base.versions import COMPILES
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import BackwardPlan, Geometry, KernelRunner
from spikecore.kernels._batch_norm import Moments
from spikecore.lang._program import corrected, normalised
from spikecore.layers import NormNeuron, TimeBatched
from spikecore.testing._loopback import installed

C = SHAPE[1]


def norm(dtype: torch.dtype = torch.float32, **options: Any) -> nn.BatchNorm2d:
    """Batch normalisation whose scale and shift are not those it begins with."""
    made = nn.BatchNorm2d(C, **options)
    if made.affine:
        with torch.no_grad():
            made.weight.copy_(torch.linspace(0.6, 1.8, C))
            made.bias.copy_(torch.linspace(-0.2, 0.5, C))
    return made.to(dtype)


def pair(
    backend: Any = None, dtype: torch.dtype = torch.float32, shortcut: Optional[str] = None, **options: Any
) -> List[NormNeuron]:
    """The same layer as one program of the loop, and computed one after the other in float64."""
    made = [NormNeuron(norm(dtype), sc.LIF(**options), shortcut=shortcut, fused=True)]
    made.append(NormNeuron(norm(torch.float64), sc.LIF(backend="torch", **options), shortcut=shortcut, fused=False))
    bound(made[0].neuron, backend or Loop())
    return made


def results(layer: NormNeuron, x: Tensor, *skip: Tensor) -> List[Tensor]:
    """Outputs, gradients of inputs and parameters, running statistics, in float64."""
    dtype = next(layer.parameters()).dtype if layer.norm.weight.dtype == torch.float64 else x.dtype
    given = [value.to(dtype).clone().requires_grad_() for value in (x, *skip)]
    for value, like in zip(given, (x, *skip)):
        value.data = value.data.as_strided(like.shape, like.stride()) if 0 in like.stride() else value.data
    y = layer(*given)
    y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape).to(y.dtype))
    found = [y, *(value.grad for value in given), *(p.grad for p in layer.parameters()), *layer.buffers()]
    return [value.double() for value in found if value is not None]


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("T", [1, 6, 20])
@pytest.mark.parametrize("shortcut", [None, "before", "after"])
def test_one_program_computes_what_two_layers_compute(chunk: int, T: int, shortcut: Optional[str]) -> None:
    """Outputs, all gradients and running statistics are those of normalisation and neuron in float64."""
    mine, its = pair(Loop(chunk), shortcut=shortcut)
    skip = [image(T, seed=1)] if shortcut else []
    for found, wanted in zip(results(mine, image(T), *skip), results(its, image(T), *skip)):
        same(found, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same(layout: str) -> None:
    """Inputs of any strides, also those whose steps are not dense, and one step for all."""
    mine, its = pair()
    x = LAYOUTS[layout](image() * 2.0 + torch.arange(C).view(C, 1, 1))
    if layout.startswith("one number"):
        return  # nothing varies over a channel, and the gradient of its normalisation is rounding times 1 / sqrt(eps)
    for found, wanted in zip(results(mine, x), results(its, x)):
        same(found, wanted, rtol=1e-4, atol=3e-5)


def test_a_call_in_training_does_not_move_what_an_earlier_one_kept() -> None:
    """Forward in eval mode, forward in training, backward of the first: the running mean that it kept had moved."""
    found = []
    for calls in (0, 1):
        layer = pair()[0]
        # the second call of a kind goes past the checks
        for x in (image(), image().requires_grad_()):
            y = layer.eval()(x)
        layer.train()
        for _ in range(calls):
            layer(image() + 3.0)
        y.sum().backward()
        found.append((x.grad, layer.norm.weight.grad, layer.norm.bias.grad))
    assert all(torch.equal(mine, its) for mine, its in zip(*found))


@pytest.mark.parametrize("shortcut", [None, "before"])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_finite_differences(shortcut: Optional[str], training: bool) -> None:
    """In float64, of a neuron that does not fire: of the input, the shortcut, weight and bias, with batch statistics
    and with running ones.
    """
    layer = NormNeuron(norm(torch.float64), bound(sc.LI(tau=2.7), Loop(2)), shortcut=shortcut, fused=True)
    layer.train(training)
    weight, bias = layer.norm.weight, layer.norm.bias

    def computed(x: Tensor, weight: Tensor, bias: Tensor, *skip: Tensor) -> Tensor:
        return layer(x, *skip)

    x = (image(3, torch.float64)[:, :2, :, :1, :2] * 2.0 + 1.0).requires_grad_()
    skip = [image(3, torch.float64, 1)[:, :2, :, :1, :2].clone().requires_grad_()] if shortcut else []
    assert torch.autograd.gradcheck(computed, (x, weight, bias, *skip))


class Counting(Loop):
    """Notes the plans of its backward launches."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: List[BackwardPlan] = []

    def backward(self, plan: BackwardPlan) -> Any:
        launch = super().backward(plan)

        def counted(geometry: Geometry, *groups: Any) -> Any:
            self.plans.append(plan)
            return launch(geometry, *groups)

        return counted


def test_backward_is_a_pass_for_the_sums_and_one_for_the_input() -> None:
    """The first writes no gradient of an input and the second none of a parameter; without a gradient of the input
    there is one pass, and in eval mode.
    """
    backend = Counting()
    layer = pair(backend)[0]
    results(layer, image())
    assert [(plan.inputs, len(plan.learn)) for plan in backend.plans] == [((False,), 2), ((True,), 0)]
    del backend.plans[:]
    layer(image()).sum().backward()
    assert [(plan.inputs, len(plan.learn)) for plan in backend.plans] == [((False,), 2)]
    del backend.plans[:]
    results(layer.eval(), image())
    assert [(plan.inputs, len(plan.learn)) for plan in backend.plans] == [((True,), 2)]


def test_a_cotangent_is_copied_once_for_both_passes() -> None:
    """A contiguous cotangent of channels-last images: both passes read one copy of it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        """Counts copies of tensors of the cotangent's size."""

        count = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
                self.count += args[0].shape == cotangent.permute(0, 1, 3, 4, 2).shape
            return function(*args, **(kwargs or {}))

    x = LAYOUTS["channels-last"](image()).requires_grad_()
    cotangent = torch.cos(image()).contiguous()
    out = pair(Loop())[0](x)
    with Copies() as copies:
        out.backward(cotangent)
    assert copies.count == 1


class Correcting(Counting):
    """What statistics add to the gradient of the input is added by a launch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.chunk = 4

    def correction(self, spec: Spec) -> Any:
        def launch(geometry: Geometry, x: Tensor, grad: Tensor, channels: Any) -> None:
            ((inner, count),) = geometry.channels
            each = [value[(torch.arange(geometry.neurons) // inner) % count] for value in channels]
            mean, rstd, weight, to_weight, to_bias = each
            n, scale = geometry.steps * geometry.neurons / count, rstd * weight
            away = rows(x, geometry).to(spec.compute) - mean
            rest = scale * to_bias / n + away * scale * rstd * to_weight / n
            rows(grad, geometry).sub_(rest.to(grad.dtype))

        return launch


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "batch first"])
@pytest.mark.parametrize("shortcut", [None, "before"])
def test_a_backend_may_finish_the_gradient_of_the_input(
    shortcut: Optional[str], layout: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is one backward pass over the steps; results are those of two layers, of final states, too."""
    if not direct:
        monkeypatch.setattr(KernelRunner, "bind", lambda *_: None)
    backend = Correcting()
    mine, its = pair(backend, shortcut=shortcut)
    given = [LAYOUTS[layout](image(6, seed=seed)) for seed in range(2 if shortcut else 1)]
    for found, wanted in zip(results(mine, *given), results(its, *given)):
        same(found, wanted, rtol=1e-4, atol=2e-5)
    assert [(plan.inputs[0], len(plan.learn)) for plan in backend.plans] == [(True, 2)]
    mine.norm.requires_grad_(False), its.norm.requires_grad_(False)
    found = []
    for layer, dtype in ((mine, torch.float32), (its, torch.float64)):
        leaves = [value.detach().clone().to(dtype).requires_grad_() for value in given]
        out, state = layer.run(*leaves)
        (out.sum() + state["v"].square().sum()).backward()
        found.append([value.grad for value in leaves])
    for one, other in zip(*found):
        same(one.double(), other.double(), rtol=1e-4, atol=2e-5)


def test_the_input_is_all_that_is_saved() -> None:
    """Of the size of the input one tensor is saved for backward, the input itself; two layers save three or more."""
    saved: List[Tensor] = []

    def pack(value: Tensor) -> Tensor:
        saved.append(value)
        return value

    layer, plain = pair()
    for net, most in ((layer, 1), (plain.float(), 99)):
        del saved[:]
        x = image().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            net(x)
        large = [value for value in saved if value.numel() >= x.numel()]
        assert len(large) <= most
        assert any(value.data_ptr() == x.data_ptr() for value in large)


def test_one_sample_without_space_is_normalised_over_time() -> None:
    """A channel has as many numbers as there are steps; without steps there is nothing, as in two layers."""
    for steps in (5, 0):
        found = []
        for backend, fused in ((Loop(), None), (None, False)):
            neuron = sc.LIF(backend="torch") if backend is None else bound(sc.LIF(), backend)
            layer = NormNeuron(nn.BatchNorm1d(C), neuron, fused=fused)
            try:
                found.append(layer(image(5)[:steps, :1, :, 0, 0]))
            except Exception as error:
                found.append(str(error))
        assert isinstance(found[0], str) or torch.equal(*found)
        assert type(found[0]) is type(found[1])
        assert steps == 0 or layer.reason == "fused=False was asked for"


class Without(Loop):
    """A backend without the capability."""

    name = "without"
    capabilities = replace(Loop.capabilities, normalisation=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "batch first"])
@pytest.mark.parametrize("T", [1, 4, 20])
def test_mean_and_variance_are_one_pass(T: int, layout: str, dtype: torch.dtype) -> None:
    """As of float64, also of a channel whose mean is five hundred times its deviation."""
    x = LAYOUTS[layout]((image(T).double() * 2 + torch.tensor([1000.0, 3, 0, -5]).view(C, 1, 1)).to(dtype))
    mean, variance = Moments(Loop(4), Spec(dtype, T if T <= 16 else None, ()))(x)
    same(mean.double(), x.double().mean((0, 1, 3, 4)), rtol=1e-6, atol=1e-6)
    same(variance.double(), x.double().var((0, 1, 3, 4), unbiased=False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [0.0, 1e3, 1e4])
def test_moments_do_not_hang_on_one_number(first):
    """An outlier, be it the first number of its channel, costs the variance no digits."""
    x = torch.randn(2, 8, 3, 40, 40, generator=torch.Generator().manual_seed(0)) + 5
    x[0, 0, 0, 0, 0] = first
    mean, variance = Moments(Loop(4), Spec(torch.float32, 2, ()))(x)
    exact = x.double().transpose(0, 2).flatten(1)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(variance.double(), exact.var(1, unbiased=False), rtol=1e-5, atol=0)


def test_statistics_of_the_backend_move_the_running_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a runner finds mean and variance, outputs, gradients and running statistics are the same."""
    calls = []

    def found(self: KernelRunner, x: Tensor) -> Any:
        calls.append(x.shape)
        return Moments(self.kernels.backend, self.spec)(x)

    monkeypatch.setattr(KernelRunner, "moments", found)
    for options in ({}, {"momentum": None}):
        mine, its = pair()
        for layer in (mine, its):
            layer.norm.momentum = options.get("momentum", 0.1)
        for _ in range(2):
            for one, other in zip(results(mine, image()), results(its, image())):
                same(one, other, rtol=1e-4, atol=2e-5)
            mine.zero_grad(), its.zero_grad()
    assert calls == [image().shape] * 4


def test_why_two_layers_are_computed_is_said() -> None:
    """On the reference, by wish, in calls that torch traces; fused=True raises instead, in words."""
    x = image()
    layer = NormNeuron(norm(), sc.LIF(backend="torch"))
    layer(x)
    assert "computes one operation after the other" in str(layer.reason)
    layer = NormNeuron(norm(), sc.LIF(backend="torch"), fused=True)
    layer(x)
    assert layer.reason == ""
    with installed(Without) as name:
        layer = NormNeuron(norm(), sc.LIF(backend=name), fused=True)
        with pytest.raises(
            Unsupported, match=r"LIF was to normalise within its kernel \(fused=True\): backend 'without'"
        ):
            layer(x)
    assert int(layer.norm.num_batches_tracked) == 0
    layer = NormNeuron(norm(), bound(sc.LIF(), Loop()), fused=False)
    layer(x)
    assert layer.reason == "fused=False was asked for"
    layer = pair()[0]
    layer(x)
    assert layer.reason == ""
    other = NormNeuron(norm(), bound(sc.LIF(tau=torch.full((5,), 2.0), channel_dim=3), Loop()))
    other(x)
    assert other.reason == "channel_dim=3, and a parameter is a tensor"
    with pytest.raises(Unsupported, match="is no plain input of the normalisation"):
        layer(x[..., :0])  # no number to normalise over
    layer.fused = None
    assert layer(x[..., :0]).shape == x[..., :0].shape
    assert "is no plain input of the normalisation" in str(layer.reason)
    with pytest.raises(TypeError, match="fused='yes' must be True, False or None"):
        NormNeuron(norm(), sc.LIF(), fused="yes")


@pytest.mark.parametrize("options", [{"affine": False}, {"momentum": None}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_setting_means_the_same(options: Any, dtype: torch.dtype) -> None:
    """Running statistics after two calls are those of two layers, whatever the dtype of the input."""
    made = [NormNeuron(norm(**options), bound(sc.LIF(), Loop()), fused=True)]
    made.append(NormNeuron(copy.deepcopy(made[0].norm), sc.LIF(backend="torch"), fused=False))
    for seed in range(2):
        for layer in made:
            layer(image(seed=seed).to(dtype))
    for mine, its in zip(*(layer.norm.buffers() for layer in made)):
        same(mine, its)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("missing", ["weight", "bias"])
def test_weight_or_bias_may_be_missing(missing: str, training: bool) -> None:
    """As of ``nn.BatchNorm2d(C, bias=False)``, which newer versions of torch take: it once raised AttributeError."""
    made = pair()
    for layer in made:
        layer.norm.register_parameter(missing, None)
        layer.train(training)
    x = image()
    given = [x.clone().requires_grad_(), x.double().requires_grad_()]
    found = []
    for layer, value in zip(made, given):
        y = layer(value)
        y.backward(torch.linspace(-1.0, 2.0, y.numel()).view(y.shape).to(y.dtype))
        found.append([y, value.grad, *(p.grad for p in layer.parameters()), *layer.buffers()])
    assert len(found[0]) == len(found[1])
    for mine, its in zip(*found):
        same(mine.double(), its.double(), rtol=1e-4, atol=2e-5)


def test_an_eps_of_nothing_is_left_to_torch() -> None:
    """A kernel gave no spikes, in silence, where a channel is constant and where torch refuses the number."""
    layer = NormNeuron(norm(eps=0.0), sc.LIF(), fused=True)
    bound(layer.neuron, Loop())
    with pytest.raises(Unsupported, match=r"eps=0\.0 of the normalisation is not above 0"):
        layer(image())


def test_half_modules_normalise_by_float32() -> None:
    """A network that was turned into bfloat16, running statistics too."""
    made = [NormNeuron(norm().bfloat16(), bound(sc.LIF(), Loop()), fused=True)]
    made.append(NormNeuron(norm().bfloat16(), sc.LIF(backend="torch"), fused=False))
    for layer in made:
        layer(image().bfloat16())
    for mine, its in zip(*(layer.norm.buffers() for layer in made)):
        same(mine, its, rtol=1e-2, atol=1e-2)


def test_a_fused_network_on_kernels() -> None:
    """sc.fuse of a network: spikes, gradients and running statistics of the network as it was."""
    torch.manual_seed(0)
    net = nn.Sequential(
        TimeBatched(nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C)),
        sc.LIF(),
        TimeBatched(nn.Conv2d(C, C, 1), nn.BatchNorm2d(C)),
        sc.LIF(),
    )
    plain = copy.deepcopy(net)
    sc.fuse(net)
    for module in net:
        if isinstance(module, NormNeuron):
            bound(module.neuron, Loop())
    sc.set_backend(plain, "torch")
    found = []
    for each in (net, plain):
        x = image().requires_grad_()
        each(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in each.parameters()), *each.buffers()])
    assert [module.reason for module in net if isinstance(module, NormNeuron)] == ["", ""]
    for mine, its in zip(*found):
        same(mine, its, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
@pytest.mark.parametrize("shortcut", [None, "before"])
def test_compiled_calls_give_what_eager_ones_give(shortcut: Optional[str]) -> None:
    """Without a break in the graph: outputs, gradients, running statistics after two calls."""
    layers = [NormNeuron(norm(), bound(sc.LIF(), Loop()), shortcut=shortcut, fused=True) for _ in range(2)]
    torch._dynamo.reset()
    compiled = torch.compile(layers[1], backend="aot_eager", fullgraph=True)
    for seed in range(2):
        found = []
        for layer, run in zip(layers, (layers[0], compiled)):
            given = [image(seed=seed).requires_grad_(), *([image(seed=5).requires_grad_()] if shortcut else [])]
            run(*given).square().sum().backward()
            found.append([*(value.grad for value in given), *(p.grad for p in layer.parameters()), *layer.buffers()])
        for mine, its in zip(*found):
            same(mine, its, rtol=1e-4, atol=1e-5)


def test_names_of_a_neuron_are_kept_apart() -> None:
    """A neuron whose own names are those of the normalisation: its names give way."""

    class Odd(sc.Neuron):
        states = {"norm_mean": 0.0}
        params = {"norm_weight": 0.5, "skip": 0.25, "norm_grad_bias": 1.0}

        def dynamics(self, x: Any, s: Any, p: Any) -> Any:
            v = s.norm_mean * p.norm_weight + x * p.skip
            return v * p.norm_grad_bias, {"norm_mean": v}

    program, names = normalised(Odd().program, True, True)
    assert set(names).isdisjoint({"norm_mean", "norm_weight", "skip"})
    assert program.inputs == ("x", "skip_")
    assert set(corrected(program).names).isdisjoint(program.params)
    layer = NormNeuron(norm(), bound(Odd(), Loop()), shortcut="before", fused=True)
    plain = NormNeuron(norm(), Odd(backend="torch"), shortcut="before", fused=False)
    for mine, its in zip(results(layer, image(), image(seed=1)), results(plain, image(), image(seed=1))):
        same(mine, its, rtol=1e-4, atol=2e-5)


def test_the_interpreter_derives_statistics() -> None:
    """The suite's cases of normalisation run on the reference, too; it has second derivatives beside."""
    layer = NormNeuron(nn.BatchNorm2d(2).double(), sc.LI(tau=2.7, backend="torch"), fused=True)
    x = (image(2, torch.float64)[:, :2, :2, :1, :2] * 2.0).requires_grad_()
    assert torch.autograd.gradgradcheck(layer, (x,))
