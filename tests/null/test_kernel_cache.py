"""Compiled kernels on disk and in memory: private, verified by name and content, bounded."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Callable, List

import pytest
from click.testing import CliRunner

from spikecore import cli
from spikecore.kernels import cache

KEY = "kernel-0123456789abcdef01234567.o"
OTHER = "kernel-89abcdef0123456701234567.o"

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="rights and owners are those of POSIX")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the folder of its entries."""
    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SPIKECORE_CACHE_SIZE", raising=False)
    return tmp_path / "cache" / "compiled-kernels"


def names(folder: Path) -> List[str]:
    """The files of a folder but the tag; entries without their kind, ``cpu``."""
    return sorted(path.name.replace("cpu.", "") for path in folder.iterdir() if path.name != "CACHEDIR.TAG")


def file(folder: Path, key: str = KEY, kind: str = "cpu") -> Path:
    """The file of an entry."""
    return folder / f"{kind}.{key}"


def place(folder: Path, what: str) -> Path:
    """The folder above that of entries, the folder, or the file of an entry."""
    return {"base": folder.parent, "folder": folder, "file": file(folder)}[what]


def theirs(inode: int, ask: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    """``os.stat`` or one like it, for which the file of this number belongs to another user."""

    def told(*arguments: Any, **options: Any) -> os.stat_result:
        stats = ask(*arguments, **options)
        return os.stat_result((*stats[:4], stats.st_uid + 1, *stats[5:])) if stats.st_ino == inode else stats

    return told


class TestContent:
    def test_what_is_written_is_read(self, folder: Path) -> None:
        """Under its kind and its name."""
        cache.write("cpu", KEY, b"code")
        assert cache.read("cpu", KEY) == b"code"
        assert cache.read("cpu", OTHER) is None
        assert cache.read("gpu", KEY) is None

    def test_an_entry_under_another_name_is_none(self, folder: Path) -> None:
        """A file that was copied or renamed is another kernel's, whatever its content: it is not run."""
        cache.write("cpu", KEY, b"code")
        cache.write("cpu", OTHER, b"other")
        cache.write("gpu", KEY, b"gpu")
        file(folder).write_bytes(file(folder, OTHER).read_bytes())
        file(folder).chmod(0o600)
        assert cache.read("cpu", KEY) is None
        file(folder).write_bytes(file(folder, KEY, "gpu").read_bytes())
        assert cache.read("cpu", KEY) is None
        assert cache.read("cpu", OTHER) == b"other"

    @pytest.mark.parametrize("cut", [0, 1, 40, 70, -1])
    def test_a_file_that_is_cut_short_is_none(self, folder: Path, cut: int) -> None:
        """It is none with a part of its hash and without."""
        cache.write("cpu", KEY, b"code")
        file(folder).write_bytes(file(folder).read_bytes()[:cut])
        assert cache.read("cpu", KEY) is None

    def test_comments_mean_nothing(self) -> None:
        """Texts that differ in a docstring, in comments and in empty lines are one kernel; others are not."""
        python = '"""LIF."""\n\n# ATan(alpha)\n\ndef f(x):\n    # a step\n    return x\n'
        assert cache.meaning(python, "#") == cache.meaning('"""IF."""\ndef f(x):\n    return x\n', "#")
        assert cache.meaning(python, "#") != cache.meaning(python.replace("return x", "return  x"), "#")
        c = '// LIF\n#include "spikecore.cuh"\nint f();  // f\n'
        assert cache.meaning(c, "//") == cache.meaning('#include "spikecore.cuh"\nint f();  // f\n', "//")
        for exact in ("// a \\\nint f();\n", 'auto s = R"(\n// a\n)";\n'):
            assert cache.meaning(exact, "//") == exact


class TestRights:
    @posix
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_folders_and_files_are_the_users_alone(self, folder: Path, umask: int) -> None:
        """Whatever the umask."""
        before = os.umask(umask)
        try:
            cache.write("cpu", KEY, b"code")
        finally:
            os.umask(before)
        modes = [path.stat().st_mode & 0o777 for path in (folder.parent, folder, file(folder))]
        assert modes == [0o700, 0o700, 0o600]
        assert cache.read("cpu", KEY) == b"code"

    @posix
    @pytest.mark.parametrize("right", [0o020, 0o002], ids=["group", "others"])
    @pytest.mark.parametrize("what", ["base", "folder", "file"])
    def test_what_others_can_write_is_not_read(
        self, folder: Path, what: str, right: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And the log says why. The permissions of a folder are the user's to mend; a file is written anew."""
        cache.write("cpu", KEY, b"code")
        path = place(folder, what)
        mode = path.stat().st_mode & 0o777 | right
        path.chmod(mode)
        with caplog.at_level(logging.DEBUG, "spikecore"):
            assert cache.read("cpu", KEY) is None
        assert f"{path} is not used: others may write to it" in caplog.text
        cache.write("cpu", KEY, b"code")
        assert cache.read("cpu", KEY) == (b"code" if what == "file" else None)
        assert path.stat().st_mode & 0o777 == (0o600 if what == "file" else mode)

    @posix
    @pytest.mark.parametrize("what", ["base", "folder", "file"])
    def test_what_belongs_to_others_is_neither_read_nor_removed(
        self, folder: Path, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor is anything written to a folder of another user. It costs the cache and nothing else."""
        cache.write("cpu", KEY, b"code")
        path = place(folder, what)
        for name in ("stat", "lstat", "fstat"):
            monkeypatch.setattr(os, name, theirs(path.stat().st_ino, getattr(os, name)))
        with caplog.at_level(logging.DEBUG, "spikecore"):
            assert cache.read("cpu", KEY) is None
            cache.write("cpu", OTHER, b"other")
        assert f"{path} is not used: it belongs to user {os.getuid() + 1}" in caplog.text
        assert names(folder) == ([KEY, OTHER] if what == "file" else [KEY])
        assert sum(kind.files for kind in cache.kinds().values()) == (what == "file")
        assert cache.clear()[0] == (what == "file")
        assert names(folder) == [KEY]


class TestSize:
    def test_what_was_not_used_for_longest_goes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reading counts as use."""
        keys = [f"kernel-{k:024x}.o" for k in range(3)]
        begin = time.time() - 100
        for age, key in enumerate(keys):
            cache.write("cpu", key, bytes(4000))
            os.utime(file(folder, key), (begin + age,) * 2)
        assert cache.read("cpu", keys[0]) is not None
        monkeypatch.setenv("SPIKECORE_CACHE_SIZE", "0.01")  # 10 KiB; now, since some writes trim, too
        cache.trim()
        assert names(folder) == [keys[0], keys[2]]

    @pytest.mark.parametrize("size", ["much", "-1", "nan", "inf"])
    def test_a_limit_that_is_no_number(self, folder: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
        """Ends no call: a warning names the setting, its value and what is allowed, and the default counts."""
        monkeypatch.setenv("SPIKECORE_CACHE_SIZE", size)
        text = rf"SPIKECORE_CACHE_SIZE='{size}' must be a number of MiB, 0 or more, such as 512; 512 is taken"
        with pytest.warns(RuntimeWarning, match=text):
            cache.write("cpu", KEY, b"code")
        assert cache.read("cpu", KEY) == b"code"

    def test_files_of_killed_processes_go(self, folder: Path) -> None:
        """An hour later; what is being written now stays, and so does every file that is not ours."""
        cache.write("cpu", KEY, b"code")
        start = file(folder).read_bytes()[:-2]
        for name in (".spikecore-old.tmp", ".spikecore-new.tmp", ".spikecore-notes", ".spikecore-my.tmp", "notes.txt"):
            (folder / name).write_bytes(start if name in (".spikecore-old.tmp", ".spikecore-new.tmp") else b"notes")
            if "new" not in name:
                os.utime(folder / name, (time.time() - 7200,) * 2)
        (folder / ".spikecore-empty.tmp").touch()
        os.utime(folder / ".spikecore-empty.tmp", (time.time() - 7200,) * 2)
        cache.trim()
        assert names(folder) == [".spikecore-my.tmp", ".spikecore-new.tmp", ".spikecore-notes", KEY, "notes.txt"]


class TestCommand:
    def said(self, *arguments: str) -> str:
        """The output of ``spikecore cache``."""
        result = CliRunner().invoke(cli.app, ["cache", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    def test_it_shows_and_clears(self, folder: Path) -> None:
        """Folder, limit, kinds with files and bytes; ``--clear`` removes entries."""
        assert "nothing is kept" in self.said()
        cache.write("cpu", KEY, b"code")
        cache.write("cupy-host", KEY, b"code")
        lines = self.said().splitlines()
        assert lines == [f"{folder}, 512.0 MiB at most", "  cpu: 1 files, 0.0 MiB", "  cupy-host: 1 files, 0.0 MiB"]
        sizes = {kind: file(folder, kind=kind).stat().st_size for kind in ("cpu", "cupy-host")}
        kinds = {kind: {"files": 1, "bytes": size} for kind, size in sizes.items()}
        assert json.loads(self.said("--json")) == {"folder": str(folder), "limit": 512 * 2**20, "kinds": kinds}
        assert self.said("--clear") == f"removed 2 files, 0.0 MiB, from {folder}\n"
        assert names(folder) == []


def test_a_key_is_of_its_parts() -> None:
    """Parts that meet elsewhere are other parts."""
    assert cache.key_of("ab", "c") != cache.key_of("a", "bc")
    assert cache.key_of("ab", "c") == cache.key_of("ab", "c")
