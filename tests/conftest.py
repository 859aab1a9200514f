"""What a test sees does not depend on which plugins are installed beside spikecore."""

from __future__ import annotations

from typing import Iterator

import pytest

from spikecore import selection
from spikecore.candidates import OWN


@pytest.fixture(scope="session", autouse=True)
def _no_plugin_unasked() -> Iterator[None]:
    """A neuron that names no backend is computed by a built-in. Processes that tests start are theirs to set up."""
    before = selection.AUTO
    selection.AUTO = {device: tuple(n for n in names if n not in OWN) for device, names in before.items()}
    yield
    selection.AUTO = before
