"""Graphs that other libraries export, loaded, give the spikes that these libraries compute.

Norse and snnTorch compute our spikes from our graphs.

Norse before 1.1 has no ``to_nir``, and Rockpool brings much: their cases are skipped where they are not installed.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

import spikecore as sc
from nir_peers import WRITERS, how

#: Deprecations of nirtorch and of what the libraries import are theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
OPTIONAL = {"norse": "norse.torch.utils.export_nir", "rockpool": "rockpool.nn.modules.torch.nir"}


def _need(library: str) -> None:
    if library in OPTIONAL:
        try:
            importlib.import_module(OPTIONAL[library])
        except ImportError as error:
            pytest.skip(f"{library} with its export to NIR is not installed: {error}")


@pytest.mark.parametrize("name", WRITERS)
def test_spikes_are_those_of_the_library(name: str, tmp_path) -> None:
    """Exported now, through a file, and as a graph in memory."""
    _need(name.partition("_")[0])
    import nir

    graph, x, y = WRITERS[name]()
    nir.write(tmp_path / "graph.nir", graph)
    assert y.sum() > 20
    for source in (tmp_path / "graph.nir", graph):
        assert torch.equal(sc.nir.load(source, **how(name))(x), y)


@pytest.mark.parametrize("library", ["norse", "snntorch"])
def test_they_read_what_we_write(library: str, tmp_path) -> None:
    """Both make Euler steps and reset to zero at once; snnTorch's dt is 1e-4 whatever the file means."""
    _need(library)
    import nir

    dt = 1e-3 if library == "norse" else 1e-4
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 9), sc.LIF(3.0, threshold=0.4), nn.Linear(9, 5), sc.LIF(5.0, threshold=0.1))
    sc.nir.save(net, tmp_path / "net.nir", dt=dt)
    graph = nir.read(tmp_path / "net.nir")
    if library == "norse":
        from norse.torch.utils.import_nir import from_nir

        theirs = from_nir(graph, dt=dt)
    else:
        from snntorch.import_nir import import_from_nir

        theirs = import_from_nir(graph)
    x, state, outputs = 6 * torch.randn(20, 3, 7), None, []
    with torch.no_grad():
        for step in x:
            z, state = theirs(step, state)
            outputs.append(z)
        assert net(x).sum() > 20
        assert torch.equal(torch.stack(outputs), net(x))
