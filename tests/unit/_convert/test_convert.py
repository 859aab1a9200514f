"""``sc.convert`` where there is nothing of another library; the networks are in ``tests/peers``."""

from __future__ import annotations

import pytest
from torch import nn

import spikecore as sc


def test_a_network_of_no_other_library_is_refused() -> None:
    """It is the wrong network, or one that is converted by hand."""
    with pytest.raises(ValueError, match="no module of .*spikingjelly in this Sequential; there is nothing to convert"):
        sc.convert(nn.Sequential(nn.Linear(2, 3), sc.LIF()))


def test_what_is_no_module_is_refused() -> None:
    """A list of layers, for one."""
    with pytest.raises(TypeError, match="sc.convert: net=.* must be a network"):
        sc.convert([nn.Linear(2, 3)])  # type: ignore[arg-type]  # what it refuses


def test_a_conversion_prints_a_line_for_each_module() -> None:
    """Names first, the network itself named in words."""
    done = sc.Conversion({"": "IFNode -> IF()"}, {"a.b": "PSN: no neuron here has its equations"})
    lines = str(done).splitlines()
    assert lines[0] == "1 replaced, 1 left"
    assert lines[1:] == ["  the network itself: IFNode -> IF()", "  a.b: left: PSN: no neuron here has its equations"]
