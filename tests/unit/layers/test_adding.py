"""Residual sums within the kernel of the neuron in front of them: ``sc.fuse`` and ``SEWBlock``."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from kernel_loop import Loop, bound
from sequences import Halved
from spikecore.layers import SEWBlock
from spikecore.models._spikformer import Added
from spikecore.testing._loopback import installed

T, B = 4, 3


def neuron() -> sc.Neuron:
    """A neuron on a backend whose kernels are loops."""
    made: sc.Neuron = bound(sc.LIF(), Loop(4))
    return made


def block(*arguments: int, make: Any = neuron, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return SEWBlock(*arguments, make, **options)


def images(channels: int = 4) -> Tensor:
    return (torch.rand(T, B, channels, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.4).float()


def results(net: nn.Module, x: Tensor) -> List[Tensor]:
    """Output and all gradients."""
    given = x.clone().requires_grad_()
    y = net(given)
    (y * torch.linspace(-1.0, 2.0, y.numel()).view(y.shape)).sum().backward()
    return [y.detach(), given.grad, *[p.grad for p in net.parameters()]]  # type: ignore[list-item]  # they are there


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"bottleneck": True}], ids=str)
def test_a_fused_block_computes_what_it_computed(options: Any) -> None:
    """Outputs and gradients; torch adds no spikes, where it added them before."""
    plain, fused = block(4, 4, **options), sc.fuse(block(4, 4, **options))
    for mine, its in zip(results(fused, images()), results(plain, images())):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=2e-5)
    assert plain(images()).grad_fn.name() == "AddBackward0"
    assert fused(images()).grad_fn.name() != "AddBackward0"
    undone = sc.unfuse(fused)
    assert torch.equal(undone(images()), plain(images()))


def test_a_body_that_does_more_than_to_call_its_parts_is_called() -> None:
    """The neuron at its end gives something else than the body does."""
    plain = sc.fuse(block(4, 4))
    plain.body = Halved(*plain.body[:-1], nn.Identity(), plain.body[-1])
    assert torch.equal(plain(images()), plain.body(images()) + images())


@pytest.mark.parametrize("connect", ["and", "iand"])
def test_other_joints_stay_outside(connect: str) -> None:
    """Only sums are part of a kernel."""
    plain = block(4, 4, connect=connect)
    fused = sc.fuse(copy.deepcopy(plain))
    assert torch.equal(fused(images()), plain(images()))
    with pytest.raises(TypeError, match="takes 1 input"):
        fused.body[-1](images(), images())


def test_sums_of_other_dtypes_and_orders_are_torchs() -> None:
    """A shortcut of another dtype, another order of memory, one that broadcasts: as without fusing."""
    fused = sc.fuse(block(4, 4))
    last = fused.body[-1]
    x = images()
    spikes = last(x)
    for skip in (x.double(), x.movedim(2, -1).contiguous().movedim(-1, 2)):
        found = last(x, skip)
        assert found.dtype == (spikes + skip).dtype
        assert torch.equal(found, spikes + skip)
        assert found.grad_fn.name() == "AddBackward0"
    fused.shortcut = nn.AdaptiveAvgPool3d((4, 1, 1))
    assert fused(x).shape == x.shape


def test_whoever_sees_the_spikes_still_sees_them() -> None:
    """A hook of the neuron, one of the body, a monitor: the block is computed with its sum outside."""
    fused = sc.fuse(block(4, 4))
    wanted, seen = fused(images()), []
    for module in (fused.body, fused.body[-1]):
        handle = module.register_forward_hook(lambda module, args, out: seen.append(out))
        assert torch.equal(fused(images()), wanted)
        handle.remove()
    assert len(seen) == 2
    for spikes in seen:
        assert set(spikes.unique().tolist()) <= {0.0, 1.0}
    with sc.monitor(fused) as watched:
        assert torch.equal(fused(images()), wanted)
    assert watched["body.3"].rate == pytest.approx(seen[0].mean().item())


def test_explain_tells_of_the_shortcut() -> None:
    """Hooks that only look do not change what is computed."""
    with installed(Loop, devices=("cpu",)) as name:
        found = sc.explain(sc.fuse(block(4, 4, make=lambda: sc.LIF(backend=name))), images())
    (layer,) = [layer for layer in found.layers if layer.name == "body.3"]
    assert layer.notes == ("normalises its input, and adds a shortcut to its spikes",)
    plain = sc.explain(block(4, 4), images())
    assert layer.rate == next(layer.rate for layer in plain.layers if layer.name == "body.3") > 0
    (first,) = [layer for layer in found.layers if layer.name == "body.1"]
    assert first.notes == ("normalises its input",)


def test_a_backend_without_several_inputs() -> None:
    """It normalises within its kernels all the same, and torch adds; what must be one program is refused."""

    class Without(Loop):
        capabilities = replace(Loop.capabilities, several_inputs=False)

    def make() -> sc.Neuron:
        made: sc.Neuron = bound(sc.LIF(), Without(4))
        return made

    fused = sc.fuse(block(4, 4, make=make))
    found = results(fused, images())
    for mine, its in zip(found, results(block(4, 4), images())):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=2e-5)
    assert fused.body[-1].reason == ""
    assert fused(images()).grad_fn.name() == "AddBackward0"
    for shortcut in ("before", "after"):
        with pytest.raises(sc.Unsupported, match="several_inputs"):
            sc.layers.NormNeuron(nn.BatchNorm2d(4), make(), shortcut=shortcut, fused=True)(images(), images())


def test_single_steps() -> None:
    """The block of one step adds the shortcut, too, and carries its states."""
    plain = block(4, 4, make=lambda: bound(sc.LIF(step="single"), Loop(4)))
    plain = sc.set_step(plain, "single")
    fused = sc.fuse(copy.deepcopy(plain))
    for x in images():
        assert torch.equal(fused(x), plain(x))


def other_body(kind: str) -> nn.Module:
    """A block whose body is no plain sequence of modules."""
    made = block(4, 4)
    if kind == "compiled":
        made.body = torch.compile(made.body, backend="eager")
    elif kind == "compiled in place":
        made.body.compile(backend="eager")
    elif kind == "no sequence":
        made.body = nn.Identity()
    else:
        made.body = nn.Sequential()
    return made


@pytest.mark.parametrize("kind", ["compiled", "compiled in place", "no sequence", "empty"])
def test_bodies_of_other_kinds_are_called(kind: str) -> None:
    """What was put in the place of the body is called as it is, fused or not."""
    if kind == "compiled in place" and not hasattr(nn.Module, "compile"):
        pytest.skip("this torch has no Module.compile")
    torch._dynamo.reset()
    made = other_body(kind)
    with torch.no_grad():
        before = made(images())
        assert torch.equal(sc.fuse(made)(images()), before)
    if kind == "compiled in place":
        calls: List[int] = []
        made.body._compiled_call_impl = lambda x: calls.append(1) or x
        assert torch.equal(made(images()), 2 * images())
        assert calls == [1]


@pytest.mark.parametrize("fused", [False, True])
def test_blocks_are_traced_by_torch_fx(fused: bool) -> None:
    """No branch on a value, and no module that is not part of the network."""

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, name: str) -> bool:
            return not isinstance(m, (SEWBlock, Added))

    for made in (block(4, 4), Added(sc.layers.TimeBatched(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), neuron())):
        net = sc.fuse(made) if fused else made
        graph = torch.fx.GraphModule(net, Tracer().trace(net))
        assert torch.equal(graph(images()), net(images()))


def test_outputs_that_are_no_spikes_are_added_to_by_torch() -> None:
    """A read-out in 16 bits: the kernel would round the sum once, and torch rounds output and sum."""
    layer = sc.layers.NormNeuron(nn.BatchNorm2d(4), bound(sc.LI(), Loop(4)), shortcut="after")
    x, skip = images().bfloat16(), torch.rand(T, B, 4, 6, 6).bfloat16()
    assert torch.equal(layer(x, skip), layer(x, torch.zeros_like(skip)) + skip)
