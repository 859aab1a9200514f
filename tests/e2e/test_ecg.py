"""The network for electrocardiograms: the published accuracy, the bits of a loop by hand, and what the program does.

The QT database and the authors' weights are looked for in ``../shared/data/qtdb`` beside the repository, or in
``$QTDB``; what needs them is skipped where they are not.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
import torch

import spikecore as sc
from programs import EXAMPLES, runner

pytest.importorskip("scipy.io", reason="scipy comes with the extra `train`")

QTDB = Path(os.environ.get("QTDB") or Path(__file__).parents[3] / "shared" / "data" / "qtdb")
FILES = ("QTDB_train.mat", "QTDB_test.mat", "brf_ecg.npz")
absent = ", ".join(name for name in FILES if not (QTDB / name).is_file())
with_files = pytest.mark.skipif(bool(absent), reason=f"not there: {absent} in {QTDB} (another folder: QTDB=...)")
BACKENDS = ["torch", "numba"]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def common(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of the programs is where Python looks first, as when one runs; handlers of signals are put back."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    running = runner(monkeypatch, capsys)
    monkeypatch.setenv("SPIKECORE_BLOCK", "triton")  # numba may be asked for by name
    return running


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up heartbeats are 40 sequences of 50 steps, and as many to test with; neurons fire at once."""
    from common import heartbeats

    whole = heartbeats.made_up

    def strong(number: int, seed: int) -> Any:
        part = whole(40, seed, steps=50)
        return part._replace(spikes=100 * part.spikes)

    monkeypatch.setattr(heartbeats, "made_up", strong)


def usable(backend: str) -> str:
    if backend not in [one.name for one in sc.backends()]:
        pytest.skip("the plugin spikecore-numba is not installed")
    return backend


def network(backend: str) -> Any:
    """The network of the program, with weights so large that its neurons fire."""
    import ecg

    torch.manual_seed(0)
    net = ecg.network()
    with torch.no_grad():
        net.front.weight.mul_(200)
        net.hidden.linear.weight.mul_(40)
    sc.set_backend(net, backend)
    return net


class TestNumbers:
    @with_files
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_the_published_accuracy(self, tmp_path, backend, run):
        """With the authors' weights as many steps are right as with their code, 86.199 %, to 0.05 points."""
        text = run(
            "ecg.py", "--data", str(QTDB), "--weights", str(QTDB / FILES[2]), "--backend", usable(backend),
            "--out", str(tmp_path),
        )  # fmt: skip
        found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
        assert abs(found["test accuracy"] - 0.86199) < 0.0005
        assert (found["data"], found["steps"]) == ("the QT database", "steps=one call")
        assert f"{backend} on cpu" in found["backend"]
        assert re.search(r"(?m)^test accuracy  +0\.862", text)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_the_values_of_a_loop_by_hand(self, backend):
        """In float64 sums of so few float32 weights are exact, so that spikes agree; outputs to the rounding of exp."""
        from common import resonators

        net = network(usable(backend)).double()
        x = (torch.rand(200, 5, 4, generator=torch.Generator().manual_seed(1)) < 0.2).double()
        found, wanted = net(x), resonators.loop(net, x)
        assert 0.02 < net[:2](x).mean() < 0.5
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        cotangent = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        parameters = dict(net.named_parameters())
        both = [torch.autograd.grad((y * cotangent).sum(), parameters.values()) for y in (found, wanted)]
        for name, one, other in zip(parameters, *both):
            assert other.abs().max() > 0, name
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12 * other.abs().max().item(), msg=name)


class TestProgram:
    ARGS = ("ecg.py", "--data", "made-up", "--epochs", "2", "--backend", "torch")

    def test_it_trains_and_keeps(self, small, tmp_path, run):
        """Progress line by line, results, pictures, and weights that --weights takes."""
        text = run(*self.ARGS, "--out", str(tmp_path))
        lines = re.findall(r"(?m)^epoch (\d)/2: training loss ([\d.]+), .*validation accuracy ([\d.]+), \d+ s$", text)
        assert [line[0] for line in lines] == ["1", "2"]
        found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
        assert (found["epochs"], found["seed"], found["data"]) == (2, 0, "made-up heartbeats")
        assert found["epoch"] in (1, 2)
        assert 0.01 < found["spikes of a neuron at a step"] < 1
        for name in ("learning-curve.png", "sequence.png"):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        again = tmp_path / "again"
        run("ecg.py", *self.ARGS[1:3], *self.ARGS[5:], "--weights", str(tmp_path / "best.npz"), "--out", str(again))
        other = json.loads((again / "results.json").read_text(encoding="utf-8"))
        assert other["test accuracy"] == found["test accuracy"]
        assert not (again / "checkpoint.pt").exists()
