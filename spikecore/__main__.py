"""``python -m spikecore`` is the ``spikecore`` command."""

from __future__ import annotations

from spikecore.cli import main

if __name__ == "__main__":
    main()
