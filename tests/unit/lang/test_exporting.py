"""Whether a graph is exported or compiled: one has plain operations of torch, the other kernels."""

from __future__ import annotations

import pytest
import torch

from spikecore.lang._plain import is_exporting


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="torch says whether it compiles from 2.1 on")
def test_a_compiled_graph_is_not_exported() -> None:
    """Torch's own function said that it was, up to 2.11 at least."""

    def which(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if is_exporting() else 2)

    compiled = torch.compile(which, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(())).item() == 2


def test_an_exported_program_is() -> None:
    """From torch 2.7 on, read from Python or traced."""
    if not hasattr(getattr(torch, "compiler", None), "is_exporting"):
        pytest.skip("torch says that it exports from 2.7 on")

    class Which(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (1 if is_exporting() else 2)

    for strict in (False, True):
        program = torch.export.export(Which(), (torch.zeros(()),), strict=strict)
        assert program.module()(torch.zeros(())).item() == 1
