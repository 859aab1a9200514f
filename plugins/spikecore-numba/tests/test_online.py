"""Online rules with the kernels of this backend: recursions by hand, with feedback within a kernel."""

from __future__ import annotations

import pytest
import torch

from online_rules import (
    B,
    K,
    T,
    alif_by_hand,
    batch,
    check,
    eprop_by_hand,
    gradients,
    read_out_of_lif,
    recurrent_alif,
    squares,
)

CHUNKS = pytest.mark.parametrize("chunk", [1, 7, T])


@CHUNKS
def test_d_rtrl_of_a_recurrent_layer(chunk: int) -> None:
    """Two states, a learnt parameter, and all steps of a chunk in one call."""
    net, (x, (target,)) = recurrent_alif("numba"), batch()
    check(gradients(net, x, (target,), rule="d_rtrl", chunk=chunk), alif_by_hand(net, x, target))
    assert net[1].looped == ""


@CHUNKS
def test_eprop_with_a_leaky_read_out(chunk: int) -> None:
    """A program whose reset is detached, and a read-out whose memory is in the traces."""
    net, (x, _) = read_out_of_lif("numba"), batch()
    targets = torch.randn(T, B, K, dtype=torch.float64)
    check(gradients(net, x, targets, squares, rule="eprop", chunk=chunk), eprop_by_hand(net, x, targets))
    assert net[1].looped == ""
