"""Requests to the machine's compiler, and errors where it cannot do them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

import spikecore as sc
import spikecore_c
from kernel_names import assert_like_torch
from spikecore.backend import BackendError, Spec
from spikecore.kernels import ForwardPlan
from spikecore.kernels.c_writer import printed
from spikecore.lang.dialects import C11, WORDS
from spikecore.testing.naming import ROLES, namings, usable
from spikecore_c.building import built


class Uses(sc.Neuron):
    """Every function that C's library lacks, and names that C has or that the kernel has."""

    states = {"steps": 0.0, "short": 0.5}
    params = {"signed": 2.0}

    def dynamics(self, x, s, p):
        i = sc.ops.sigmoid(x) + sc.ops.softplus(s.steps) * sc.ops.sign(x)
        t = sc.ops.clamp(sc.ops.minimum(i, s.short), -1.0, p.signed)
        return sc.ops.maximum(t, x), {"steps": t, "short": s.steps}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_warning(tmp_path: Path, dtype: torch.dtype) -> None:
    """A kernel compiles without a warning, whatever the names of its values."""
    program = Uses().program
    text = printed(C11, ForwardPlan(program, Spec(dtype, None, ("number",) * len(program.params)))).text
    (tmp_path / "kernel.c").write_text(text)
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-c", "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(
        [spikecore_c.compiler(), *options, str(tmp_path / "kernel.c")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_words_of_every_dialect() -> None:
    """A kernel compiles, and computes what torch does, where each value is called like a word of some dialect."""
    for naming in [*namings(usable(WORDS), 150)][:: len(ROLES) + 1]:
        assert_like_torch(naming, "c")


def test_states_that_change_places() -> None:
    """Both states read what they were before the step."""
    x = torch.linspace(-2, 2, 24).view(6, 4)
    (y, state), (expected, of_torch) = (Uses(backend=name).run(x) for name in ("c", "torch"))
    assert torch.allclose(y, expected, atol=1e-6)
    assert all(torch.allclose(state[name], of_torch[name], atol=1e-6) for name in state)


def test_what_does_not_compile_is_shown() -> None:
    with pytest.raises(
        BackendError,
        match=r"kernel nothing, so choose backend='torch': cc cannot compile nothing; it says:[\s\S]*error",
    ):
        built("nothing", "void nothing(void) { undeclared = 1; }")


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is not ready, and says what is missing."""
    monkeypatch.setenv("CC", "no-such-compiler")
    info, _ = spikecore_c.spikecore_backends()
    assert info.probe() is not None
    assert "'no-such-compiler' is not on the PATH" in info.probe()
