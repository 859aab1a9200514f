"""The numbers of ``sc.explain`` and the reasons of copies, beside those counted by hand."""

from __future__ import annotations

import gc
from typing import Any, List, Tuple

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import spikecore as sc
from kernel_loop import Loop as KernelLoop
from spikecore._explain._layers import Copy
from spikecore._explain._reasons import copies
from spikecore._explain._traffic import Moved, Traffic
from spikecore._explain._watching import Seen, _described
from spikecore.testing._loopback import installed


def products(net: nn.Module, *given: Tensor) -> List[int]:
    return [layer.products for layer in sc.explain(net, given).layers if layer.products]


def copied(found: Any) -> List[str]:
    """What is advised about copies."""
    return [text for text in found.advice if "were copied to lay them out anew" in text]


def test_products_of_every_layer_with_weights() -> None:
    """Each is the loop over its weights: a transposed convolution from its input, a recurrent layer at every step."""
    x = torch.rand(3, 2, 4, 5, 5)
    images = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(4, 6, 3, groups=2)),
        sc.LIF(),
        sc.layers.TimeBatched(nn.ConvTranspose2d(6, 8, 2, 2)),
    )
    assert products(images, x) == [6 * (6 * 9) * (2 * 9), 6 * (6 * 9) * (8 * 4)]
    recurrent = nn.Sequential(nn.Linear(4, 5), sc.Recurrent(sc.LIF(), nn.Linear(5, 5)))
    assert products(recurrent, torch.rand(7, 2, 4)) == [7 * 2 * 4 * 5, 7 * 2 * 5 * 5]


def test_products_of_calls_that_differ() -> None:
    """A layer that is called with tensors of two sizes computes the products of both."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, few: Tensor, many: Tensor) -> Tensor:
            return self.linear(few).sum() + self.linear(many).sum()

    assert products(Twice(), torch.rand(2, 4), torch.rand(30, 4)) == [32 * 4 * 5]


def test_products_that_are_computed_once_count_once() -> None:
    """``sc.hoist``: the output has six steps, of which one was computed."""
    net = nn.Sequential(sc.encode.Constant(6), nn.Linear(4, 5), sc.LIF(), nn.Linear(5, 3))
    assert products(net, torch.rand(2, 4)) == [6 * 2 * 4 * 5, 6 * 2 * 5 * 3]
    assert products(sc.hoist(net), torch.rand(2, 4)) == [2 * 4 * 5, 6 * 2 * 5 * 3]


@pytest.mark.parametrize("steps", range(2, 26))
def test_other_numbers_in_the_memory_of_spikes_are_no_spikes(steps: int) -> None:
    """Spikes that are freed leave their memory to what the next layer keeps, often at the same address."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif, self.linear = sc.LIF(threshold=0.2, backend="torch"), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.lif(x) * 0.5 + 0.1)

    found = sc.explain(Scaled(), torch.rand(steps, 8, 16))
    assert [layer.saved_spikes for layer in found.layers] == [0, 0]


def test_a_step_that_a_layer_writes_out_is_no_layout_to_mend() -> None:
    """The advice for it is to compute the layer once."""
    net = nn.Sequential(nn.Linear(16, 16), sc.LIF(backend="torch"))
    found = sc.explain(net, torch.rand(8, 16).expand(6, 8, 16))
    assert [(one.reason, one.bytes) for one in found.layers[0].copies] == [
        ("a step that is repeated 6 times is written out", 4 * 6 * 8 * 16)
    ]
    assert not copied(found)


def test_no_advice_about_copies_where_there_are_no_steps() -> None:
    """A state of one step is more than the nothing that the layers give."""
    with installed(KernelLoop, devices=("cpu",)):
        assert not copied(sc.explain(sc.LIF(backend=KernelLoop.name), torch.rand(0, 2, 4)))


def reasons(module: nn.Module, x: Tensor, *moved: Tuple[bool, int]) -> List[Tuple[str, str]]:
    """When and why, for copies of so many numbers in a layer that a compiled kernel computes."""
    seen, traffic = Seen(0, "", module), Traffic()
    seen.compiles, seen.inputs = True, (_described(x),)
    traffic.copies = [
        Moved(backward, False, ("aten::contiguous", "aten::clone"), numbers) for backward, numbers in moved
    ]
    found: Tuple[Copy, ...] = copies(seen, traffic)
    return [(one.when, one.reason) for one in found]


def test_copies_of_a_recurrent_layer_are_those_of_its_input() -> None:
    """No layout of the data would take away those of the weight and of one step."""
    module, x = sc.Recurrent(sc.LIF(), nn.Linear(8, 8)), torch.rand(5, 2, 8)
    assert reasons(module, x, (False, 16), (False, 64), (True, 16)) == []
    across = torch.rand(2, 5, 8).transpose(0, 1)
    assert reasons(module, across, (False, 80), (False, 64)) == [
        ("forward", "the steps of the input are not dense in memory (strides (8, 40, 1))")
    ]


def test_an_input_that_is_copied_is_copied_again() -> None:
    """It is kept for backward as it was given; a further copy there is of the output's gradient."""
    across = torch.rand(2, 5, 8).transpose(0, 1)
    strides = "the steps of the input are not dense in memory (strides (8, 40, 1))"
    gradient = "the gradient of the output does not lie as the input does"
    again = ("backward", f"{strides}, and it was kept as it was given")
    assert reasons(sc.LIF(), across, (True, 80), (False, 80)) == [("forward", strides), again]
    assert reasons(sc.LIF(), across, (False, 80), (True, 80), (True, 80)) == [
        ("forward", strides),
        again,
        ("backward", gradient),
    ]
    assert reasons(sc.LIF(), torch.rand(5, 2, 8), (True, 80)) == [("backward", gradient)]


def test_copies_within_a_convolution_are_its_own() -> None:
    """Of an input that lies as it should, a convolution copies what it gives, or its weight."""
    x, seen, traffic = torch.rand(2, 3, 4, 4), Seen(0, "", nn.ConvTranspose2d(3, 4, 2)), Traffic()
    seen.inputs = (_described(x),)
    traffic.copies = [
        Moved(False, False, ("aten::_convolution", "aten::clone"), numbers) for numbers in (48, x.numel())
    ]
    assert [one.reason for one in copies(seen, traffic)] == [
        "_convolution lays out its weight or output for itself",
        "_convolution needs the numbers in another layout",
    ]


def test_arguments_that_are_none() -> None:
    """They are named."""
    net, x = nn.Linear(3, 3), torch.rand(2, 3)
    with pytest.raises(TypeError, match="training='no' must be True, or False"):
        sc.explain(net, x, training="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss=3 must be a function of the outputs of net, or None"):
        sc.explain(net, x, loss=3)  # type: ignore[arg-type]


def test_the_meta_device_is_refused() -> None:
    """There are no numbers on it."""
    with pytest.raises(ValueError, match="on the meta device, which holds no numbers to run on"):
        sc.explain(nn.Linear(3, 3, device="meta"), torch.rand(2, 3))


def test_what_autograd_dropped_is_not_kept() -> None:
    """A part of the network whose outputs nobody took keeps nothing; what it shared counts where it is kept."""

    class Monitors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.used = nn.Sequential(nn.Linear(6, 64), nn.Tanh()), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            self.seen(x)
            return self.used(x)

    found = sc.explain(Monitors(), torch.rand(2, 6))
    assert [(layer.name, layer.saved) for layer in found.layers] == [("seen.0", 0), ("seen.1", 0), ("used", 4 * 2 * 6)]
    assert found.saved == 4 * 2 * 6


def test_a_network_that_raises_leaves_no_graph_behind() -> None:
    """What a rectifier saves is its own output. The hook that kept it as it was kept its whole graph for ever where no
    backward pass followed, as in a network that runs out of memory.
    """
    memory: List[Any] = []

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.tanh = nn.Linear(6, 6), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            out = self.tanh(self.linear(x))
            memory.append(StorageWeakRef(out.untyped_storage()))
            raise MemoryError("no more")

    with pytest.raises(MemoryError, match="no more"):
        sc.explain(Raises(), torch.rand(2, 6))
    gc.collect()
    assert memory[0].expired()


def test_a_write_that_spoils_the_gradient_is_said() -> None:
    """As torch says it without the hooks of ``explain``."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x).exp()
            return out.mul(out.add_(1.0))

    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .* is at version 1; expected version 0"):
        sc.explain(Writes(), torch.rand(2, 6))
