"""A device of torch that has no float64, as Apple's GPUs: ``torch.device("single")``, on the memory of the CPU.

``register`` compiles it and tells torch of it, for the rest of the process: call it in a process of its own. It takes
ten seconds the first time, and needs g++ and a torch of 2.11 or newer, whose headers it is written for.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("device.cpp")


class _Current:
    """``torch.single.device(index)``: there is one."""

    def __init__(self, index: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def built(folder: Path) -> Path:
    """The library, in a folder that keeps it; its name says of what it was made."""
    from torch.utils import cpp_extension  # on Python 3.8 its import warns

    text = SOURCE.read_bytes() + torch.__version__.encode()
    made = folder / f"libsingle-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        include = [f"-I{path}" for path in cpp_extension.include_paths()]
        library = f"-L{Path(torch.__file__).parent / 'lib'}"
        with tempfile.TemporaryDirectory(dir=folder) as work:
            new = Path(work, "made.so")
            flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", *include]
            command = ["g++", *flags, str(SOURCE), "-o", str(new), library, "-ltorch", "-ltorch_cpu", "-lc10"]
            subprocess.run(command, check=True)
            os.replace(new, made)
    return made


def register(folder: Path) -> None:
    """Have torch know the device ``"single"``."""
    torch.ops.load_library(str(built(folder)))
    torch.utils.rename_privateuse1_backend("single")
    module: Any = types.ModuleType("torch.single")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.device = _Current
    module.synchronize = lambda *device: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    # what is drawn on it is drawn on the CPU
    module.get_rng_state = lambda *device: torch.get_rng_state()
    module.set_rng_state = lambda state, *device: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module("single", module)


if __name__ == "__main__":
    # python -m tests.shared.single FOLDER ARGUMENT...: the command line of spikecore, where there is the device
    from spikecore.cli import main

    register(Path(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    main()
