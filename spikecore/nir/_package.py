"""The package nir, which is imported when it is used: spikecore works without it."""

from __future__ import annotations

from typing import Any


def package() -> Any:
    """The module ``nir``; ImportError with the command that installs it."""
    try:
        import nir
    except ImportError as error:
        raise ImportError(
            "sc.nir reads and writes files with the package nir, which is not installed: pip install 'spikecore[nir]', "
            "or pip install nir (Python 3.10 or newer)"
        ) from error
    return nir
