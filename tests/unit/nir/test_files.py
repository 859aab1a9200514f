"""Files of strangers, disks that are full: what a file of NIR can do to a machine, and a machine to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.nir._reading import Graph

nir = pytest.importorskip("nir", reason="the package nir, which needs Python 3.10, is not installed")
h5py = pytest.importorskip("h5py", reason="nir needs h5py, so this is never skipped")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), sc.LIF(tau=torch.tensor([2.0, 3.0, 4.0])))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of :func:`network`."""
    sc.nir.save(network(), tmp_path / "net.nir", dt=1e-3)
    return tmp_path / "net.nir"


def _weight(root: Any) -> Any:
    """The group of the linear layer, without its weight."""
    group = root["node/nodes/0"]
    del group["weight"]
    return group


def _external(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (3, 4), "f4", external=[(str(secret), 0, 48)])


def _virtual(root: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["weight"] = np.ones((3, 4), "f4")
    layout = h5py.VirtualLayout((3, 4), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "weight", (3, 4))
    _weight(root).create_virtual_dataset("weight", layout)


def _external_link(root: Any, secret: Path) -> None:
    with h5py.File(secret, "w") as other:
        other["weight"] = np.ones((3, 4), "f4")
    _weight(root)["weight"] = h5py.ExternalLink(str(secret), "weight")


def _soft_link(root: Any, secret: Path) -> None:
    _weight(root)["weight"] = h5py.SoftLink("/node/nodes/0/bias")


def _circle(root: Any, secret: Path) -> None:
    root["node/nodes/0/again"] = root["node/nodes"]


def _twice(root: Any, secret: Path) -> None:
    for copy in range(3):
        root[f"node/nodes/0/weight{copy}"] = root["node/nodes/0/weight"]


def _deep(root: Any, secret: Path) -> None:
    group = root["node/nodes/0"]
    for _ in range(2000):
        group = group.create_group("a")


def _huge(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (2**40, 4), "f4", chunks=(1024, 4), compression="gzip")


def _huge_plain(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (2**20, 2**20), "f8")


def _bomb(root: Any, secret: Path) -> None:
    array = _weight(root).create_dataset("weight", (2**36, 4), "f4", chunks=(2**16, 4), compression="gzip")
    array[:4] = 1.0


def _early(root: Any, secret: Path) -> None:
    group = _weight(root)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # takes no space on the disk
    h5py.h5d.create(group.id, b"weight", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2**32, 8)), plist)


def _chunks(root: Any, secret: Path) -> None:
    _weight(root).create_dataset("weight", (3, 4), "f4", maxshape=(None, None), chunks=(2**15, 2**14))


def _complex(root: Any, secret: Path) -> None:
    _weight(root)["weight"] = np.ones((3, 4), np.complex64)


def _records(root: Any, secret: Path) -> None:
    _weight(root)["weight"] = np.zeros((3, 4), [("a", "f4"), ("b", "i4")])


def _long_double(root: Any, secret: Path) -> None:
    _weight(root)["weight"] = np.ones((3, 4), np.longdouble)


def _empty(root: Any, secret: Path) -> None:
    _weight(root)["weight"] = h5py.Empty("f4")


HOSTILE: Dict[str, Any] = {
    "external storage": (_external, "the numbers of '/node/nodes/0/weight' are in another file"),
    "virtual": (_virtual, "the numbers of '/node/nodes/0/weight' are in another file"),
    "external link": (_external_link, "'/node/nodes/0/weight' is a link, maybe to another file"),
    "soft link": (_soft_link, "'/node/nodes/0/weight' is a link"),
    "circle": (_circle, "is in the file under another name, too"),
    "one array many times": (_twice, "is in the file under another name, too"),
    "deep": (_deep, "is within more than 64 groups"),
    "huge": (_huge, r"weight' of shape \(1099511627776, 4\) take more than max_bytes=1073741824; if you trust"),
    "huge, not compressed": (_huge_plain, r"weight' of shape \(1048576, 1048576\) take more than max_bytes"),
    "huge, with a part of it": (_bomb, r"weight' of shape \(68719476736, 4\) take more than max_bytes"),
    "huge, in a sparse file": (_early, r"weight' of shape \(4294967296, 8\) take more than max_bytes"),
    "large chunks": (_chunks, r"weight' of shape \(3, 4\) take more than max_bytes"),
    "complex": (_complex, "'/node/nodes/0/weight' has the dtype complex64, which must be real numbers or text"),
    "records": (_records, "'/node/nodes/0/weight' has the dtype .*, which must be real numbers or text"),
    "long double": (
        _long_double,
        "node '0', an Affine, has weight=.* of dtype (float128|>f16|<f16).*, which must be real",
    ),
    "without numbers": (_empty, "'/node/nodes/0/weight' is empty"),
    "without a field": (lambda root, secret: _weight(root), "node '0': TypeError: .*weight"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_file_of_nir_needs(file: Path, tmp_path: Path, kind: str) -> None:
    """Is refused before an array is made: other files of the machine are not read, and its memory is not taken."""
    change, text = HOSTILE[kind]
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(12, dtype="f4").tobytes())
    with h5py.File(file, "r+") as root:
        change(root, secret)
    with pytest.raises(ValueError, match=text):
        sc.nir.load(file)


def test_zeros_are_no_attack(tmp_path: Path) -> None:
    """gzip makes a thousandth of them."""
    net = nn.Sequential(nn.Linear(2**10, 2**10), sc.LIF())
    sc.nir.save(net, tmp_path / "net.nir", dt=1e-3)
    with h5py.File(tmp_path / "net.nir", "r+") as root:
        array = _weight(root).create_dataset("weight", (2**10, 2**10), "f4", chunks=(2**10, 2**10), compression="gzip")
        array[:] = 0.0
        assert array.nbytes > 1000 * array.id.get_storage_size()
    linear: Any = sc.nir.load(tmp_path / "net.nir").get_submodule("0")
    assert not linear.weight.any()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_files_of_something_else(tmp_path: Path, content: bytes) -> None:
    """A sentence with the file's name."""
    (tmp_path / "net.nir").write_bytes(content)
    with pytest.raises(ValueError, match=r"sc\.nir\.load: .*net\.nir is no file of NIR"):
        sc.nir.load(tmp_path / "net.nir")
    with pytest.raises(FileNotFoundError):
        sc.nir.load(tmp_path / "none.nir")


def _changed(file: Path, change: Callable[[Dict[str, Any]], None]) -> None:
    """Change what the file keeps of the LIF."""
    with h5py.File(file, "r+") as root:
        group = root["node/nodes/1/metadata/spikecore"]
        content = json.loads(group["content"][()])
        change(content)
        del group["content"]
        group["content"] = json.dumps(content)


@pytest.mark.parametrize(
    ("field", "name", "value", "text"),
    [
        ("settings", "backend", "ipu", "a file gives no setting 'backend'"),
        ("settings", "step", "single", "a file gives no setting 'step'"),
        ("settings", "bounds", None, "a file gives no setting 'bounds'"),
        ("numbers", "backend", "ipu", "a file gives no parameter 'backend'"),
        ("numbers", "step", "single", "a file gives no parameter 'step'"),
        ("surrogate", 0, "Surrogate.__subclasses__", "has no attribute"),
        ("surrogate", 0, "__path__", "is no surrogate"),
        ("shapes", "tau", [[3], "load", False], "'load' is no dtype"),
        ("learn", None, ["backend"], "learn"),
        ("class", None, "training_model", "was saved as a training_model, which this version"),
    ],
)
def test_metadata_sets_what_save_writes_and_nothing_else(
    file: Path, field: str, name: Any, value: Any, text: str
) -> None:
    """How a network is run is the caller's: the neuron is read from NIR's numbers, with a warning."""

    def change(content: Dict[str, Any]) -> None:
        if name is None:
            content[field] = value
        else:
            content[field][name] = value

    _changed(file, change)
    with pytest.warns(UserWarning, match=text):
        neuron: Any = sc.nir.load(file).get_submodule("1")
    assert type(neuron) is sc.nir.NIRLIF
    assert neuron.step == "multi"
    assert "backend=auto" in repr(neuron)


def test_a_full_disk_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new file takes its place when it is whole, with its permissions."""
    file.chmod(0o640)
    before = file.read_bytes()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            sc.nir.save(network(), file, dt=1e-3)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["net.nir"]
    sc.nir.save(nn.Sequential(nn.Linear(4, 3), sc.IF()), file, dt=1e-3)
    assert file.stat().st_mode & 0o777 == 0o640
    assert isinstance(sc.nir.load(file).get_submodule("1"), sc.IF)
    assert torch.is_tensor(sc.nir.load(file)(torch.ones(2, 1, 4)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_what_is_no_file_stays(tmp_path: Path) -> None:
    """A named pipe and a folder are no file to replace; of a link it is the target that is replaced."""
    os.mkfifo(tmp_path / "pipe")
    for path, error in ((tmp_path / "pipe", OSError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match=r"takes the place of a file, and this is none: '.*'$"):
            sc.nir.save(network(), path, dt=1e-3)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "net.nir")
    sc.nir.save(network(), tmp_path / "link", dt=1e-3)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "net.nir").is_file()


def test_the_limit_is_an_argument(file: Path) -> None:
    """Of all arrays together, long texts among them, and of what a delay keeps."""
    with h5py.File(file, "r+") as root:
        root["node/metadata/long"] = np.array([["a" * 2**16] * 2] * 20, dtype=h5py.string_dtype())
    assert sc.nir.load(file).get_submodule("1").tau.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(
        ValueError, match=r"net.nir is no file of NIR: the arrays up to '/node/metadata/long' of shape \(20, 2\)"
    ):
        sc.nir.load(file, max_bytes=2**20)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"max_bytes={wrong} must be a whole number above 0"):
            sc.nir.load(file, max_bytes=wrong)  # type: ignore[arg-type]
    long = nir.NIRGraph.from_list(nir.Delay(delay=np.array([1e9, 0.0])), type_check=False)
    with pytest.raises(
        ValueError, match=r"node 'delay', a Delay, has a delay of 1e\+12 steps, which keep more than max"
    ):
        sc.nir.load(long, dt=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tau": np.array([1 + 2j, 1])}, "has tau=array([1.+2.j, 1.+0.j]) of dtype complex128, which must be real"),
        ({"tau": np.array([10**400, 1])}, "of dtype object, which must be real numbers of at most 64 bits"),
        ({"r": np.array(["a", "b"])}, "has r=array(['a', 'b']"),
        ({"metadata": {"spikecore": {"content": "[" * 10**5}}}, "metadata 'spikecore' is damaged, no JSON"),
    ],
)
def test_fields_that_are_no_numbers(change: Dict[str, Any], words: str) -> None:
    """The node and the field by name, and the value."""
    ones = np.ones(2)
    node = nir.LIF(tau=ones, r=ones, v_leak=ones, v_threshold=ones)
    vars(node).update(change)
    graph = nir.NIRGraph.from_list(node, type_check=False)
    with pytest.raises(ValueError, match=r"sc\.nir\.load: node 'lif', a LIF, ") as refused:
        sc.nir.load(graph, dt=0.1, discretization="euler")
    assert words in str(refused.value)


@pytest.mark.parametrize("dt", ["[1]", "-1", "true", '"a"', "1" + 400 * "0"])
def test_time_steps_that_are_none(dt: str) -> None:
    """In the metadata of a graph."""
    graph = nir.NIRGraph.from_list(nir.Linear(np.eye(2)), type_check=False)
    graph.metadata = {"spikecore": {"content": f'{{"dt": {dt}, "discretization": "euler"}}'}}
    with pytest.raises(ValueError, match="the graph: metadata 'spikecore' is damaged: dt="):
        sc.nir.load(graph)


def test_numbers_of_metadata_too_large_for_a_float(file: Path) -> None:
    """The neuron is read from NIR's numbers."""
    _changed(file, lambda content: content["numbers"].update(threshold=10**400))
    with pytest.warns(UserWarning, match="was saved as a LIF that cannot be made here"):
        assert type(sc.nir.load(file).get_submodule("1")) is sc.nir.NIRLIF


def test_graphs_of_many_nodes() -> None:
    """In time that grows with them: 20,000 nodes, of which some lead to each other, in subgraphs of a subgraph."""
    one = np.ones(1)
    loop = nir.NIRGraph(
        {
            "input": nir.Input({"input": np.array([1])}),
            "lif": nir.LIF(tau=one, r=one, v_leak=0 * one, v_threshold=one),
            "w_rec": nir.Linear(np.eye(1)),
            "output": nir.Output({"output": np.array([1])}),
        },
        [("input", "lif"), ("lif", "w_rec"), ("w_rec", "lif"), ("lif", "output")],
        type_check=False,
    )
    graph = nir.NIRGraph.from_list(*[loop] * 5000, type_check=False)
    flat = Graph(nir.NIRGraph.from_list(graph, graph, type_check=False))
    assert len(flat.nodes) == 20_000
    loops = flat.loops()
    assert len(loops) == 10_000
    assert loops[1] == {"nirgraph.nirgraph_1.lif", "nirgraph.nirgraph_1.w_rec"}
    for names in loops:
        flat.join(sorted(names), flat.common_name(sorted(names)))
    assert flat.in_order()[:2] == ["nirgraph.nirgraph", "nirgraph.nirgraph_1"]
