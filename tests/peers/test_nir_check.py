"""``sc.nir.check`` on files that the exporters of snnTorch, Norse and sinabs write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import spikecore as sc
from spikecore.cli import app

#: Deprecations of nirtorch and of what the libraries import are theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
#: What the readers compute; their exporters write other neurons, too.
OF_NIR = {"dt": 1e-4, "discretization": "euler"}
OF_SINABS = {"convention": replace(sc.nir.CONVENTIONS["sinabs"], lif="jump")}


def _snntorch(*layers: nn.Module, sample: Tuple[int, ...] = (10,)) -> Any:
    from snntorch.export_nir import export_to_nir

    return export_to_nir(nn.Sequential(*layers), torch.zeros(1, *sample), ignore_dims=[0])


def _snntorch_dense() -> Any:
    import snntorch as snn

    def full(value: float, size: int) -> torch.Tensor:
        return torch.full((size,), value)

    leaky = snn.Leaky(torch.rand(12) / 4 + 0.7, threshold=full(0.7, 12), init_hidden=True)
    synaptic = snn.Synaptic(full(0.6, 6), torch.rand(6) / 4 + 0.7, threshold=full(0.4, 6), init_hidden=True)
    return _snntorch(nn.Linear(10, 12), leaky, nn.Linear(12, 6), synaptic)


def _snntorch_conv() -> Any:
    import snntorch as snn

    def leaky(*shape: int) -> nn.Module:
        return snn.Leaky(torch.full(shape, 0.8), threshold=torch.full(shape, 0.5), init_hidden=True)

    layers = nn.Conv2d(2, 3, 3), leaky(3, 6, 6), nn.Conv2d(3, 4, 3), leaky(4, 4, 4)
    return _snntorch(*layers, sample=(2, 8, 8))


def _snntorch_recurrent() -> Any:
    import snntorch as snn

    return _snntorch(nn.Linear(10, 12), snn.RLeaky(beta=0.8, linear_features=12, init_hidden=True))


def _norse(*neurons: nn.Module) -> Any:
    import norse.torch
    from norse.torch.utils.export_nir import to_nir

    first, second = neurons
    net = norse.torch.SequentialState(nn.Linear(10, 12), first, nn.Linear(12, 6), second)
    return to_nir(net, torch.randn(10))


def _norse_box() -> Any:
    from norse.torch.functional.lif_box import LIFBoxParameters
    from norse.torch.module.lif_box import LIFBoxCell

    def cell(size: int, threshold: float) -> nn.Module:
        taus = 100 + 100 * torch.rand(size)
        return LIFBoxCell(LIFBoxParameters(taus, torch.zeros(size), torch.full((size,), threshold)))

    return _norse(cell(12, 0.3), cell(6, 0.1))


def _norse_conv() -> Any:
    import norse.torch
    from norse.torch.functional.lif_box import LIFBoxParameters
    from norse.torch.module.lif_box import LIFBoxCell
    from norse.torch.utils.export_nir import to_nir

    def cell(*shape: int) -> nn.Module:
        return LIFBoxCell(LIFBoxParameters(torch.full(shape, 150.0), torch.zeros(shape), torch.full(shape, 0.1)))

    net = norse.torch.SequentialState(nn.Conv2d(2, 3, 3), cell(3, 6, 6), nn.Conv2d(3, 4, 3), cell(4, 4, 4))
    return to_nir(net, torch.randn(2, 8, 8))


def _norse_iaf() -> Any:
    from norse.torch import IAFCell
    from norse.torch.functional.iaf import IAFParameters

    return _norse(IAFCell(IAFParameters(v_th=torch.full((12,), 1.5))), IAFCell(IAFParameters(v_th=torch.ones(6))))


def _norse_lif() -> Any:
    from norse.torch import LIFCell, LIFParameters

    def cell(size: int) -> nn.Module:
        rate, zero = torch.full((size,), 200.0), torch.zeros(size)
        return LIFCell(LIFParameters(rate, rate, zero, torch.full((size,), 0.2), zero))

    return _norse(cell(12), cell(6))


def _sinabs(*layers: nn.Module, sample: Tuple[int, ...]) -> Any:
    from sinabs.nir import to_nir

    x, net = torch.randn(8, *sample), nn.Sequential(*layers)
    with torch.no_grad():
        net(x)
        return to_nir(net, x)


def _lif_of_sinabs(size: int) -> nn.Module:
    from sinabs.layers import LIFSqueeze

    return LIFSqueeze(
        tau_mem=3 + 6 * torch.rand(size), spike_threshold=torch.full((size,), 2.0), batch_size=2, norm_input=False
    )


def _sinabs_dense() -> Any:
    return _sinabs(nn.Linear(10, 12), _lif_of_sinabs(12), nn.Linear(12, 6), _lif_of_sinabs(6), sample=(10,))


def _sinabs_conv() -> Any:
    from sinabs.layers import SumPool2d

    layers = nn.Conv2d(1, 3, 3), SumPool2d(2), nn.Flatten(), nn.Linear(48, 6), _lif_of_sinabs(6)
    return _sinabs(*layers, sample=(1, 10, 10))


def _sinabs_iaf() -> Any:
    from sinabs.layers import IAFSqueeze

    return _sinabs(nn.Linear(10, 12), IAFSqueeze(batch_size=2), sample=(10,))


#: What they export -> library, writer, arguments with which it is read as the library's reader does.
FILES: Dict[str, Tuple[str, Callable[[], Any], Dict[str, Any]]] = {
    "snntorch dense": ("snntorch", _snntorch_dense, OF_NIR),
    "snntorch conv": ("snntorch", _snntorch_conv, OF_NIR),
    "norse box": ("norse", _norse_box, {}),
    "norse conv": ("norse", _norse_conv, {}),
    "norse iaf": ("norse", _norse_iaf, {}),
    "norse lif": ("norse", _norse_lif, {"dt": 1e-6, "discretization": "euler"}),
    "sinabs dense": ("sinabs", _sinabs_dense, OF_SINABS),
    "sinabs conv": ("sinabs", _sinabs_conv, OF_SINABS),
}


def _written(writer: Callable[[], Any], folder: Path) -> str:
    import nir

    torch.manual_seed(0)
    graph = writer()
    graph.infer_types()  # without which no convolution can be written
    nir.write(folder / "theirs.nir", graph)
    return str(folder / "theirs.nir")


@pytest.mark.parametrize("name", FILES)
def test_equal_where_both_read_the_same(name: str, tmp_path) -> None:
    """Each node is compared, and its neurons fire."""
    library, writer, how = FILES[name]
    report = sc.nir.check(_written(writer, tmp_path), library, **how)
    assert report.equal, str(report)
    assert len(report.nodes) >= 4
    assert all(node.differ == 0 and not node.silent for node in report.nodes)
    assert str(report).endswith("equal: every node gives the same outputs")


def _changed(network: Any, node: str, what: str) -> None:
    module = network.get_submodule(node)
    with torch.no_grad():
        if what == "weight":
            module.weight.neg_()
        elif what == "reset":
            module.reset = "soft" if module.reset == "hard" else "hard"
        else:
            setattr(module, what, getattr(module, what) * 0.8)


@pytest.mark.parametrize("name", ["snntorch dense", "norse box", "sinabs dense"])
@pytest.mark.parametrize(("node", "what"), [("1", "decay"), ("3", "threshold"), ("1", "reset"), ("2", "weight")])
def test_the_node_with_a_fault_is_named(name: str, node: str, what: str, tmp_path) -> None:
    """A time constant, a threshold, a reset or the sign of weights that is another one on one side."""
    library, writer, how = FILES[name]
    file = _written(writer, tmp_path)
    network = sc.nir.load(file, **(how or {"convention": library}))
    if what == "reset" and library == "sinabs":
        network.get_submodule(node).many = False
    _changed(network, node, what)
    report = sc.nir.check(file, library, network=network, **how)
    assert report.first is not None
    assert report.first.name == node
    assert [each.differ for each in report.nodes[: int(node)]] == [0] * int(node)
    assert what in report.first.numbers["spikecore"]
    assert f"{node!r}, {report.first.kind}, is the first node that differs" in str(report)


#: A number of the file that the library's reader does not read.
FAULTS = [
    ("snntorch dense", "1", "v_reset", 0.3),
    ("snntorch dense", "3", "v_reset", 0.2),
    ("norse box", "1", "v_reset", 0.2),
    ("norse box", "3", "r", 2.0),
    ("sinabs dense", "1", "r", 2.0),
    ("sinabs dense", "3", "r", 0.5),
]


@pytest.mark.parametrize(("name", "node", "field", "value"), FAULTS)
def test_a_fault_in_a_file_is_named(name: str, node: str, field: str, value: float, tmp_path) -> None:
    """The first node that differs is that with the number, and the report shows it beside what the library has."""
    import nir

    library, writer, how = FILES[name]
    file = _written(writer, tmp_path)
    graph = nir.read(file)
    getattr(graph.nodes[node], field)[:] = value
    nir.write(file, graph)
    first = sc.nir.check(file, library, **how).first
    assert first is not None
    assert (first.name, first.numbers["file"][field]) == (node, f"{value:g}")


@pytest.mark.parametrize(
    ("library", "writer", "node", "theirs"),
    [
        ("snntorch", _snntorch_dense, "1", {"reset_mechanism": "zero", "reset_delay": "False"}),
        ("norse", _norse_lif, "1", {"class": "CubaLIF", "w_in": "1"}),
        ("sinabs", _sinabs_iaf, "1", {"min_v_mem": "-1"}),
    ],
)
def test_a_library_that_does_not_read_what_it_wrote(
    library: str, writer: Any, node: str, theirs: Any, tmp_path
) -> None:
    """Without arguments the file is what its writer computes, and the reader makes another network of it."""
    report = sc.nir.check(_written(writer, tmp_path), library)
    assert report.first is not None
    assert report.first.name == node
    name = report.library.split()[0]
    assert {key: report.first.numbers[name][key] for key in theirs} == theirs


def test_an_if_that_snntorch_reads_with_a_leak(tmp_path) -> None:
    """Its name is a keyword, for which nirtorch has another one."""
    import nir

    one, weight = torch.ones(12).numpy(), torch.randn(12, 10, generator=torch.Generator().manual_seed(0)).numpy()
    nir.write(tmp_path / "if.nir", nir.NIRGraph.from_list(nir.Linear(weight), nir.IF(r=one, v_threshold=one)))
    first = sc.nir.check(tmp_path / "if.nir", "snntorch", dt=1.0, discretization="euler").first
    assert first is not None
    assert (first.name, first.numbers["spikecore"]["decay"], first.numbers["snnTorch"]["beta"]) == ("if", "1", "0.9")


@pytest.mark.parametrize("library", ["snntorch", "norse"])
def test_a_loop_that_spikecore_wrote(library: str, tmp_path) -> None:
    """The neuron of the loop has the name that it has in the file; a bias in the loop begins one step later."""
    torch.manual_seed(0)
    for bias in (False, True):
        feedback = nn.Linear(9, 9, bias=bias)
        if bias:
            nn.init.constant_(feedback.bias, 2.0)
        loop = sc.Recurrent(sc.LIF(3.0, threshold=0.4), feedback)
        sc.nir.save(nn.Sequential(nn.Linear(7, 9), loop), tmp_path / "loop.nir", dt=1e-4)
        report = sc.nir.check(tmp_path / "loop.nir", library)
        assert [node.name for node in report.nodes] == ["0", "1.neuron"]
        assert report.equal is not bias
        assert report.first is None or report.first.step == 0


@pytest.mark.parametrize(
    ("library", "net", "words"),
    [
        ("snntorch", [sc.LIF(), nn.Linear(9, 5), sc.LI()], "snnTorch 1.0.0 cannot read node '3', a LI: ValueError"),
        ("snntorch", [sc.IF()], "snnTorch 1.0.0 cannot read node '1', an IF: AssertionError: r != 1 not supported"),
        ("norse", [sc.LIF(), nn.Linear(9, 5), sc.LI()], "Norse 1.1.0 leaves out node '3', a LI"),
        ("sinabs", [sc.Synaptic()], "sinabs 3.1.3 leaves out node '1', a CubaLIF"),
    ],
)
def test_what_a_library_cannot_read(library: str, net: Any, words: str, tmp_path) -> None:
    """The error names the library, the node and the way out."""
    sc.nir.save(nn.Sequential(nn.Linear(7, 9), *net), tmp_path / "net.nir", dt=1e-4)
    with pytest.raises(ValueError, match="write the node so, or check the file without it") as refused:
        sc.nir.check(tmp_path / "net.nir", library)
    assert words in str(refused.value)


def test_a_loop_that_its_own_library_cannot_read(tmp_path) -> None:
    """No node alone is the cause, so the loop is named."""
    with pytest.raises(ValueError, match=r"cannot read node '1\.lif', a LIF and node '1\.w_rec', an Affine"):
        sc.nir.check(_written(_snntorch_recurrent, tmp_path), "snntorch")


def test_the_command(tmp_path) -> None:
    """Exit codes 0, 1 and 2; JSON has the facts of the report."""
    file = _written(_snntorch_dense, tmp_path)
    call = ["check", file, "--against", "snntorch"]
    equal = CliRunner().invoke(app, [*call, "--discretization", "euler"])
    assert equal.exit_code == 0
    assert "equal: every node" in equal.output
    differs = CliRunner().invoke(app, [*call, "--json"])
    assert differs.exit_code == 1
    facts = json.loads(differs.output)
    assert (facts["first"], facts["equal"], facts["nodes"][0]["differ"]) == ("1", False, 0)
    theirs = _written(_sinabs_dense, tmp_path)
    call = ["check", theirs, "--against", "sinabs", "--convention"]
    assert CliRunner().invoke(app, [*call, "sinabs,lif=jump"]).exit_code == 0
    assert CliRunner().invoke(app, [*call, "sinabs,lif=jump,many=no"]).exit_code == 1
    silent = nn.Sequential(nn.Linear(7, 9, bias=False), sc.LIF())
    sc.nir.save(silent, tmp_path / "silent.nir", dt=1e-4)
    unknown = CliRunner().invoke(
        app, ["check", str(tmp_path / "silent.nir"), "--against", "norse", "--scale", "0.01", "--input", "9,2,7"]
    )
    assert unknown.exit_code == 2
    assert "'1' never fired" in unknown.output
