"""Names as nobody should give them, in whatever makes files, code, C, tables or pictures of them.

Nothing is executed, nothing is written outside of the folder that was given, and a call gives what it gives under plain
names, or refuses the name. ``NAMES=2000 pytest tests/unit/test_strange_names.py`` draws 2,000 of each.
"""

from __future__ import annotations

import copy
import importlib
import io
import keyword
import os
import pickle
import re
import warnings
import zlib
from collections import OrderedDict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

import refusals
import spikecore as sc
from c_programs import SPIKES, differing, lif, on_grid, spikes
from spikecore.context import COMPILES
from spikecore.lang.render import C_WORDS
from spikecore.layers import TimeBatched
from spikecore_convert import Conversion

#: Examples of each test; ``NAMES=2000`` draws as many.
COUNT = int(os.environ.get("NAMES", "30"))
#: Without shrinking: names are short.
drawn = settings(
    max_examples=COUNT, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)

#: The file that whatever is executed writes, in the current folder.
MARKER = "executed"
_RUN = f'open(bytes({tuple(MARKER.encode())}),"w")'
#: Lone carriage returns and their kin end a line for Python, or for a terminal.
CONTROLS = "\t\n\r\x00\x07\x08\x0b\x0c\x1b\x1c\x1d\x1e\x7f\x85\u2028\u2029\u200b\u202e\ufeff"

PAYLOADS = [
    *(f'l"){end}{_RUN}{end}def g(x=0):#' for end in "\n\r\x0b\x0c\x1c\x85\u2028"),
    *(f"l'){end}{_RUN}{end}def g(x=0):#" for end in "\n\r"),
    f'"+str({_RUN})+"',
    f"'+str({_RUN})+'",
    f'\\"+str({_RUN})+"',
    f'");{_RUN};("',
    f"{{{_RUN}}}",
    f"x=({_RUN})",
    f"{_RUN}",
    f"__import__('builtins').{_RUN}",
    f'"""\n{_RUN}\n"""',
    f"\x02f():\n    pass\n{_RUN}\ndef g",  # with the mark of a symbol (spikecore.lang.render)
    "\x020\x03",
    f"#\n{_RUN}",
    f'*/ __attribute__((constructor)) static void f(void) {{ fopen("{MARKER}", "w"); }} /*',
    f'*\\\n/ int f(void) {{ return system("touch {MARKER}"); }} /*',
    f"$(shell touch {MARKER})",
    f"$(touch {MARKER})",
    f"`touch {MARKER}`",
    f"; touch {MARKER};",
    f"\nall:\n\ttouch {MARKER}\n",
    f"<script>{_RUN}</script>",
    f'"><img src=x onerror="{_RUN}">',
]
#: Those of headers that C has, and of the GNU library.
HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype features alloca"
).split()
MACROS = "NULL EOF INT32_MAX RECORDED_STEPS M_PI NAN INFINITY BUFSIZ L_tmpnam FILE linux unix errno".split()
WORDS = [
    *keyword.kwlist,
    *sorted(C_WORDS),
    *HEADERS,
    *MACROS,
    *"print open exec eval self forward training x v s in out tl np float32 int32_t uint8_t size_t main printf".split(),
    *"input output metadata nodes edges type version spikecore places wiring result weight bias network".split(),
    *"Makefile makefile GNUmakefile recorded Recorded RECORDED test build host step reset nibble work0 none".split(),
    *["", ".", "..", "...", "/", "//", "../executed", "/tmp/executed", "a/b", "..\\executed", "~", "C:", "a.b", "a..b"],
    *r"/* */ a/*b // /*/ ??/ \ # % %s {} {0} {x!r} @name@ $@ $< $ $a$ $\frac$ \$ a\$b$ $$ a_b^c <b> &amp;".split(),
    *["a\\\n", "</td>", "<input>", "<output>", "\x1b[2J", "e\u0301", "\ud800", "a" * 300, "ü" * 100, "a." * 60 + "a"],
    *"τ größe ﬁ ª 1st ² 名前 \U0001d465".split(),
]
_PIECES = [*WORDS, *CONTROLS, *"\"'`;:,()[]{}<>|&=+-*/?!@#$%^~. _", *"abcXYZ019"]

names = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(PAYLOADS),
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join),
    st.builds("{}{}{}".format, st.sampled_from(_PIECES), st.sampled_from(PAYLOADS), st.sampled_from(_PIECES)),
    st.text(max_size=12),
)
#: What a class of neurons takes for a state, and whatever else.
identifiers = st.one_of(
    names.filter(lambda name: name.isidentifier() and not keyword.iskeyword(name)),
    st.from_regex(r"[^\W\d]\w{0,8}", fullmatch=True),
    names,
)


def of_modules(name: str) -> bool:
    """True if torch takes it for a child of an ``nn.Sequential``."""
    return bool(name) and "." not in name and name not in _TAKEN


def of_classes(name: str) -> bool:
    """True if Python takes it for a class."""
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in name)


_TAKEN = {*dir(nn.Sequential())}


def check_said(error: BaseException, *words: str) -> None:
    """An error has the beginning of one of these names, escaped or not."""
    text = " ".join(str(error).split())
    forms = [form for word in words for form in (word, repr(word)[1:-1], ascii(word)[1:-1])]
    assert any(" ".join(form.split())[:20].strip() in text for form in forms), (words, text)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Gives an empty folder at each call. What is around it is compared at the next call and at the end: nothing was
    executed, and nothing written outside.
    """
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    before: Dict[str, int] = {}
    number = 0

    def tree() -> Dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns if path.is_file() else 0
            for path in tmp_path.rglob("*")
            if here / "into" not in (path, *path.parents) and path != here
        }

    def fresh() -> Path:
        nonlocal number
        check()
        for path in sorted((here / "into").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        number += 1
        (here / "into").mkdir(exist_ok=True)
        return here / "into"

    def check() -> None:
        assert tree() == before, "something was executed, or written outside of the folder"
        assert MARKER not in os.listdir(here)

    before.update(tree())
    yield fresh
    check()


Fresh = Callable[[], Path]


def one_in(count: int, *words: str) -> bool:
    """The same examples in every run."""
    return zlib.crc32(repr(words).encode()) % count == 0


# -- NIR


def graph(linear: str, neuron: str) -> Any:
    """A layer and neurons, under these names."""
    nir = pytest.importorskip("nir")
    weight = torch.linspace(-1, 1, 12).view(3, 4).numpy()
    full = {key: torch.full((3,), value).numpy() for key, value in (("tau", 0.02), ("r", 20.0), ("v_leak", 0.0))}
    nodes = {
        "the input": nir.Input({"input": torch.tensor([4]).numpy()}),
        linear: nir.Linear(weight),
        neuron: nir.LIF(**full, v_threshold=torch.full((3,), 0.5).numpy()),
        "the output": nir.Output({"output": torch.tensor([3]).numpy()}),
    }
    edges = [("the input", linear), (linear, neuron), (neuron, "the output")]
    return nir.NIRGraph(nodes, edges, type_check=False)


def load(source: Any) -> Any:
    return sc.nir.load(source, dt=1e-3, discretization="euler")


@drawn
@given(st.tuples(names, names).filter(lambda pair: pair[0] != pair[1]))
def test_nodes_of_nir(watched: Fresh, pair: Tuple[str, str]) -> None:
    folder, x = watched(), torch.rand(5, 2, 4, generator=torch.Generator().manual_seed(0))
    if {*pair} & {"the input", "the output"}:
        return
    source: Any = graph(*pair)
    try:
        importlib.import_module("nir").write(folder / "strange.nir", source)
        source = folder / "strange.nir"
    except Exception:
        pass  # the package cannot write every name; the graph itself is loaded then
    try:
        net = load(source)
    except ValueError as error:
        # a name with a slash is a path for HDF5, so that a file has others
        check_said(error, *pair, *("" for word in pair if "/" in word or word == "."))
        return
    assert all(re.fullmatch(r"[A-Za-z0-9_.]*", name) for name, _ in net.named_modules())
    paths = list(net.places.values())
    if source is not folder / "strange.nir" or "/" not in "".join(pair):
        assert set(net.places) == set(pair)
    assert [type(net.get_submodule(path)).__name__ for path in paths] == ["Linear", "NIRLIF"]
    assert torch.equal(net(x), load(graph("linear", "neuron"))(x))
    assert net.extra_repr().isprintable()
    try:
        sc.nir.save(net, folder / "again.nir", dt=1e-3)
    except ValueError as error:
        check_said(error, *pair)
        return
    again = sc.nir.load(folder / "again.nir")
    assert again.places == net.places
    assert torch.equal(again(x), net(x))


@drawn
@given(st.tuples(names, names).filter(lambda pair: pair[0] != pair[1] and all(map(of_modules, pair))))
def test_modules_in_nir(watched: Fresh, pair: Tuple[str, str]) -> None:
    pytest.importorskip("nir")
    folder, x = watched(), torch.rand(5, 2, 4)
    net = nn.Sequential(OrderedDict(zip(pair, (nn.Linear(4, 3), sc.LIF()))))
    try:
        sc.nir.save(net, folder / "net.nir", dt=1e-3)
    except ValueError as error:
        check_said(error, *pair)
        return
    again = sc.nir.load(folder / "net.nir")
    assert set(again.places) == set(pair)
    assert torch.equal(again(x), net(x))


def test_torch_s_own_tools_on_a_stranger_s_file(watched: Fresh) -> None:
    """Both make code of the names of modules."""
    nir, folder, x = pytest.importorskip("nir"), watched(), torch.rand(1, 2, 4)
    for evil in PAYLOADS:
        if "/" in evil:
            continue
        graph_of_linear = graph(evil, "neuron")
        del graph_of_linear.nodes["neuron"]
        graph_of_linear.edges = [("the input", evil), (evil, "the output")]
        nir.write(folder / "evil.nir", graph_of_linear)
        net = load(folder / "evil.nir")
        assert torch.equal(fx.symbolic_trace(net)(x), net(x))
    nir.write(folder / "evil.nir", graph(PAYLOADS[0], PAYLOADS[1]))
    net = load(folder / "evil.nir")
    exported = torch.export.export(net, (torch.rand(5, 2, 4),))
    assert len([*exported.module().parameters()]) == 1


@pytest.mark.parametrize(
    ("pair", "paths"),
    [
        (("features.0", "features.1"), ["features.0", "features.1"]),
        (("a b", "a/b"), ["a_b", "a_b_"]),
        (("a", "a.b"), ["a", "a_.b"]),  # no child of a layer, which may call its children
        (("x\r", "τ.ü"), ["x_", "_._"]),
        (("forward", ".."), ["forward_", "_._._"]),
    ],
)
def test_paths_of_nodes(pair: Tuple[str, str], paths: List[str]) -> None:
    net = load(graph(*pair))
    assert net.places == dict(zip(pair, paths))
    assert all(net.get_submodule(path) is not None for path in paths)


def test_formats_of_a_loaded_network(tmp_path: Path) -> None:
    """They are at the nodes that have the names of the file."""
    nir = pytest.importorskip("nir")
    net, formats = sc.quant.plain(sc.quant.prepare(load(graph("a b", "c/d")), torch.rand(5, 2, 4)))
    with pytest.raises(ValueError, match="'c/d' cannot be the name of a node in HDF5: it is"):
        sc.nir.save(net, tmp_path / "net.nir", dt=1e-3, formats=formats)
    net, formats = sc.quant.plain(sc.quant.prepare(load(graph("a b", "c d")), torch.rand(5, 2, 4)))
    sc.nir.save(net, tmp_path / "net.nir", dt=1e-3, formats=formats)
    nodes = nir.read(tmp_path / "net.nir").nodes
    assert all("spikecore_formats" in nodes[name].metadata for name in ("a b", "c d"))


# -- C


@drawn
@given(
    st.lists(names.filter(of_modules), min_size=3, max_size=3, unique=True),
    names.filter(of_classes),
    identifiers,
    names,
)
def test_names_in_c(watched: Fresh, path: List[str], owner: str, state: str, name: str) -> None:
    folder = watched()
    try:
        kind: Any = type(owner, (Kept,), {"states": {state: 0.0}})
    except TypeError as error:
        check_said(error, state)
        kind = type(owner, (Kept,), {"states": {"v": 0.0}})
    neuron = sc.quant.fixed(kind(), word=16, frac=10)
    net = on_grid(nn.Sequential(OrderedDict(zip(path, (nn.Linear(6, 4), neuron, nn.Linear(4, 2))))))
    for called in (name, "network"):
        try:
            program = sc.export_c(net, spikes(5, 6), folder / "program", name=called, inputs=SPIKES)
        except (TypeError, ValueError) as error:
            check_said(error, called, *path)
            assert not (folder / "program").exists()
            continue
        assert all(re.fullmatch(r"((test|web)/)?[A-Za-z0-9_]+(\.[a-z]+)?", file) for file in program.files)
        texts = [(folder / "program" / file).read_text(encoding="utf-8") for file in program.files[:2]]
        assert all(line.isprintable() for text in texts for line in text.split("\n"))
        if one_in(10, called, owner, state, *path) or called != "network":
            assert differing(folder / "program", "test", "FLAGS=-O0")[0] == 0
        break


class Kept(sc.Neuron):
    """Keeps half of its only state, whatever that is called."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        (name,) = self.states
        h = getattr(s, name) * 0.5 + x
        z = self.spike(h - 0.25)
        return z, {name: h - z * 0.25}


@pytest.mark.parametrize(
    "name", ["stddef", "stdarg", "features", "stdint", "stdio", "math", "Makefile", "test", "host"]
)
def test_names_of_headers_and_targets(name: str, tmp_path: Path) -> None:
    """No header of the system is shadowed, and no rule of Make's own makes the Makefile."""
    sc.export_c(on_grid(nn.Sequential(nn.Linear(6, 4), lif())), spikes(5, 6), tmp_path, name=name, inputs=SPIKES)
    assert differing(tmp_path)[0] == 0


# -- conversion


class Block(nn.Module):
    """A residual block, whose modules are children of a list and of chains."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.parts = nn.Sequential(OrderedDict([(first, nn.Linear(4, 4)), (second, sc.LIF())]))
        linear, norm = TimeBatched(nn.Linear(4, 4)), TimeBatched(nn.BatchNorm1d(4))
        self.chain = nn.Sequential(OrderedDict([(first, linear), (second, norm)]))
        self.last = sc.LIF()

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, 4]``."""
        for part in self.parts:
            x = part(x)
        return self.last(self.chain(x) + x)


@drawn
@given(st.lists(names.filter(of_modules), min_size=4, max_size=4, unique=True))
def test_names_in_conversions(watched: Fresh, path: List[str]) -> None:
    folder, x = watched(), torch.rand(5, 2, 4)
    parts = (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.eye_(parts[0].weight)
    ann = nn.Sequential(OrderedDict(zip(path, parts))).eval()
    plain = nn.Sequential(*copy.deepcopy(parts)).eval()
    (snn, report), (expected, _) = (sc.ann2snn(net, x[0], steps=4) for net in (ann, plain))
    assert torch.equal(snn(x[0]), expected(x[0]))
    assert all(line.isprintable() for line in str(report).split("\n"))
    assert str(report).count("\n") == 2
    assert str(Conversion(dict.fromkeys(path, "LIFNode -> LIF()"), {})).count("\n") == 4
    torch.save(ann.state_dict(), folder / "weights.pt")
    sc.load_weights(nn.Sequential(OrderedDict(zip(path, copy.deepcopy(parts)))), folder / "weights.pt")
    net = Block(*path[:2]).eval()
    before = net(x)
    with warnings.catch_warnings():
        # a block with such a name stays as it is
        warnings.filterwarnings("ignore", r"sc\.(fuse|layers\.pack)", Warning)
        sc.fuse(net)
    assert torch.allclose(net(x), before)
    assert torch.allclose(pickle.loads(pickle.dumps(net))(x), before)
    if COMPILES:  # packing needs torch 2.6
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"sc\.(fuse|layers\.pack)", Warning)
            sc.layers.pack(net)
    assert torch.allclose(net(x), before)


# -- tables and pictures


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: List[Tuple[str, Any]] = []
        self.texts: List[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@drawn
@given(st.lists(names.filter(of_modules), min_size=3, max_size=3, unique=True), names.filter(of_classes))
def test_names_in_tables_and_pictures(watched: Fresh, path: List[str], owner: str) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib.figure import Figure

    folder, x = watched(), torch.rand(5, 2, 4)
    kind: Any = type(owner, (sc.LIF,), {})
    net = nn.Sequential(OrderedDict(zip(path, (nn.Linear(4, 4), kind(), nn.Linear(4, 2)))))
    with sc.monitor(net) as seen:
        net(x)
    for report in (sc.explain(net, x), sc.energy(net, x), seen):
        assert all(line.isprintable() for line in str(report).split("\n"))
        page = Tags()
        page.feed(report._repr_html_())
        known = {(tag, ()) for tag in "table thead tr th td p ol li".split()} | {("td", ("colspan",))}
        assert {*page.tags} <= known
    ax = Figure(figsize=(2, 2)).subplots()
    sc.plot.rates(seen, ax=ax)
    if one_in(4, owner, *path):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            ax.figure.savefig(folder / "rates.png", dpi=20)
    if one_in(20, owner, *path):
        writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(folder / "log"))
        seen.log(writer, 0)
        writer.close()


@pytest.mark.parametrize("name", ["$a$", r"$\frac$", r"a\$b$", "$$"])
def test_a_name_is_no_mathematics(name: str) -> None:
    """In a picture it is drawn as it is."""
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    sc.plot.rates({name: torch.rand(4)}, ax=ax)
    text = io.BytesIO()
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        FigureCanvasSVG(ax.figure).print_svg(text)
    assert f">{name}</text>" in text.getvalue().decode()


test_refused = refusals.table(__file__, globals())
