"""Networks with trained weights have the accuracy that is said of them, and are those of the programs."""

from __future__ import annotations

import json
import os
import runpy
import sys
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


def test_a_training_is_kept(examples, tmp_path, monkeypatch, capsys):
    """mnist.py on a few images: a result, in the place of one with the same seed, and weights by their names."""
    pytest.importorskip("tqdm", reason="the programs need the extra `train`")
    import numpy as np

    for part, number in (("train", 24), ("t10k", 12)):
        for what, shape in (("images-idx3", (number, 28, 28)), ("labels-idx1", (number,))):
            array = np.random.default_rng(0).integers(0, 10, shape, dtype=np.uint8)
            head = bytes((0, 0, 8, array.ndim)) + np.array(shape, ">u4").tobytes()
            (tmp_path / f"{part}-{what}-ubyte").write_bytes(head + array.tobytes())
    for variable in ("SPIKECORE_BACKEND", "SPIKECORE_IPU_EMULATOR"):
        monkeypatch.delenv(variable, raising=False)
    kept, weights = tmp_path / "kept.json", tmp_path / "weights.npz"
    for seed in ("0", "1", "1"):
        args = ["--data", str(tmp_path), "--network", "conv", "--augment", "--epochs", "2", "--backend", "torch"]
        monkeypatch.setattr(
            sys, "argv", ["mnist.py", *args, "--seed", seed, "--results", str(kept), "--weights", str(weights)]
        )
        runpy.run_path(str(examples / "mnist.py"), run_name="__main__")
    assert "test accuracy" in capsys.readouterr().out
    runs = json.loads(kept.read_text(encoding="utf-8"))
    assert [(run["seed"], len(run["curve"]), run["network"]) for run in runs] == [
        (seed, 2, "16C5-32C5-10") for seed in (0, 1)
    ]
    command = "python examples/mnist.py --data FOLDER --network conv --augment --epochs 2 --backend torch"
    assert runs[0]["command"] == command
    with np.load(str(weights)) as arrays:
        assert set(arrays.files) == {"about", *sc.models.load("mnist").state_dict()}
