"""sc.packed_spikes(): what is packed, what is not, and that gradients are those of the plain pass."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from spikecore.backend import Whole
from spikecore.bench import models
from spikecore.training._packed.origin import origin

SHAPE = (3, 2, 4, 8, 8)  # 1536 numbers
HALF = torch.bfloat16


def spikes(seed: int = 0) -> Tensor:
    """Spikes with a graph, about half of them 1."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(SHAPE, generator=generator) * 4).requires_grad_()
    return sc.LIF(backend="torch")(x)


@pytest.fixture(autouse=True)
def _noted():
    """Neurons note their spikes, as they do within the context."""
    from spikecore._shell.marked import wanting

    with wanting():
        yield


def _scaled_without_autograd(z: Tensor) -> Tensor:
    with torch.no_grad():
        z.mul_(0.5)
    return z


#: What is made of spikes: name -> (function, what it holds, or None for what is kept whole).
MADE: Dict[str, Tuple[Callable[[Tensor], Any], Optional[Whole]]] = {
    "spikes": (lambda z: z, Whole(1)),
    "views": (lambda z: z.flatten(0, 1).permute(0, 2, 3, 1)[:, 1:].unsqueeze(0), Whole(1)),
    "copies": (lambda z: z.permute(1, 0, 2, 3, 4).reshape(-1).clone().bfloat16(), Whole(1)),
    "joined": (lambda z: torch.cat([z, torch.stack(list(z))]), Whole(1)),
    "pool": (lambda z: F.max_pool2d(z.flatten(0, 1), 3, 2, 1), Whole(1)),
    "average": (lambda z: F.avg_pool2d(z.flatten(0, 1), 2), Whole(4, 0.25)),
    "average of 1x4": (lambda z: F.avg_pool2d(z.flatten(0, 1), (1, 4)), Whole(4, 0.25)),
    "sum": (lambda z: z + z.clone(), Whole(2)),
    "sum of sums": (lambda z: (z + z) + (z + z) + z, Whole(5)),
    "product": (lambda z: z * (z + z), Whole(2)),
    "sum with quarters": (lambda z: F.avg_pool2d(z.flatten(0, 1), 2) + z.flatten(0, 1)[..., ::2, ::2], Whole(8, 0.25)),
    "average of 9": (lambda z: F.avg_pool2d(z.flatten(0, 1), 3), None),
    "average, ceil": (lambda z: F.avg_pool2d(z.flatten(0, 1), 2, ceil_mode=True), None),
    "average, padding left out": (
        lambda z: F.avg_pool2d(z.flatten(0, 1), 2, padding=1, count_include_pad=False),
        None,
    ),
    "average, divisor": (lambda z: F.avg_pool2d(z.flatten(0, 1), 2, divisor_override=3), None),
    "sum, weighted": (lambda z: torch.add(z, z, alpha=2), None),
    "sum with a number": (lambda z: z + 1.0, None),
    "sum with something": (lambda z: z + torch.ones(SHAPE), None),
    "difference": (lambda z: z - z, None),
    "scaled": (lambda z: z * 0.5, None),
    "dropout": (F.dropout, None),
    "written": (lambda z: z.mul_(0.5), None),
    "written without autograd": (_scaled_without_autograd, None),
    "a view written": (lambda z: (z, z[0].mul_(0.5))[0], None),
    "in float8": (lambda z: z.to(getattr(torch, "float8_e4m3fn", torch.int8)), None),
    "no graph": (lambda z: z.detach(), None),
}


def test_a_sum_above_a_byte_is_not_known() -> None:
    """2^8 does not fit; and a graph that doubles is looked at once for each node."""
    z = spikes()
    for _ in range(7):
        z = z + z
    assert origin(z) == Whole(128)
    for _ in range(40):
        z = z + z
    assert origin(z) is None


@pytest.mark.parametrize("name", MADE)
def test_what_a_tensor_holds_is_read_from_its_graph(name: str) -> None:
    """Each operation with a rule, and those without."""
    make, expected = MADE[name]
    assert origin(make(spikes())) == expected


class Times(nn.Module):
    """Saves its input, as a convolution does; ``seen`` are the tensors it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize("name", MADE)
def test_gradients_are_those_of_the_plain_pass(name: str) -> None:
    """Whatever was made of spikes: the tensor comes back with its numbers and strides, packed or whole."""
    make, expected = MADE[name]
    if name == "in float8":
        pytest.skip("float8 multiplies nothing")
    found = []
    for pack in (False, True):
        torch.manual_seed(0)
        layer, made = Times(), None
        if pack:
            with sc.packed_spikes() as packs:
                z = make(spikes())
                made = layer(z)
            if expected is not None:
                assert packs.before > packs.after > 0
                saved = made.grad_fn._saved_self
                assert saved.shape == z.shape
                assert torch.equal(saved, z)
                assert saved.stride() == z.stride() or not _dense(z)
        else:
            made = layer(make(spikes()))
        made.square().sum().backward()
        found.append(layer.weight.grad)
    assert torch.equal(*found)


def _dense(z: Tensor) -> bool:
    return sum((n - 1) * s for n, s in zip(z.shape, z.stride())) + 1 == z.numel()


def test_a_write_past_autograd_is_found_by_value() -> None:
    """``z.data`` has another version counter; on a CPU the values are compared."""
    layer = Times()
    with sc.packed_spikes() as packs:
        z = spikes()
        z.data.mul_(0.5)
        y = layer(z)
    y.sum().backward()
    assert packs.before == 0
    assert torch.equal(layer.weight.grad, z.sum())


def _network(kind: str, backend: str = "torch") -> Tuple[nn.Module, Tuple[int, ...]]:
    torch.manual_seed(0)
    neuron = lambda: sc.LIF(learn=("tau",), backend=backend)  # noqa: E731
    if kind == "sew":
        return models.sew_resnet18(2, neuron, (3, 32, 32), 10), (2, 3, 32, 32)
    return models.cifar10(3, neuron, 16, (3, 16, 16)), (2, 3, 16, 16)


@pytest.mark.parametrize("cast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("kind", ["cifar10", "sew"])
def test_networks_train_to_the_same_gradients(kind: str, last: bool, cast: bool) -> None:
    """The bench's networks: the same outputs and gradients, bit for bit, from a fraction of the memory."""
    net, shape = _network(kind)
    x = torch.rand(shape)
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    results = []
    for pack in (False, True):
        net.zero_grad()
        twin = copy.deepcopy(net)
        with torch.autocast("cpu", HALF, enabled=cast):
            if pack:
                with sc.packed_spikes() as packs:
                    out = twin(x)
            else:
                out = twin(x)
        out.float().square().mean().backward()
        results.append([out, *[p.grad for p in twin.parameters()]])
    for ours, plain in zip(*results):
        assert torch.equal(ours, plain)
    bits = (16 if cast else 32) * packs.after
    if kind == "cifar10":
        assert packs.before == bits  # spikes alone, one bit each
    else:
        assert bits / 2 < packs.before < bits  # sums take two bits


def test_the_spikes_themselves_are_freed() -> None:
    """Once the caller has dropped them, their memory is gone; the bits stay."""
    layer = Times()
    alive: List[Any] = []
    gc.disable()
    try:
        with sc.packed_spikes():
            z = spikes()
            alive.append(weakref.ref(z))
            y = layer(z.flatten(0, 1))
            alive.append(weakref.ref(y))
            y = y.exp()  # saves its own result
            del z
            assert alive[0]() is None
        del y
        assert alive[1]() is None
    finally:
        gc.enable()


def test_one_memory_is_packed_once() -> None:
    """A neuron's output that two layers and two views save."""
    with sc.packed_spikes() as packs:
        z = spikes()
        y = Times()(z).sum() + Times()(z.flatten(0, 1)).sum() + Times()(z).sum()
        assert (packs.before, packs.after) == (z.numel() * 4, z.numel() // 8)
        other = spikes(1)
        y = y + Times()(other).sum()
        assert packs.after == 2 * z.numel() // 8
    y.backward()


def test_memory_that_is_used_again_is_packed_again() -> None:
    """Tensors that come and go, in the same place: none takes another one's bits."""
    with sc.packed_spikes():
        for seed in range(100):
            z = spikes(seed)
            layer = Times()
            y, total = layer(z).sum(), z.sum()
            del z
            y.backward()
            assert torch.equal(layer.weight.grad, total)


def test_a_change_in_place_after_it_was_saved_is_refused() -> None:
    """Of what is kept whole, as without hooks. Of what was packed, backward has the numbers that were saved."""
    x = torch.rand(2000, requires_grad=True)
    y = x * 2
    with pytest.warns(RuntimeWarning, match="no neuron has given spikes.* all 2 large tensors"), sc.packed_spikes():
        z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*is at version 1; expected version 0"):
        z.sum().backward()


def test_second_derivatives() -> None:
    """Through what was packed: the gradient of the weight's gradient."""
    found = []
    for pack in (False, True):
        torch.manual_seed(0)
        conv = nn.Conv2d(4, 4, 3)
        x = torch.rand(SHAPE).mul(4).requires_grad_()
        call = lambda: conv(sc.LIF(backend="torch")(x).flatten(0, 1))  # noqa: B023, E731
        if pack:
            with sc.packed_spikes():
                y = call()
        else:
            y = call()
        (first,) = torch.autograd.grad(y.square().sum(), conv.weight, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [conv.weight, x]))
    for ours, plain in zip(*found):
        assert torch.equal(ours, plain)


class TestOtherHooks:
    """Hooks around, and hooks within."""

    @pytest.mark.skipif(not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"), reason="needs torch 2.2")
    def test_hooks_around_get_the_bits(self) -> None:
        """What offloads saved tensors offloads bits."""
        seen: List[torch.dtype] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(tensor.dtype)
            return tensor.clone()

        layer, z = Times(), None
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept), sc.packed_spikes():
            z = spikes()
            seen.clear()
            y = layer(z)
        y.sum().backward()
        assert torch.uint8 in seen
        assert torch.equal(layer.weight.grad, z.sum())

    def test_hooks_within_get_the_tensor(self) -> None:
        """The innermost hooks are the ones that torch asks."""
        seen: List[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(tensor)
            return tensor

        layer = Times()
        with sc.packed_spikes():
            z = spikes()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
                y = layer(z)
        y.sum().backward()
        assert any(tensor is z for tensor in seen)
        assert torch.equal(layer.weight.grad, z.sum())

    @pytest.mark.parametrize("where", ["around", "within", "sc.checkpoint"])
    @pytest.mark.parametrize("carried", [False, True])
    def test_checkpoints(self, where: str, carried: bool) -> None:
        """Activation checkpointing within the context, or the context within a checkpointed part."""
        found = []
        for pack in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(64, 64), sc.LIF(backend="torch"), nn.Linear(64, 64), sc.LIF(backend="torch"))
            x = torch.rand(4, 32, 64) * 4

            def within(x: Tensor) -> Tensor:
                with sc.packed_spikes():
                    return net(x)  # noqa: B023

            if where == "sc.checkpoint":
                net = sc.checkpoint(net, every=2)
            again = {"use_reentrant": False, "context_fn": sc.parallel.checkpoint_contexts(net)}
            calls = {
                (False, "sc.checkpoint"): net,
                (False, "around"): lambda x: checkpoint(net, x, **again),  # noqa: B023
                (False, "within"): lambda x: checkpoint(net, x, **again),  # noqa: B023
                (True, "within"): lambda x: checkpoint(within, x, **again),  # noqa: B023
            }
            call = calls.get((pack, where), calls[False, where])
            outputs = []
            with sc.carry_state(net) if carried else torch.enable_grad():
                for part in x.split(2) if carried else [x]:
                    if pack and where != "within":
                        with sc.packed_spikes():
                            outputs.append(call(part))
                    else:
                        outputs.append(call(part))
                torch.cat(outputs).square().sum().backward()
            found.append([*outputs, *[p.grad for p in net.parameters()]])
        for ours, plain in zip(*found):
            assert torch.equal(ours, plain)


class TestTraining:
    """The option of a step."""

    @pytest.mark.parametrize("options", [sc.TrainingOptions, sc.CudaOptions])
    def test_the_weights_are_those_of_the_plain_step(self, options: Any) -> None:
        """Adam, autocast, a few steps."""
        net, shape = _network("cifar10")
        results = []
        for pack in (False, True):
            twin = copy.deepcopy(net)
            optimizer = torch.optim.Adam(twin.parameters(), 1e-2)
            chosen = options(autocast=HALF, pack_spikes=pack)
            step = sc.training_model(twin, sc.losses.ce_count, optimizer, options=chosen)
            generator = torch.Generator().manual_seed(0)
            for _ in range(3):
                outputs, loss = step(torch.rand(shape, generator=generator), torch.tensor([1, 2]))
            results.append([outputs, loss, *twin.state_dict().values()])
        for ours, plain in zip(*results):
            assert torch.equal(ours, plain)

    def test_the_option_packs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is the context that runs."""
        from spikecore.training import _form

        made: List[sc.packed_spikes] = []
        monkeypatch.setattr(_form, "packed_spikes", lambda: made.append(sc.packed_spikes()) or made[-1])
        net, shape = _network("cifar10")
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        step = sc.training_model(net, sc.losses.ce_count, optimizer, options=sc.TrainingOptions(pack_spikes=True))
        step(torch.rand(shape), torch.tensor([1, 2]))
        (packs,) = made
        assert packs.before == 32 * packs.after > 0

    def test_another_value_is_refused(self) -> None:
        """It is true or false."""
        with pytest.raises(TypeError, match="pack_spikes=1 must be True or False, or None"):
            sc.TrainingOptions(pack_spikes=1)  # type: ignore[arg-type]


def test_distributed_data_parallel(tmp_path: Path) -> None:
    """Gradients of a wrapped network are those of the plain one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net, shape = _network("cifar10")
        x, found = torch.rand(shape), []
        for pack in (False, True):
            wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(net))
            if pack:
                with sc.packed_spikes() as packs:
                    out = wrapped(x)
                assert packs.before == 32 * packs.after > 0
            else:
                out = wrapped(x)
            out.square().mean().backward()
            found.append([p.grad for p in wrapped.parameters()])
            # before the group: its last owner joins a thread that may want the GIL, which hung a whole run
            del wrapped, out
    finally:
        torch.distributed.destroy_process_group()
    for ours, plain in zip(*found):
        assert torch.equal(ours, plain)


def test_recurrent_and_single_steps() -> None:
    """What gives spikes step by step: their stack is packed."""
    for net in (sc.Recurrent(sc.LIF(backend="torch"), nn.Linear(64, 64)), sc.LIF(step="single", backend="torch")):
        layer = Times()
        x = (torch.rand(4, 32, 64) * 4).requires_grad_()
        with sc.packed_spikes() as packs:
            z = net(x) if isinstance(net, sc.Recurrent) else torch.stack([net(x_t) for x_t in x])
            y = layer(z)
        assert packs.before == 32 * packs.after >= z.numel() * 4
        y.sum().backward()
        assert torch.equal(layer.weight.grad, z.sum())


@pytest.mark.parametrize("shortcut", ["", "before", "after"])
def test_a_neuron_that_normalises_its_input(shortcut: str) -> None:
    """As one program: its output is spikes, and with a shortcut behind it a sum of spikes."""
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        neuron = sc.layers.NormNeuron(
            nn.BatchNorm2d(4), sc.LIF(backend="torch"), shortcut=shortcut or None, fused=fused
        )
        layer, x = Times(), (torch.rand(SHAPE) * 4).requires_grad_()
        with sc.packed_spikes() as packs:
            skip = spikes()
            z = neuron(x, skip) if shortcut else neuron(x)
            before = packs.after
            y = layer(z)
        assert packs.after - before == z.numel() * (2 if shortcut == "after" else 1) // 8
        y.sum().backward()
        assert torch.equal(layer.weight.grad, z.sum())
        found.append(z)
    assert torch.equal(*found)


def test_an_output_that_is_no_spike_is_kept_whole() -> None:
    """A potential, beside spikes."""
    x = (torch.rand(4, 32, 64) * 4).requires_grad_()
    layer = Times()
    with pytest.warns(RuntimeWarning, match="no neuron has given spikes"), sc.packed_spikes() as packs:
        y = layer(sc.LI(backend="torch")(x))
    y.sum().backward()
    assert packs.before == 0


def test_nothing_is_noted_without_a_reader() -> None:
    """Outside the context a neuron leaves autograd's nodes alone."""
    from spikecore._shell import marked

    readers, marked.readers = marked.readers, 0
    try:
        assert origin(spikes()) is None
    finally:
        marked.readers = readers
    assert origin(spikes()) == Whole(1)


def test_it_is_entered_once() -> None:
    """Twice at a time is refused; one after the other is right."""
    packs = sc.packed_spikes()
    with packs, pytest.raises(RuntimeError, match="active already; make one for each block"), packs:
        pass
    with packs:
        pass


def test_an_error_within_leaves_no_hook() -> None:
    """The context ends with the error, and says nothing of its own."""
    x = torch.rand(2000, requires_grad=True)
    with pytest.raises(ZeroDivisionError), sc.packed_spikes():
        x * x / (1 // 0)
    kept: Any = torch.rand(2000, requires_grad=True).exp()
    assert getattr(kept.grad_fn._raw_saved_result, "unpack_hook", None) is None


def test_a_compiled_network_is_told_how() -> None:
    """The context within a compiled function raises, and names the way out."""
    if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
        pytest.skip("this torch does not say that it compiles")
    import spikecore.training._packed.hooks as hooks

    compiling, hooks.is_compiling = hooks.is_compiling, lambda: True
    try:
        with pytest.raises(sc.Unsupported, match=r"CudaOptions\(compile=True, pack_spikes=True\)"), sc.packed_spikes():
            pass
    finally:
        hooks.is_compiling = compiling
