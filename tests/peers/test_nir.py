"""Graphs that snnTorch, Norse, sinabs and Rockpool export, loaded, give the spikes that these libraries compute.

Norse before 1.1 has no ``to_nir``, and Rockpool brings much: their cases are skipped where they are not installed.
"""

from __future__ import annotations

import importlib

import pytest
import torch

import spikecore as sc
from nir_peers import WRITERS, how

#: Deprecations of nirtorch and of what the libraries import are theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
OPTIONAL = {"norse": "norse.torch.utils.export_nir", "rockpool": "rockpool.nn.modules.torch.nir"}


@pytest.mark.parametrize("name", WRITERS)
def test_spikes_are_those_of_the_library(name: str, tmp_path) -> None:
    """Exported now, through a file, and as a graph in memory."""
    library = name.partition("_")[0]
    if library in OPTIONAL:
        try:
            importlib.import_module(OPTIONAL[library])
        except ImportError as error:
            pytest.skip(f"{library} with its export to NIR is not installed: {error}")
    import nir

    graph, x, y = WRITERS[name]()
    nir.write(tmp_path / "graph.nir", graph)
    assert y.sum() > 20
    for source in (tmp_path / "graph.nir", graph):
        assert torch.equal(sc.nir.load(source, **how(name))(x), y)
