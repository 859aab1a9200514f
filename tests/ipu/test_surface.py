"""The backend uses nothing outside PopTorch 3.4, in the table below; and which PopTorch serves it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import poptorch_emulator
import spikecore as sc
import spikecore_ipu
import warm
from spikecore.plugins.registry import BUILTINS, Registry
from spikecore_ipu import sdk, translate

PACKAGE = Path(spikecore_ipu.__file__).parent

#: What may be used -> the arguments PopTorch 3.4 gives it, in order; None for what is no function.
#: Read off PopTorch's python/__init__.py, _poplar_executor.py, ops.py and optim.py at the tag sdk/poptorch/3.4.0.
SURFACE = {
    "poptorch.BeginBlock": ("layer_to_call", "user_id", "ipu_id"),
    "poptorch.Block": None,
    "poptorch.DataLoader": tuple(
        "options dataset batch_size shuffle num_workers drop_last persistent_workers auto_distributed_partitioning "
        "mode async_options rebatched_worker_size batch_sampler kwargs".split()
    ),
    "poptorch.Options": (),
    "poptorch.identity_loss": ("x", "reduction"),
    "poptorch.inferenceModel": ("model", "options"),
    "poptorch.optim": None,
    "poptorch.trainingModel": ("model", "options", "optimizer"),
    "executor.attachToDevice": (),
    "executor.copyWeightsToDevice": (),
    "executor.copyWeightsToHostIfNeeded": (),
    "executor.destroy": (),
    "executor.detachFromDevice": (),
    "executor.isAttachedToDevice": (),
    "executor.isCompiled": (),
    "executor.setOptimizer": ("optimizer",),
    "loader.combinedBatchSize": None,
}
#: Arguments of PopTorch's optimisers that torch's of the same name have, too.
OPTIMIZERS = {
    "SGD": "lr momentum dampening weight_decay nesterov maximize foreach differentiable",
    "Adam": "lr betas eps weight_decay amsgrad foreach maximize capturable differentiable fused",
    "AdamW": "lr betas eps weight_decay amsgrad foreach maximize capturable differentiable",
    "RMSprop": "lr alpha eps weight_decay momentum centered foreach maximize differentiable",
    "LAMB": "lr betas eps weight_decay",
}


def receiver(node: ast.expr) -> str:
    """The owner of an attribute, if it is one of PopTorch's things."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "poptorch":
        return "poptorch"
    if isinstance(node, ast.Name):
        return {"library": "poptorch", "executor": "executor", "loader": "loader"}.get(node.id, "")
    if isinstance(node, ast.Attribute) and node.attr == "executor":
        return "executor"
    return ""


def uses():
    """Every use: (where, name, the call or None)."""
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and receiver(node.value):
                where = f"{path.name}:{node.lineno}"
                yield where, f"{receiver(node.value)}.{node.attr}", calls.get(id(node))


def test_every_name_and_argument_is_poptorchs():
    for where, name, call in uses():
        assert name in SURFACE, f"{where} uses {name}"
        arguments = SURFACE[name]
        if call is None or arguments is None:
            assert (call is None) == (arguments is None) or name == "poptorch.Options", f"{where}: {name}"
            continue
        assert len(call.args) <= len(arguments), f"{where}: {name}"
        unknown = {word.arg for word in call.keywords if word.arg is not None} - set(arguments)
        assert not unknown, f"{where}: {name} has no {unknown}"


def test_the_table_has_nothing_else():
    assert {name for _, name, _ in uses()} == set(SURFACE)


def test_nothing_else_imports_it():
    """One module alone imports the SDK or the emulator."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"^\s*(import|from) poptorch", text, re.M)] == []
    assert [name for name, text in texts.items() if "import_module" in text] == ["sdk.py"]


@pytest.mark.parametrize("kind", translate.ACCEPTED)
def test_hyperparameters_are_poptorchs(kind):
    assert set(translate.ACCEPTED[kind]) <= set(OPTIMIZERS[kind.__name__].split())


@pytest.mark.parametrize("name", [name for name, arguments in SURFACE.items() if arguments is not None])
def test_the_emulator_has_it(name):
    """With PopTorch's arguments, in PopTorch's order."""
    owner, _, attribute = name.partition(".")
    found = getattr({"poptorch": poptorch_emulator, "executor": poptorch_emulator.PoplarExecutor}[owner], attribute)
    if isinstance(found, type):
        found = found.__init__  # of a generic class Python 3.8 shows another signature
    parameters = tuple(one for one in inspect.signature(found).parameters if one != "self")
    assert parameters == SURFACE[name]


def test_the_list_of_backends_says_who_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the emulator stands in for an IPU, the list says so; where nothing does, it says why."""
    for value, state, words in (("1", "ready", "the emulator on the CPU"), ("yes", "unavailable", "is neither 1")):
        monkeypatch.setenv("SPIKECORE_IPU_EMULATOR", value)
        rows = {row.name: row for row in Registry(BUILTINS, entry_points=[]).status(probe=True)}
        assert rows["ipu"].state == state
        assert words in rows["ipu"].detail


def test_without_the_emulator_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of backends and whoever asks for PopTorch name the distribution, and the command that installs it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == sdk.EMULATOR else found(name))
    asks = "SPIKECORE_IPU_EMULATOR=1 asks for the distribution poptorch-emulator, which is not installed"
    command = "pip install ./plugins/poptorch-emulator"
    row = next(row for row in Registry(BUILTINS, entry_points=[]).status(probe=True) if row.name == "ipu")
    assert row.state == "unavailable"
    assert asks in row.detail
    assert command in row.detail
    with pytest.raises(sc.backend.BackendUnavailable, match=f"{asks} .*`{command}` in a checkout"):
        sdk.poptorch()
    with pytest.raises(sc.backend.BackendUnavailable, match=f"{asks} .*`{command}` in a checkout"):
        Registry(BUILTINS, entry_points=[]).get("ipu", "a test")


def test_the_emulator_needs_nothing_of_spikecore() -> None:
    """It is a distribution of its own: importing it imports no module of spikecore, nor does it name one."""
    code = "import sys, poptorch_emulator; print([name for name in sys.modules if name.startswith('spikecore')])"
    done = warm.run("-c", code, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    folder = Path(poptorch_emulator.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "spikecore" in path.read_text(encoding="utf-8")] == []
