"""Calls of a neuron that normalises: later ones skip checks and runner, and give the same bits whatever changes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Callable, Dict, List

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import spikecore as sc
from fused_layers import NEURONS, C, Moving, Slow, agree, equal, layers, norm, results
from kernel_loop import LAYOUTS, Loop, bound, image
from spikecore.backend import Unsupported
from spikecore.kernels import KernelRunner
from spikecore.layers import NormNeuron
from spikecore.layers._batch_norm_stats import BY_KERNELS

BACKENDS: Dict[str, Callable[[], Loop]] = {"torch's statistics": lambda: Loop(4), "its own": Moving}


def only_direct(monkeypatch: Any) -> None:
    """Have the runner's own way fail."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("the runner was called")

    for owner, name in ((KernelRunner, "__call__"),):
        monkeypatch.setattr(owner, name, refused)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("neuron", NEURONS)
class TestSame:
    """As through all checks, bit for bit."""

    @pytest.mark.parametrize("training", [True, False])
    def test_outputs_gradients_and_running_statistics(self, neuron: str, backend: str, training: bool) -> None:
        """Of three calls, with checkpoints and without."""
        pair = layers(neuron, backend=BACKENDS[backend])
        if not _same_statistics(backend):
            pair[1] = copy.deepcopy(pair[0])
            bound(pair[1].neuron, _slow_without())
        for layer in pair:
            layer.train(training)
        for seed, steps in enumerate((3, 6, 6)):
            agree(pair, image(steps, seed=seed))

    def test_neither_the_first_call_nor_a_later_one_takes_the_runner(
        self, neuron: str, backend: str, monkeypatch: Any
    ) -> None:
        """Forward and backward, in training and behind it; a checkpointed call so saves the same tensors each time."""
        only_direct(monkeypatch)
        layer = layers(neuron, backend=BACKENDS[backend])[0]
        for mode in (True, False):
            layer.train(mode)
            results(layer, image(6)), results(layer, image(6))
            with torch.no_grad():
                layer(image(6))


def _same_statistics(backend: str) -> bool:
    return backend == "its own"


def _slow_without() -> Slow:
    made = Slow()
    made.statistics = lambda spec: None  # type: ignore[method-assign]  # as Loop has it
    return made


@pytest.mark.parametrize("shortcut", [None, "before", "after"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if not name.startswith("one number")])
def test_every_layout_of_input_shortcut_and_cotangent(layout: str, shortcut: Any) -> None:
    """In turn with a contiguous one, whose launches they must not take."""
    pair = layers(shortcut=shortcut)
    for kind in ("contiguous", layout, "contiguous", layout):
        x = LAYOUTS[kind](image(6))
        skip = [] if shortcut is None else [LAYOUTS["contiguous" if kind == layout else layout](image(6, seed=1))]
        agree(pair, x, *skip)
        agree(pair, x, *skip, cotangent=LAYOUTS[layout](torch.cos(image(6))))


def _double(layer: NormNeuron) -> None:
    layer.double()


def _parametrized(layer: NormNeuron) -> None:
    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return 2.0 * value

    layer.neuron.tau = torch.full((C,), 1.25)
    parametrize.register_parametrization(layer.neuron, "tau", Twice(), unsafe=True)


def _in_place(tensor: Callable[[NormNeuron], Tensor]) -> Callable[[NormNeuron], None]:
    def change(layer: NormNeuron) -> None:
        with torch.no_grad():
            tensor(layer).mul_(1.5).add_(0.25)

    return change


def _set(path: str, value: Callable[[], Any]) -> Callable[[NormNeuron], None]:
    def change(layer: NormNeuron) -> None:
        owner, _, name = path.rpartition(".")
        setattr(layer.get_submodule(owner) if owner else layer, name, value())

    return change


def _register(name: str, value: Any) -> Callable[[NormNeuron], None]:
    return lambda layer: layer.norm.register_parameter(name, value)


def _weight_of(layer: NormNeuron) -> Any:
    return layer.norm.weight


#: What may change between two calls; each is made to both layers after two calls.
CHANGES: Dict[str, Callable[[NormNeuron], Any]] = {
    "weight in place": _in_place(_weight_of),
    "bias in place": _in_place(lambda layer: layer.norm.bias),
    "mean in place": _in_place(lambda layer: layer.norm.running_mean),
    "variance in place": _in_place(lambda layer: layer.norm.running_var),
    "weight another": _set("norm.weight", lambda: nn.Parameter(torch.linspace(2.0, 1.0, C))),
    "weight by data": lambda layer: setattr(_weight_of(layer), "data", torch.linspace(2.0, 1.0, C)),
    "weight with gaps": lambda layer: setattr(_weight_of(layer), "data", torch.linspace(2.0, 1.0, 2 * C)[::2]),
    "weight frozen": lambda layer: _weight_of(layer).requires_grad_(False),
    "bias frozen": lambda layer: layer.norm.bias.requires_grad_(False),
    "all frozen": lambda layer: layer.requires_grad_(False),
    "weight away": _register("weight", None),
    "bias away": _register("bias", None),
    "weight and bias away": lambda layer: (_register("weight", None)(layer), _register("bias", None)(layer)),
    "mean another": _set("norm.running_mean", lambda: torch.ones(C)),
    "variance another": _set("norm.running_var", lambda: torch.full((C,), 3.0)),
    "variance with gaps": _set("norm.running_var", lambda: torch.linspace(1.0, 2.0, 2 * C)[::2]),
    "count away": _set("norm.num_batches_tracked", lambda: None),
    "statistics away": lambda layer: (
        setattr(layer.norm, "running_mean", None),
        setattr(layer.norm, "running_var", None),
    ),
    "statistics reset": lambda layer: layer.norm.reset_running_stats(),
    "not tracked": _set("norm.track_running_stats", lambda: False),
    "momentum": _set("norm.momentum", lambda: 0.6),
    "momentum none": _set("norm.momentum", lambda: None),
    "eps": _set("norm.eps", lambda: 0.3),
    "eval": lambda layer: layer.eval(),
    "norm in eval": lambda layer: layer.norm.eval(),
    "neuron in eval": lambda layer: layer.neuron.eval(),
    "another norm": _set("norm", lambda: norm(eps=0.2)),
    "loaded": lambda layer: layer.norm.load_state_dict(norm().state_dict()),
    "double": _double,
    "bfloat16": lambda layer: layer.bfloat16(),
    "half norm": lambda layer: layer.norm.half(),
    "half statistics": lambda layer: layer.norm.register_buffer("running_mean", torch.ones(C).half()),
    "fused False": _set("fused", lambda: False),
    "threshold": _set("neuron.threshold", lambda: 0.4),
    "tau a tensor": _set("neuron.tau", lambda: torch.linspace(1.5, 2.5, C)),
    "tau parametrized": _parametrized,
    "surrogate": _set("neuron.surrogate", sc.surrogate.Sigmoid),
    "surrogate's number": _set("neuron.surrogate", lambda: sc.surrogate.ATan(alpha=5.0)),
    "detach_reset": _set("neuron.detach_reset", lambda: True),
    "step": _set("neuron.step", lambda: "single"),
}


def test_calls_are_counted_without_running_statistics() -> None:
    """As torch counts them, in each of the ways to find the statistics."""
    direct, slow = layers()
    plain = norm()
    for one in (direct.norm, slow.norm, plain):
        one.running_mean = one.running_var = None
    for _ in range(3):
        direct(image(6)), slow(image(6)), plain(image(6).flatten(0, 1))
    assert [int(one.num_batches_tracked) for one in (direct.norm, slow.norm, plain)] == [3, 3, 3]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_calls_counts_at_the_next_one(change: str, training: bool) -> None:
    """Numbers, gradients and running statistics are those of a layer whose calls go through every check."""
    pair = layers()
    for layer in pair:
        layer.train(training)
    for _ in range(2):
        agree(pair, image(6))
    for layer in pair:
        CHANGES[change](layer)
    if change.startswith("half"):
        return _refused_alike(pair)
    x = image(6) if change != "step" else image(6)[0]
    x = x.double() if change == "double" else x.bfloat16() if change == "bfloat16" else x
    for seed in range(2):
        agree(pair, x + seed)
        for layer in pair:
            sc.reset(layer)
    return None


def _refused_alike(pair: List[NormNeuron]) -> None:
    """Of float32 input torch takes no batch normalisation in float16."""
    said = []
    for layer in pair:
        with pytest.raises((RuntimeError, ValueError)) as error:
            layer(image(6))
        said.append(str(error.value))
    assert said[0] == said[1]


#: Other inputs than those of the calls before.
INPUTS: Dict[str, Callable[[Tensor], Tensor]] = {
    "steps": lambda x: x[:2],
    "many steps": lambda x: torch.cat([x] * 4),
    "one step": lambda x: x[:1],
    "batch": lambda x: x[:, :2],
    "size": lambda x: x[..., :3],
    "unaligned": LAYOUTS["unaligned"],
    "negated": lambda x: torch.complex(-x, -x).conj().imag,
    "bfloat16": lambda x: x.bfloat16(),
    "no gradient": lambda x: x,
}


@pytest.mark.parametrize("neuron", ["numbers", "channels"])
@pytest.mark.parametrize("change", INPUTS)
def test_another_input_is_computed_as_it_is(change: str, neuron: str) -> None:
    """Then the first kind again."""
    pair = layers(neuron)
    agree(pair, image(6))
    for _ in range(2):
        agree(pair, INPUTS[change](image(6)), grad=change != "no gradient")
        agree(pair, image(6))


@pytest.mark.parametrize("neuron", ["numbers", "channels"])
def test_gradients_after_calls_without(neuron: str) -> None:
    """A call without a graph says nothing about who learns; nor does one whose input, or weight, needs no gradient."""
    pair = layers(neuron, "before")
    x, skip = image(6), image(6, seed=1)
    for layer in pair:
        with torch.no_grad():
            layer(x, skip)
    agree(pair, x, skip, grad=False)
    agree(pair, x, skip)
    for wanted in (0, 1):
        found = []
        for layer in pair:
            given = [value.clone().requires_grad_(k == wanted) for k, value in enumerate((x, skip))]
            layer(*given).square().sum().backward()
            found.append([value.grad for value in given])
        equal(*found)


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("training", [True, False])
def test_one_that_learns_after_calls_in_which_nothing_did(name: str, training: bool) -> None:
    """Weight or bias alone gets its gradient, of an input that needs none."""
    pair = layers()
    for layer in pair:
        layer.requires_grad_(False).train(training)
    agree(pair, image(6), grad=False)
    for layer in pair:
        getattr(layer.norm, name).requires_grad_()
        assert layer(image(6)).requires_grad
    agree(pair, image(6), grad=False)
    agree(pair, image(6))


def test_a_backend_without_gradients_is_asked_for_none() -> None:
    """Of the input and of the shortcut, after calls that wanted none."""

    class Forward(Moving):
        capabilities = replace(Loop.capabilities, gradients=False, parameter_gradients=False)

    layer = layers(shortcut="before", backend=Forward)[0].requires_grad_(False)
    x, skip = image(6), image(6, seed=1)
    layer(x, skip)
    for given in ((x.clone().requires_grad_(), skip), (x, skip.clone().requires_grad_())):
        with pytest.raises(Unsupported, match="does not support gradients"):
            layer(*given)
        layer(x, skip)
        assert layer.reason == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_shortcut_of_another_dtype_or_device(dtype: torch.dtype) -> None:
    """After a call whose shortcut was as the input: kernels read the memory of both in the same way."""
    pair = layers(shortcut="before")
    x, skip = image(6), image(6, seed=1)
    agree(pair, x, skip)
    equal(*[[layer(x, skip.to(dtype))] for layer in pair])
    for layer in pair:
        with pytest.raises(ValueError, match="skip is on meta and x is on cpu"):
            layer(x, skip.to("meta"))


def test_a_wrong_input_is_refused_as_before() -> None:
    """Other channels, other dimensions, an empty one, one number per channel."""
    pair = layers()
    agree(pair, image(6))
    for x in (
        image(6).double(),
        image(6)[:, :, :2],
        image(6)[..., 0],
        image(6)[:0],
        image(6)[:, :0],
        image(6)[:1, :1, :, :1, :1],
    ):
        said = []
        for layer in pair:
            try:
                said.append(str(layer(x).shape))
            except Exception as error:
                said.append(str(error))
        assert said[0] == said[1]


def test_a_norm_of_another_number_of_dimensions_is_refused() -> None:
    """In the place of one that took such inputs before; torch says so."""
    pair = layers()
    agree(pair, image(6))
    for layer in pair:
        layer.norm = nn.BatchNorm1d(C)
        with pytest.raises(ValueError, match="expected 2D or 3D input"):
            layer(image(6))


class Gained(sc.Neuron):
    """What its definition reads can change without being set."""

    states = {"v": 0.0}
    params = {"threshold": 1.0}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gains = [1.0]

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v * 0.5 + x * self.gains[0]
        z = self.spike(h - p.threshold)
        return z, {"v": h - z}


def test_a_definition_that_is_traced_again() -> None:
    """A list that is written to between two calls."""
    found = []
    for backend in (Moving(), Slow()):
        layer = NormNeuron(norm(), bound(Gained(), backend))
        first, _ = layer(image(6)), layer(image(6))
        layer.neuron.gains[0] = 3.0
        layer.neuron.retrace()
        found.append([first, layer(image(6)), *layer.buffers()])
    equal(*found)
    assert not torch.equal(*found[0][:2])


class TestAround:
    """What is around a call."""

    def test_autocast(self) -> None:
        """It leaves normalisation and neuron as they are."""
        pair = layers()
        agree(pair, image(6).bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            agree(pair, image(6).bfloat16())
            agree(pair, image(6))

    def test_carried_and_given_states_and_records(self) -> None:
        """Calls that ask for more than outputs, in turn with others."""
        pair = layers()
        for _ in range(2):
            agree(pair, image(6))
            found = []
            for layer in pair:
                out, state, trace = layer.run(image(6), record=("v",))
                again, _ = layer.run(image(6), state=state)
                with sc.carry_state(layer):
                    carried = [layer(image(6)), layer(image(6))]
                found.append([out, state["v"], trace["v"], again, *carried])
            equal(*found)

    def test_a_repeated_step_is_normalised_once(self) -> None:
        """With ``repeat`` a neuron takes one step, which is no call of this kind."""
        pair = layers()
        agree(pair, image(6))
        for layer in pair:
            layer.neuron.repeat = 6
        found = [[layer(image(6)[0]), *layer.buffers()] for layer in pair]
        equal(*found)

    def test_parameters_of_a_functional_call(self) -> None:
        """They are those of its call alone."""
        pair = layers()
        agree(pair, image(6))
        other = {"norm.weight": torch.full((C,), 2.0), "norm.bias": torch.zeros(C)}
        equal(*([torch.func.functional_call(layer, other, (image(6),))] for layer in pair))
        agree(pair, image(6))

    def test_transforms_are_refused_or_followed_as_before(self) -> None:
        """vmap and grad of torch.func go the way of every call."""
        pair = layers()
        agree(pair, image(6))
        said = []
        for layer in pair:
            try:
                said.append(torch.func.grad(lambda x, layer=layer: layer.eval()(x).sum())(image(6)))
            except Exception as error:
                said.append(str(error))
        assert type(said[0]) is type(said[1])
        assert torch.equal(*said) if isinstance(said[0], Tensor) else said[0] == said[1]

    def test_hooks_of_the_layer_are_called(self) -> None:
        """And those of tensors; norm and neuron are not called, and neither are their hooks."""
        layer = layers()[0]
        results(layer, image(6))
        seen: List[str] = []
        layer.register_forward_hook(lambda *_: seen.append("layer"))
        layer.neuron.register_forward_hook(lambda *_: seen.append("neuron"))
        x = image(6).requires_grad_()
        x.register_hook(lambda _: seen.append("x"))
        layer(x).sum().backward()
        assert seen == ["layer", "x"]

    def test_copies_and_other_backends(self) -> None:
        """A copy goes on by its own parameters; a neuron bound anew asks the new backend."""
        layer = layers()[0]
        results(layer, image(6))
        copied = copy.deepcopy(layer)
        bound(copied.neuron, Moving())
        with torch.no_grad():
            copied.norm.bias.fill_(-100.0)
        assert copied(image(6)).sum() == 0
        assert layer(image(6)).sum() > 0
        before = layer.neuron.bound["cpu"].backend.moves
        layer.neuron.backend = "torch"
        layer(image(6))
        assert before == 2 * BY_KERNELS

    def test_a_checkpointed_call_is_computed_again_by_the_same_launches(self) -> None:
        """torch.utils.checkpoint compares what is saved."""
        from torch.utils.checkpoint import checkpoint

        layer = layers()[0]
        x = image(6).requires_grad_()
        checkpoint(layer, x, use_reentrant=False).sum().backward()
        found, x.grad = x.grad, None
        layer(x).sum().backward()
        assert torch.equal(x.grad, found)


@pytest.mark.parametrize("widths", [(4, 8), (8, 4)])
def test_one_neuron_behind_norms_of_other_widths(widths: Any) -> None:
    """Each layer, and one that gets another norm, gives what a fresh one gives, on the backend of kernels."""
    neuron = bound(sc.LIF(2.0), Loop(4))
    layer = NormNeuron(nn.BatchNorm2d(widths[0]), neuron)
    for width in widths:
        layer.norm = nn.BatchNorm2d(width)
        x = torch.randn(3, 2, width, 3, 2, generator=torch.Generator().manual_seed(width)) * 2
        fresh = NormNeuron(nn.BatchNorm2d(width), bound(sc.LIF(2.0), Loop(4)))
        assert all(torch.equal(layer(x), fresh(x)) for _ in range(2))
    layer.norm.eps = 0.0
    with pytest.raises(ValueError, match="eps"):
        layer(x)
