"""What is compiled beside the network in a step that is captured: the loss and the optimiser's update."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Optional

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from graphed import Rerun
from spikecore.training import _models
from spikecore.training._compiling import Update, update_of
from spikecore.training._cuda_graph import facts, step

pytestmark = pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_compiling"), reason="this torch is too old to compile neurons"
)


def _failure(text: str = "no compiler here") -> Exception:
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException(text)


class Compiler:
    """Stands for torch.compile: the names of what it was given, and what it raises, by these."""

    def __init__(self) -> None:
        self.given: List[str] = []
        self.called: List[str] = []
        self.raises: Any = {}
        self.in_backward: Optional[str] = None

    def __call__(self, what: Callable[..., Any], **options: Any) -> Any:
        # the loss is made before the update
        name = "net" if isinstance(what, nn.Module) else "update" if "loss" in self.given else "loss"
        self.given.append(name)

        def run(*arguments: Any) -> Any:
            self.called.append(name)
            if name in self.raises:
                raise self.raises[name]
            found = what(*arguments)
            if name == self.in_backward:
                found.register_hook(self._raise)
            return found

        return run

    def _raise(self, grad: Tensor) -> None:
        raise _failure("no backward here")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """As if the network were on a GPU, and everything could be compiled."""
    made = Compiler()
    monkeypatch.setattr(torch, "compile", made)
    monkeypatch.setattr(_models, "_check_fast", lambda net, options: None)
    monkeypatch.setattr(step, "Capture", Rerun)
    monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
    monkeypatch.setattr(Rerun, "made", [])
    return made


def _net() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Linear(6, 12), sc.layers.TimeBatched(nn.BatchNorm1d(12)), sc.LIF(backend="torch"), nn.Linear(12, 3)
    return nn.Sequential(*parts)


def _trained(net: nn.Module, options: Any = None, steps: int = 7, change: Any = None) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    made = sc.training_model(net, sc.losses.ce_count, optimizer, options=options)
    for i in range(steps):
        generator = torch.Generator().manual_seed(i)
        made(torch.rand(5, 4, 6, generator=generator) * 3, torch.randint(3, (4,), generator=generator))
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
    compiler.raises = {name: _failure("not this one\nmore")}
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


def test_both_are_named(compiler: Compiler) -> None:
    """In ``form``."""
    compiler.raises = {"loss": _failure("one"), "update": _failure("two")}
    with pytest.warns(RuntimeWarning):
        made = _trained(_net(), FAST)
    raised = "torch.compile raised TorchDynamoException"
    assert made.form["compile"] == f"used, but for the loss: {raised}: one; the update: {raised}: two"


def test_an_error_of_the_loss_is_its_own(compiler: Compiler) -> None:
    """What the loss itself raises comes out as it is."""
    compiler.raises = {"loss": ZeroDivisionError("mine")}
    with pytest.raises(ZeroDivisionError, match="mine"):
        _trained(_net(), FAST)


def test_a_failure_in_backward_leaves_the_loss_out_first(compiler: Compiler) -> None:
    """And the network compiled; running statistics move once."""
    compiler.in_backward = "loss"
    net, plain = _net(), _net()
    with pytest.warns(RuntimeWarning, match="compile: the loss runs as it is, because .*no backward here"):
        made = _trained(net, FAST)
    _trained(plain)
    _same(net, plain)
    assert made.form["compile"].startswith("used, but for the loss")
    assert compiler.called.count("net") > 2


def test_a_network_that_is_not_compiled_takes_them_along(compiler: Compiler) -> None:
    """Without compilation, loss and update run as they are, and one warning says so."""
    compiler.raises = {"net": _failure()}
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
    generators = [torch.Generator().manual_seed(i) for i in range(2, 6)]
    batches = [(torch.rand(5, 4, 6, generator=g) * 3, torch.randint(3, (4,), generator=g)) for g in generators]
    made(*batches[0])
    before = compiler.called.count("loss")
    with pytest.warns(RuntimeWarning, match="graph is left out"):
        made(*batches[1])
    for one in batches[2:]:
        made(*one)
    _trained(plain, steps=6)
    _same(net, plain)
    assert compiler.called.count("loss") == compiler.called.count("update") == before
    assert made.form["compile"] == "used"


def test_a_hyperparameter_that_changes(compiler: Compiler) -> None:
    """A number would be compiled anew at every value: the update runs as it is from the first change on."""

    def change(i: int, optimizer: Any) -> None:
        if i == 3:
            optimizer.param_groups[0]["lr"] = 0.05

    net, plain = _net(), _net()
    with pytest.warns(RuntimeWarning, match=r"the update runs as it is, because lr changed; .*lr=torch.tensor"):
        made = _trained(net, FAST, steps=9, change=change)
    _trained(plain, steps=9, change=change)
    _same(net, plain)
    assert "the update: lr changed" in made.form["compile"]


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
    assert update_of(make([nn.Parameter(torch.ones(3))])) is None


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_update_compiled_by_torch_itself(kind: Any, scheduled: bool) -> None:
    """No stand-in: the weights of the plain update to rounding, beside a scheduler, too."""
    torch._dynamo.reset()
    weights = [nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    optimizers = [kind([weight], lr=torch.tensor(0.1), weight_decay=0.01) for weight in weights]
    schedules = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in optimizers] if scheduled else []
    update = update_of(optimizers[0])
    assert isinstance(update, Update)
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
    from spikecore.training._compiling import Compiled

    torch._dynamo.reset()
    layer, found = nn.Linear(4, 3), []
    x, targets = torch.rand(5, 8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    made = Compiled(sc.losses.ce_count)
    for loss in (made, sc.losses.ce_count):
        one = copy.deepcopy(layer)
        value = loss(one(x), targets)
        value.backward()
        found.append((value.detach(), one.weight.grad))
    torch.testing.assert_close(*found)
    assert not made.why
