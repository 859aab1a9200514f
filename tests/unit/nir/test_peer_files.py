"""Files that other libraries wrote give the spikes that these libraries compute.

``peers.zip`` was written by ``tests/shared/nir_peers.py``; ``tests/peers/test_nir.py`` does the same with the packages.
"""

from __future__ import annotations

import io
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch

import spikecore as sc
from nir_peers import WRITERS, how
from places import check

pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")

PEERS = ZipFile(Path(__file__).parent / "peers.zip")


def _read(name, folder):
    """The file of this name, its input and the spikes of its library."""
    PEERS.extract(f"{name}.nir", folder)
    held = np.load(io.BytesIO(PEERS.read(f"{name}.npz")))
    return folder / f"{name}.nir", torch.from_numpy(held["x"]), torch.from_numpy(held["y"]).float()


def test_every_writer_has_its_file() -> None:
    """The archive is that of the program that makes it."""
    check("peers.zip", {Path(each).stem for each in PEERS.namelist()}, WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_spikes_are_those_of_the_library(name: str, tmp_path) -> None:
    """Every spike of every step."""
    file, x, y = _read(name, tmp_path)
    net = sc.nir.load(file, **how(name))
    assert y.sum() > 20
    assert torch.equal(net(x), y)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_another_library_asks_how_it_becomes_steps(name: str, tmp_path) -> None:
    """It says neither dt nor discretisation, and IF needs the first alone."""
    file, *_ = _read(name, tmp_path)
    asked = r"give dt=1e-3 \(seconds\)" + (
        "" if name in ("norse_iaf", "sinabs_single_conv") else " and discretization='euler' or 'exp'"
    )
    with pytest.raises(ValueError, match=asked + ", or the library that wrote the file, as in convention='snntorch'"):
        sc.nir.load(file)


def test_names_and_classes_of_a_loaded_file(tmp_path) -> None:
    """Modules are named as nodes, and loops become Recurrent."""
    file, *_ = _read("snntorch_rleaky", tmp_path)
    net = sc.nir.load(file, convention="snntorch")
    assert isinstance(net.get_submodule("1"), sc.Recurrent)
    neuron = net.get_submodule("1.neuron")
    assert isinstance(neuron, sc.nir.NIRLIF)
    # beta and a gain of 1, though tau and r were rounded to float32
    assert (torch.tensor(neuron.decay).item(), neuron.gain) == (torch.tensor(0.8).item(), 1.0)
    assert list(net.state_dict()) == [
        *("0.weight", "0.bias", "1.linear.weight", "1.linear.bias", "2.weight", "2.bias"),
        *("3.linear.weight", "3.linear.bias"),
    ]


@pytest.mark.parametrize("name", ["snntorch_leaky", "snntorch_synaptic", "rockpool_neuron"])
def test_gains_that_were_one_are_one(name: str, tmp_path) -> None:
    """Their writers compute r from tau and round both to float32."""
    file, *_ = _read(name, tmp_path)
    neurons = [each for each in sc.nir.load(file, **how(name)).modules() if isinstance(each, sc.Neuron)]
    assert [each.gain for each in neurons] == [1.0, 1.0]
