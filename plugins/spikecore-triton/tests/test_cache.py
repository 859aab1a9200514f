"""Text that is kept on disk: what the cache promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from spikecore_triton import cache
from spikecore_triton.compiler import compiled
from spikecore_triton.writer import Source

TEXT = '"""A kernel."""\n\nimport triton\n\n\n@triton.jit\ndef kernel(xs):\n    pass\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "triton"


def test_text_is_kept_under_a_name_that_says_what_it_is(folder: Path) -> None:
    """The same text is the same file; another text is another one."""
    path = cache.placed("kernel", TEXT)
    assert path.parent == folder
    assert path.name.startswith("kernel-")
    assert path.read_text() == TEXT
    written = path.stat().st_mtime_ns
    assert cache.placed("kernel", TEXT) == path
    assert path.stat().st_mtime_ns == written
    assert cache.placed("kernel", TEXT + "\n") != path
    assert len(list(folder.glob("*.py"))) == 2


@pytest.mark.parametrize("content", [b"", TEXT[:20].encode(), b"\xff\xfe"])
def test_a_broken_file_is_written_anew(folder: Path, content: bytes) -> None:
    """What is not the text is not taken for it."""
    path = cache.placed("kernel", TEXT)
    path.write_bytes(content)
    assert cache.placed("kernel", TEXT).read_text() == TEXT


@pytest.mark.parametrize("where", ["a file", "nowhere"])
def test_a_folder_that_takes_nothing_costs_only_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Where nothing can be written, the text lies in a folder of the process."""
    chosen = Path("/proc/none") if where == "nowhere" else tmp_path / "cache"
    if where == "a file":
        chosen.write_text("")
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(chosen))
    path = cache.placed("kernel", TEXT)
    assert chosen not in path.parents
    assert path.read_text() == TEXT


def test_a_text_is_one_function_in_a_process(folder: Path) -> None:
    """Two plans with the same text share what is compiled."""
    source = Source("kernel", TEXT, (), 256)
    assert compiled(source) is compiled(Source("kernel", TEXT, (), 256))
    assert compiled(source) is compiled(Source("kernel", TEXT.replace("A kernel", "The same kernel"), (), 256))
    assert compiled(source) is not compiled(Source("kernel", TEXT.replace("pass", "return"), (), 256))
