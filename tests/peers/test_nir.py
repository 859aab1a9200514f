"""Graphs that other libraries export, loaded, give the spikes that these libraries compute.

They compute our spikes from our graphs, saved as the page on NIR says.

Rockpool brings much: its cases are skipped where it is not installed.
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
OPTIONAL = {"rockpool": "rockpool.nn.modules.torch.nir"}


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


def _stepped(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Outputs of a network that takes one step, and its state."""
    state, outputs = None, []
    for step in x:
        z, state = net(step, state)
        outputs.append(z)
    return torch.stack(outputs)


def _read_by_norse(path, dt: float, x: torch.Tensor) -> torch.Tensor:
    import nir
    from norse.torch.utils.import_nir import from_nir

    return _stepped(from_nir(nir.read(path), dt=dt), x)


def _read_by_snntorch(path, dt: float, x: torch.Tensor) -> torch.Tensor:
    import nir
    from snntorch.import_nir import import_from_nir

    return _stepped(import_from_nir(nir.read(path)), x)


def _read_by_spikingjelly(path, dt: float, x: torch.Tensor) -> torch.Tensor:
    from spikingjelly.activation_based.nir_exchange import import_from_nir

    return _stepped(import_from_nir(path, dt=dt), x)


def _read_by_sinabs(path, dt: float, x: torch.Tensor) -> torch.Tensor:
    import nir
    from sinabs.nir import from_nir

    y = from_nir(nir.read(path), batch_size=x.shape[1])(x.transpose(0, 1).flatten(0, 1))
    y = y[0] if isinstance(y, tuple) else y
    return y.unflatten(0, (x.shape[1], -1)).transpose(0, 1)


def _read_by_rockpool(path, dt: float, x: torch.Tensor) -> torch.Tensor:
    import nir
    from rockpool.nn.modules.torch.nir import from_nir

    y = from_nir(nir.read(path))(x.transpose(0, 1))
    return (y[0] if isinstance(y, tuple) else y).transpose(0, 1)


READERS = {
    "norse": _read_by_norse,
    "snntorch": _read_by_snntorch,
    "spikingjelly": _read_by_spikingjelly,
    "sinabs": _read_by_sinabs,
    "rockpool": _read_by_rockpool,
}
#: Hidden neurons, and those of the output.
NEURONS = {
    "LIF": lambda: (sc.LIF(3.0, threshold=0.4), sc.LIF(5.0, threshold=0.1)),
    "LIF, decay_input=False": lambda: (sc.LIF(3.0, decay_input=False), sc.LIF(5.0, decay_input=False, threshold=0.5)),
    "LIF, jump and soft": lambda: (
        sc.LIF(3.0, decay_input=False, threshold=4.0, reset="soft"),
        sc.LIF(5.0, decay_input=False, threshold=1.4, reset="soft"),
    ),
    "IF": lambda: (sc.IF(threshold=2.0), sc.IF(threshold=0.5)),
    "IF, soft": lambda: (sc.IF(threshold=6.0, reset="soft"), sc.IF(threshold=2.0, reset="soft")),
    "Leaky, hard": lambda: (
        sc.Leaky(0.8, reset="hard", reset_delay=False),
        sc.Leaky(0.9, threshold=0.5, reset="hard", reset_delay=False),
    ),
    "Synaptic": lambda: (sc.Synaptic(threshold=2.0), sc.Synaptic(threshold=0.5)),
    "LI": lambda: (sc.LI(5.0), sc.LI(5.0)),
}
EULER, EXP = "euler", "exp"


def _saved(neurons: str, path, dt: float, discretization: str):
    """A network, and an input, with which no potential gets to twice a threshold."""
    torch.manual_seed(0)
    hidden, last = NEURONS[neurons]()
    net = nn.Sequential(nn.Linear(7, 9), hidden, nn.Linear(9, 5), last)
    x = 3 * torch.randn(40, 3, 7)
    if neurons.endswith("soft"):
        with torch.no_grad():
            net[0].weight.abs_(), net[2].weight.abs_()
        x = x.abs() / 2
    sc.nir.save(net, path, dt=dt, discretization=discretization, keep=("soft_reset",))
    return net, x


@pytest.mark.parametrize(
    ("library", "neurons", "dt", "discretization"),
    [
        ("norse", "LIF", 1e-3, EULER),
        *[("snntorch", name, 1e-4, EULER) for name in ("LIF", "LIF, decay_input=False", "Leaky, hard", "Synaptic")],
        *[
            ("spikingjelly", name, dt, EULER)
            for name in ("LIF", "LIF, decay_input=False", "IF", "Leaky, hard", "Synaptic")
            for dt in (1e-4, 1e-3)
        ],
        ("sinabs", "LIF, jump and soft", 1.0, EXP),
        ("sinabs", "IF, soft", 1.0, EXP),
    ],
)
def test_they_read_what_we_write(library: str, neurons: str, dt: float, discretization: str, tmp_path) -> None:
    """Saved as the page says, every spike is the same."""
    _need(library)
    net, x = _saved(neurons, tmp_path / "net.nir", dt, discretization)
    with torch.no_grad():
        ours = net(x)
        theirs = READERS[library](tmp_path / "net.nir", dt, x)
    assert ours.sum() > 20
    assert torch.equal(theirs, ours)


@pytest.mark.parametrize(
    ("library", "neurons", "dt", "discretization"),
    [
        ("snntorch", "LIF", 1e-3, EULER),
        ("sinabs", "LIF", 1e-3, EULER),
        ("sinabs", "LIF", 1.0, EXP),
        ("sinabs", "IF", 1.0, EXP),
        ("rockpool", "Synaptic", 1e-3, EXP),
    ],
)
def test_saved_otherwise_they_read_another_network(
    library: str, neurons: str, dt: float, discretization: str, tmp_path
) -> None:
    """Without an error: what the page says of the time step, of several spikes, and of Rockpool."""
    _need(library)
    net, x = _saved(neurons, tmp_path / "net.nir", dt, discretization)
    with torch.no_grad():
        theirs = READERS[library](tmp_path / "net.nir", dt, x)
        assert net(x).sum() > 20
        assert not torch.equal(theirs, net(x))
        if library == "snntorch":
            assert theirs.sum() == 0


@pytest.mark.parametrize(
    ("library", "neurons", "error", "text"),
    [
        ("snntorch", "IF", AssertionError, "r != 1 not supported"),
        ("snntorch", "LI", ValueError, "LI"),
        ("spikingjelly", "LI", ValueError, "LI"),
        ("sinabs", "Synaptic", KeyError, ""),
        ("rockpool", "LIF", AttributeError, "no attribute 'tau_mem'"),
        ("rockpool", "IF", NotImplementedError, "Cannot convert"),
    ],
)
def test_neurons_that_they_do_not_read(library: str, neurons: str, error: type, text: str, tmp_path) -> None:
    """Neurons that a reader lacks are those of the page."""
    _need(library)
    _, x = _saved(neurons, tmp_path / "net.nir", 1e-4, EULER)
    with pytest.raises(error, match=text):
        READERS[library](tmp_path / "net.nir", 1e-4, x)
