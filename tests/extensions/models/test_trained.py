"""Networks with trained weights have the accuracy that is said of them, and are those of the programs."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest
import torch

import spikecore as sc

ROOT = Path(__file__).parents[3]
MNIST = Path(os.environ.get("MNIST") or ROOT.parent / "shared" / "data" / "mnist")


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs, where Python looks first."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return ROOT / "examples"


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_the_accuracy_that_is_said(name):
    """On all test images, to one image: sums are taken in another order elsewhere."""
    pytest.importorskip("tqdm", reason="the readers of data need the extra `train`")
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    from common import data

    if name == "mnist" and not MNIST.is_dir():
        pytest.skip(f"the files of MNIST are not in {MNIST}; MNIST=FOLDER names another folder")
    images, labels = (data.digits() if name == "digits" else data.mnist(MNIST)).test.tensors
    net, said = sc.models.load(name), sc.models.trained()[name]
    assert not net.training
    with torch.no_grad():
        right = (net(images).sum(0).argmax(-1) == labels).sum().item()
    assert len(images) == said.images
    assert right == pytest.approx(said.accuracy * said.images, abs=1 + said.images / 5000)
    assert sum(weights.numel() for weights in net.parameters()) == said.parameters


@pytest.mark.parametrize(
    ("name", "program", "make"), [("digits", "digits.py", "network"), ("mnist", "mnist.py", "conv")]
)
def test_the_network_of_the_program(name, program, make, examples):
    """The same layers, names and time steps: the same outputs."""
    pytest.importorskip("safetensors", reason="the training programs need the extra `train`")
    net, size = runpy.run_path(str(examples / program))[make](), {"digits": 8, "mnist": 28}[name]
    loaded, images = sc.models.load(name), torch.rand(2, 1, size, size, generator=torch.Generator().manual_seed(0))
    net.load_state_dict(loaded.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(images), loaded(images))


def test_a_name_that_is_not_there():
    """The names that are."""
    with pytest.raises(ValueError, match="no network 'cifar' comes with spikecore; there are 'digits', 'mnist'"):
        sc.models.load("cifar")


def test_small_files():
    """Below 200 kB each."""
    files = list((ROOT / "extensions/spikecore_models/weights").iterdir())
    assert sorted(file.stem for file in files) == sorted(sc.models.trained())
    assert all(file.stat().st_size < 200_000 for file in files)
