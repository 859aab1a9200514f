"""What is compiled beside the network in a step that is captured: the loss and the optimiser's update."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any, Callable

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from graphed import Compiler, Rerun, failure, without_a_gpu
from spikecore._base.versions import COMPILES
from spikecore.training._form import CompiledPart, CompiledUpdate, is_usual

pytestmark = pytest.mark.skipif(not COMPILES, reason="this torch is too old to compile neurons")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """As if the network were on a GPU, and everything could be compiled."""
    made = Compiler()
    monkeypatch.setattr(torch, "compile", made)
    without_a_gpu(monkeypatch)
    return made


def _net() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Linear(6, 12), sc.layers.TimeBatched(nn.BatchNorm1d(12)), sc.LIF(backend="torch"), nn.Linear(12, 3)
    return nn.Sequential(*parts)


def _batch(i: int) -> Any:
    generator = torch.Generator().manual_seed(i)
    return torch.rand(5, 4, 6, generator=generator) * 3, torch.randint(3, (4,), generator=generator)


def _trained(net: nn.Module, options: Any = None, steps: int = 7, change: Any = None) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    made = sc.training_model(net, sc.losses.ce_count, optimizer, options=options)
    for i in range(steps):
        made(*_batch(i))
        if change is not None:
            change(i, optimizer)
    return made


FAST = sc.CudaOptions(fast=True, channels_last=False)


def _same(net: nn.Module, plain: nn.Module) -> None:
    for one, other in zip(net.state_dict().values(), plain.state_dict().values()):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "compiled"),
    [
        (FAST, {"net", "loss", "update"}),
        (sc.CudaOptions(graph=True, compile=True), {"net", "loss", "update"}),
        (sc.CudaOptions(graph=True), set()),
        (sc.CudaOptions(compile=True), {"net"}),
        (sc.TrainingOptions(compile=True), {"net"}),
        (sc.CudaOptions(fast=True, channels_last=False, graph=False), {"net"}),
        (sc.CudaOptions(fast=True, channels_last=False, compile=False), set()),
    ],
    ids=["fast", "graph", "graph-alone", "compile-alone", "eager", "fast-no-graph", "fast-no-compile"],
)
def test_they_are_compiled_with_the_network_in_a_captured_step(compiler: Compiler, options: Any, compiled: Any) -> None:
    """And not without either; the numbers are the same."""
    net, plain = _net(), _net()
    made = _trained(net, options)
    _trained(plain)
    _same(net, plain)
    assert set(compiler.called) == compiled
    assert made.form["compile"] == ("used" if compiled else "not asked for")


@pytest.mark.parametrize("name", ["loss", "update"])
def test_what_the_compiler_refuses_runs_as_it_is(compiler: Compiler, name: str) -> None:
    """Said once, with its reason, and the rest is compiled and captured."""
    compiler.raises = {name: failure("not this one\nmore")}
    net, plain = _net(), _net()
    with pytest.warns(RuntimeWarning) as told:
        made = _trained(net, FAST)
    _trained(plain)
    _same(net, plain)
    why = "torch.compile raised TorchDynamoException: not this one"
    assert made.form == {
        **dict.fromkeys(("channels_last", "pack_spikes"), "not asked for"),
        "compile": f"used, but for the {name}: {why}",
        "graph": "used",
    }
    said = [str(one.message) for one in told]
    assert said == [f"compile: the {name} runs as it is, because {why}"]
    assert compiler.called.count(name) == 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_where_the_warning_is_an_error_no_weight_has_moved(compiler: Compiler) -> None:
    """Of an update that the compiler refuses; the next step trains on."""
    compiler.raises = {"update": failure()}
    net, plain = _net(), _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    made = sc.training_model(net, sc.losses.ce_count, optimizer, options=FAST)
    stopped = []
    for i in range(7):
        before = [parameter.clone() for parameter in net.parameters()]
        try:
            made(*_batch(i))
        except RuntimeWarning:
            stopped.append(i)
            assert all(map(torch.equal, before, net.parameters()))
    assert len(stopped) == 1
    other = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    trained = sc.training_model(plain, sc.losses.ce_count, other)
    for i in range(7):
        moved = other.step
        other.step = (lambda: None) if i in stopped else moved
        trained(*_batch(i))
        other.step = moved
    _same(net, plain)


@pytest.mark.filterwarnings("error")
def test_what_the_compiler_warns_of_does_not_end_it(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where warnings are errors: of Inductor, that it splits the reductions of a softmax on a GPU (torch 2.11)."""
    plain = compiler.__call__

    def compiling(what: Callable[..., Any], **options: Any) -> Any:
        run = plain(what, **options)

        def called(*arguments: Any) -> Any:
            if "dynamic" not in options:
                text = "\nOnline softmax is disabled on the fly"
                warnings.warn_explicit(text, UserWarning, "lowering.py", 1, module="torch._inductor.lowering")
            return run(*arguments)

        return called

    monkeypatch.setattr(torch, "compile", compiling)
    assert _trained(_net(), FAST).form["compile"] == "used"
    assert "loss" in compiler.called


@pytest.mark.filterwarnings("error")
def test_what_a_loss_warns_of_is_heard(compiler: Compiler) -> None:
    """It is not the compiler's."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        warnings.warn("mine", stacklevel=1)
        return outputs.sum()

    with pytest.raises(UserWarning, match="mine"):
        CompiledPart(loss, "the loss")(torch.rand(2), torch.rand(2))


def test_an_error_of_the_loss_is_its_own(compiler: Compiler) -> None:
    """What the loss itself raises comes out as it is."""
    compiler.raises = {"loss": ZeroDivisionError("mine")}
    with pytest.raises(ZeroDivisionError, match="mine"):
        _trained(_net(), FAST)


@pytest.mark.parametrize("where", ["raises", "raises_in_backward"])
def test_a_network_that_is_not_compiled_takes_them_along(compiler: Compiler, where: str) -> None:
    """Without compilation, loss and update run as they are, and one warning says so."""
    setattr(compiler, where, {"net": failure()})
    net, plain = _net(), _net()
    with pytest.warns(RuntimeWarning) as told:
        made = _trained(net, FAST)
    _trained(plain)
    _same(net, plain)
    assert len(told) == 1
    assert made.form["compile"].startswith("left out")
    assert set(compiler.called) == {"net"}


def test_without_a_graph_they_run_as_they_are(compiler: Compiler) -> None:
    """From the step on that could not be captured."""
    net, plain = _net(), _net()
    made = _trained(net, FAST, steps=2)
    Rerun.made[-1].error = RuntimeError("operation not permitted")
    made(*_batch(2))
    before = compiler.called.count("loss")
    with pytest.warns(RuntimeWarning, match="graph is left out"):
        made(*_batch(3))
    for i in range(4, 6):
        made(*_batch(i))
    _trained(plain, steps=6)
    _same(net, plain)
    assert compiler.called.count("loss") == compiler.called.count("update") == before
    assert made.form["compile"] == "used"


def test_the_first_steps_are_not_compiled(compiler: Compiler) -> None:
    """Two steps before a capture load what it needs; what changes in every step is never compiled."""
    _trained(_net(), FAST, steps=1)
    assert set(compiler.called) == {"net"}
    _trained(_net(), FAST, steps=8, change=lambda i, optimizer: optimizer.param_groups[0].update(lr=0.1 / (i + 2)))
    assert set(compiler.called) == {"net"}


@pytest.mark.parametrize("every", [4, 5])
def test_a_hyperparameter_that_changes(compiler: Compiler, every: int) -> None:
    """A number would be compiled anew at every value: the update runs as it is from the first change on."""

    def change(i: int, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + (i + 1) // every)

    net, plain = _net(), _net()
    made = _trained(net, FAST, steps=14, change=change)
    _trained(plain, steps=14, change=change)
    _same(net, plain)
    assert "the update: lr changed; a learning rate that is to change is a tensor" in made.form["compile"]
    assert compiler.called.count("update") < 5


def test_a_loss_and_an_optimiser_may_be_replaced(compiler: Compiler) -> None:
    """As in a step that is not compiled: what the step has is what runs."""
    found = []
    for options in (FAST, None):
        net = _net()
        made = _trained(net, options, steps=3)
        inner = made._eager if options else made
        inner.loss = lambda outputs, targets: 2 * sc.losses.ce_count(outputs, targets)
        inner.optimizer = torch.optim.SGD(net.parameters(), 0.01)
        with inner.as_captured():
            inner(*_batch(3))
        found.append(net)
    _same(*found)


def test_a_step_of_the_optimisers_own_is_heard_of_later(compiler: Compiler) -> None:
    """One that the user, or another library, puts in the place of the optimiser's."""
    net = _net()
    made = _trained(net, sc.CudaOptions(graph=True, compile=True, warmup=6), steps=5)
    assert "update" in compiler.called
    kept = copy.deepcopy(net.state_dict())
    made.optimizer.step = lambda closure=None: None
    made(*_batch(5))
    assert all(
        torch.equal(kept[name], value)
        for name, value in net.state_dict().items()
        if "running" not in name and "num" not in name
    )


def test_a_copy_of_a_step_trains_the_copy(compiler: Compiler) -> None:
    """Its own network, with its own optimiser."""
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    first = sc.training_model(net, sc.losses.ce_count, optimizer, options=sc.TrainingOptions(compile=True))
    with first.as_captured():
        first(*_batch(0))
    assert "update" in compiler.called
    kept = copy.deepcopy(net.state_dict())
    compiled = first._form._update
    second = copy.deepcopy(compiled)
    assert second.function is not optimizer
    for parameter in second.function.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    second()
    assert all(torch.equal(kept[name], value) for name, value in net.state_dict().items())
    moved = second.function.param_groups[0]["params"][0]
    assert not torch.equal(moved, next(net.parameters()))


class _Own(torch.optim.Adam):
    """Of a class that is not known."""


def _hooked(parameters: Any) -> Any:
    made = torch.optim.Adam(parameters)
    made.register_step_pre_hook(lambda *arguments: None)
    return made


def _with_its_own_step(parameters: Any) -> Any:
    made = torch.optim.Adam(parameters)
    made.step = lambda closure=None: None  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.Adam(parameters, foreach=True),
        lambda parameters: torch.optim.Adam(parameters, foreach=False),
        lambda parameters: torch.optim.Adam(parameters, fused=True),
        torch.optim.Adagrad,
        _Own,
        _hooked,
        _with_its_own_step,
    ],
    ids=["foreach", "no-foreach", "fused", "Adagrad", "derived", "hooked", "own-step"],
)
def test_an_optimiser_that_was_set_up_runs_as_it_was(make: Any) -> None:
    """So does one of a class that is not known here."""
    assert not is_usual(make([nn.Parameter(torch.ones(3))]))
    assert is_usual(torch.optim.Adam([nn.Parameter(torch.ones(3))]))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_update_compiled_by_torch_itself(kind: Any, scheduled: bool) -> None:
    """No stand-in: the weights of the plain update to rounding, beside a scheduler, too."""
    weights = [nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    optimizers = [kind([weight], lr=torch.tensor(0.1), weight_decay=0.01) for weight in weights]
    schedules = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in optimizers] if scheduled else []
    update = CompiledUpdate(optimizers[0])
    assert is_usual(optimizers[0])
    for i in range(5):
        for weight in weights:
            weight.grad = torch.linspace(0, 1, 7) * (i - 1.5)
        update()
        optimizers[1].step()
        for schedule in schedules:
            schedule.step()
    torch.testing.assert_close(*weights)
    assert not update.why
    assert not torch.equal(weights[0], torch.linspace(-1, 1, 7))


def test_a_loss_compiled_by_torch_itself() -> None:
    """No stand-in: the loss and its gradient to rounding, also where warnings are errors, as here."""
    torch._dynamo.reset()
    layer, found = nn.Linear(4, 3), []
    x, targets = torch.rand(5, 8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    made = CompiledPart(sc.losses.ce_count, "the loss")
    for loss in (made, sc.losses.ce_count):
        one = copy.deepcopy(layer)
        value = loss(one(x), targets)
        value.backward()
        found.append((value.detach(), one.weight.grad))
    torch.testing.assert_close(*found)
    assert not made.why


@pytest.mark.parametrize("kind", [torch.optim.Adam, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)])
def test_as_many_updates_as_one_likes_are_compiled(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile keeps 8 results for a function, and many optimisers are of one class."""
    real, graphs = torch.compile, []

    def counting(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend=counting, **options))
    for k in range(1, 11):
        weight = nn.Parameter(torch.ones(3))
        update = CompiledUpdate(kind([weight]))
        for _ in range(3):
            weight.grad = torch.ones(3)
            update()
        # of SGD one more, for the first step makes the buffers of its momentum
        assert len(graphs) in (k, 2 * k)
        assert not update.why


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_network_leaves_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same class, for whose code torch.compile keeps 8 results; and a copy of a step compiles its own."""
    real = torch.compile

    def by_eager(function: Any, options: Any = None, **others: Any) -> Any:
        return real(function, backend="eager", **others)

    monkeypatch.setattr(torch, "compile", by_eager)
    for sizes in ([2, 3, 4, 5, 6, 7, 8, 9], [2, 3, 4]):
        net = _net()
        step_ = sc.training_model(
            net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), 0.1), options=sc.TrainingOptions(compile=True)
        )
        for size in sizes:
            step_(torch.rand(5, size, 6), torch.arange(size) % 3)
        assert step_.form["compile"] == "used"
    other = copy.deepcopy(step_)
    kept = [parameter.detach().clone() for parameter in net.parameters()]
    other(torch.rand(5, 4, 6), torch.arange(4) % 3)
    assert all(torch.equal(*pair) for pair in zip(kept, net.parameters()))
    assert not all(torch.equal(*pair) for pair in zip(kept, other.net.parameters()))


def test_a_loss_whose_numbers_change_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the compiler has made as many results as it keeps, the loss runs as it is."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="eager", **options))
    changes = {"by": ""}
    loss = CompiledPart(lambda outputs, targets: sc.losses.ce_count(outputs, targets) * len(changes["by"]), "the loss")
    x, targets = torch.rand(5, 8, 3), torch.arange(8) % 3

    def train() -> None:
        for i in range(20):
            changes["by"] = "x" * i
            torch.testing.assert_close(loss(x, targets), i * sc.losses.ce_count(x, targets))

    with pytest.warns(RuntimeWarning, match="compile: the loss runs as it is") as told:
        train()
    assert len(told) == 1
    assert "FailOnRecompileLimitHit" in loss.why or "limit" in loss.why
