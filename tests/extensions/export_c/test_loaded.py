"""Exported programs that Python calls: outputs, state, batches, types, errors."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any, Callable, Tuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spikecore as sc

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a loaded program needs a C compiler, cc")


def recurrent() -> nn.Module:
    """A hidden layer with feedback and delays, and a read-out."""
    torch.manual_seed(0)
    delayed = sc.Delay(nn.Linear(12, 12), 4, learn=())
    return nn.Sequential(nn.Linear(6, 12), sc.Recurrent(sc.LIF(), delayed), nn.Linear(12, 3), sc.LI()).eval()


def prepared(x: Tensor) -> nn.Module:
    """The same in integers of 8 and 16 bits."""
    return sc.quant.prepare(recurrent(), x).eval()


def inputs(*shape: int) -> Tensor:
    return torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(1)).float() / 4


@pytest.fixture(scope="module")
def x() -> Tensor:
    return inputs(15, 5, 6)


def outputs(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x)  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=["float32", "fixed"])
def exported(request: Any, tmp_path_factory: Any, x: Tensor) -> Tuple[Any, Tensor]:
    """A program, and the outputs of its network."""
    net = prepared(x) if request.param == "fixed" else recurrent()
    return sc.export_c(net, x, tmp_path_factory.mktemp("c"), dtype=request.param), outputs(net, x)


def test_a_stream_and_a_sequence(exported: Tuple[Any, Tensor], x: Tensor) -> None:
    """Steps, and all steps in one call, from rest and on from the state."""
    program, expected = exported
    step = program.load()
    torch.testing.assert_close(torch.stack([step(x_t) for x_t in x[:, 0]]), expected[:, 0], rtol=1e-5, atol=1e-6)
    step.reset()
    parts = torch.cat([step.run(x[:7, 0]), step.run(x[7:, 0])])
    step.reset()
    assert torch.equal(parts, step.run(x[:, 0]))
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("threads", [1, 2, 9])
def test_a_batch_has_a_state_for_each_sample(exported: Tuple[Any, Tensor], x: Tensor, threads: int) -> None:
    """NumPy arrays, more threads than samples, and a layout with gaps."""
    program, expected = exported
    step = program.load(batch=5, threads=threads)
    wide = np.repeat(x.numpy(), 2, axis=2)[:, :, ::2]
    y = step.run(wide)
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_fixed_point_has_the_bits_of_the_network(tmp_path: Path, x: Tensor) -> None:
    """Of floats that the network rounds, and of its integers; a number that int32 holds and float32 does not, too."""
    net = prepared(x)
    program = sc.export_c(net, x, tmp_path)
    y = program.load(batch=5).run(x)
    assert torch.equal(y, outputs(net, x))
    whole = (x.double() * 2.0**program.inputs.frac).round().to(torch.uint8)
    assert torch.equal(program.load(batch=5).run(whole), y)


def test_numbers_that_a_program_has_not(tmp_path: Path) -> None:
    """A program that rounds no input takes its format's numbers alone."""
    net = sc.quant.fixed(sc.LIF(), word=12, frac=8).eval()
    spikes = (inputs(4, 1, 3) > 1).float()
    program = sc.export_c(net, spikes, tmp_path, inputs=sc.quant.Format(0, 0, 1))
    step = program.load(batch=1)
    assert torch.equal(step.run(spikes), outputs(net, spikes))
    with pytest.raises(
        ValueError, match=r"numbers that are none of \[0, 1\] / 2\^0 \(0 bits\); give these, or torch.uint8"
    ):
        step.run(spikes * 0.3)
    with pytest.raises(ValueError, match="integers beyond"):
        step.run((2 * spikes).to(torch.uint8))


def test_a_program_is_what_was_exported(tmp_path: Path) -> None:
    """Whatever was exported into its folder afterwards; its outputs have the shape of the network's."""
    x = inputs(4, 2, 6)
    nets = [nn.Sequential(nn.Linear(6, width), sc.LIF(), nn.Unflatten(-1, (2, -1))).eval() for width in (4, 400)]
    programs = [sc.export_c(net, x, tmp_path, dtype="float32") for net in nets]
    for program, net in zip(programs, nets):
        torch.testing.assert_close(program.load(batch=2, threads=2).run(x), outputs(net, x))


CALLS: Tuple[Tuple[Callable[[Any], Any], type, str], ...] = (
    (lambda p: p.load()(torch.zeros(5, 6)), ValueError, r"has shape \[5, 6\] and must have \[6\]; a step has no time"),
    (lambda p: p.load().run(torch.zeros(6)), ValueError, r"has shape \[6\] and must have \[6, 6\]"),
    (
        lambda p: p.load()(torch.zeros(6).double()),
        TypeError,
        r"is torch.float64, and the program computes in float32; give that",
    ),
    (lambda p: p.load()([0.0] * 6), TypeError, "the input is a list; give a tensor on the CPU or a NumPy array"),
    (lambda p: p.load()(torch.zeros(6, device="meta")), ValueError, r"is on meta; C runs on the CPU: x.cpu\(\)"),
    (lambda p: p.load(batch=0), ValueError, "batch=0 must be a whole number, 1 or more"),
    (lambda p: p.load(threads=True), ValueError, "threads=True must be a whole number, 1 or more"),
    (lambda p: copy.deepcopy(p.load()), TypeError, "has memory of this process; load it again"),
)


@pytest.mark.parametrize(("call", "error", "text"), CALLS)
def test_errors(tmp_path: Path, call: Callable[[Any], Any], error: type, text: str) -> None:
    program = sc.export_c(recurrent(), inputs(3, 1, 6), tmp_path, dtype="float32")
    with pytest.raises(error, match=text):
        call(program)


def test_a_compiler_that_does_not_know_the_processor(
    exported: Tuple[Any, Tensor], x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its instructions, and with the same bits."""
    script = tmp_path / "plain-cc"
    script.write_text('#!/bin/sh\ncase "$*" in *march=native*) exit 1;; esac\nexec cc "$@"\n')
    script.chmod(0o755)
    y = exported[0].load(batch=5).run(x)
    monkeypatch.setenv("CC", str(script))
    assert torch.equal(exported[0].load(batch=5).run(x), y)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = sc.export_c(recurrent(), inputs(3, 1, 6), tmp_path, dtype="float32")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match="compiler 'no-such-compiler' is not on the PATH; install one, or name it"):
        program.load()
