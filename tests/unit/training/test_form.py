"""The form of a step: channels-last, compiled (loss and update too), packed and captured; what is left out, and why."""

from __future__ import annotations

import warnings
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from graphed import Compiler, failure, without_a_gpu
from spikecore.context import COMPILES

OPTIONS = ("channels_last", "compile", "pack_spikes", "graph")


def network(conv: bool = True) -> nn.Module:
    torch.manual_seed(0)
    if not conv:
        return nn.Sequential(nn.Linear(6, 512), sc.LIF(backend="torch"), nn.Linear(512, 3))
    return nn.Sequential(
        sc.encode.Constant(3),
        sc.layers.TimeBatched(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)),
        sc.LIF(backend="torch"),
        sc.layers.TimeBatched(nn.Conv2d(16, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def batch(seed: int = 0, conv: bool = True) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(4, 3, 8, 8, generator=generator) if conv else torch.rand(3, 4, 6, generator=generator)
    return x * 4, torch.arange(4) % 3


def trained(net: nn.Module, options: Any, steps: int = 4, conv: bool = True) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    made = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
    for i in range(steps):
        made(*batch(i, conv))
    return made, optimizer


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(torch, "compile", made)
    if not COMPILES:
        pytest.skip("this torch is too old to compile neurons")
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the network count as on a GPU; a function that gives the stand-in of the last capture."""
    return without_a_gpu(monkeypatch)


def close(ours: nn.Module, plain: nn.Module) -> None:
    """The weights are the same, to rounding."""
    for one, other in zip(ours.state_dict().values(), plain.state_dict().values()):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class TestChannelsLast:
    """Layout changes no numbers, beyond rounding."""

    def test_weights_inputs_and_states_lie_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And the network trains to the same weights."""
        net, plain = network(), network()
        seen: List[Tensor] = []
        net[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        made, optimizer = trained(net, sc.TrainingOptions(channels_last=True))
        trained(plain, None)
        close(net, plain)
        assert made.form["channels_last"] == "used"
        weight = net[1].module[0].weight
        for tensor in (seen[0], weight, weight.grad, *[v for v in optimizer.state[weight].values() if v.ndim]):
            assert tensor.is_contiguous(memory_format=torch.channels_last)
            assert not tensor.is_contiguous()
        before = {key: value.contiguous() for key, value in plain.state_dict().items()}
        made.load_state_dict({**made.state_dict(), "net": before})
        assert weight.is_contiguous(memory_format=torch.channels_last)

    def test_a_network_without_convolutions_is_named(self) -> None:
        """Asked for by name it is an error."""
        with pytest.raises(
            sc.backend.Unsupported, match="channels_last=True cannot be: the network has no convolutions.*False"
        ):
            trained(network(conv=False), sc.TrainingOptions(channels_last=True), conv=False)


class TestCompile:
    """The network is run by torch.compile, and not where that fails."""

    def test_it_is_compiled_whole(self, compiler: Compiler) -> None:
        """For fixed sizes, in one graph, with the layers that pack."""
        net, plain = network(), network()
        made, _ = trained(net, sc.TrainingOptions(compile=True, pack_spikes=True))
        trained(plain, None)
        close(net, plain)
        assert [(name, options["fullgraph"], options["dynamic"]) for name, options in compiler.given] == [
            ("net", True, False)
        ]
        assert compiler.called == ["net"] * 4
        assert made.form == {"channels_last": "not asked for", "compile": "used", "pack_spikes": "used"}

    def test_inference_has_it_too(self, compiler: Compiler) -> None:
        """Without packing, since nothing is saved."""
        net = network()
        predict = sc.inference_model(net, options=sc.TrainingOptions(compile=True, pack_spikes=True))
        expected = sc.inference_model(net)(batch()[0])
        assert torch.equal(predict(batch()[0]), expected)
        assert compiler.called == ["net"]

    @pytest.mark.parametrize("where", ["raises", "raises_in_backward"])
    def test_a_failure_is_told_with_the_way_out(self, compiler: Compiler, where: str) -> None:
        """Asked for by name it raises; buffers are as before."""
        setattr(compiler, where, {"net": failure("no compiler here\nmore")})
        net = network()
        norm = net[1].module[1]
        with pytest.raises(
            sc.backend.Unsupported,
            match=r"compile=True cannot be: torch.compile raised .*no compiler here; use compile=False",
        ):
            trained(net, sc.TrainingOptions(compile=True))
        assert norm.num_batches_tracked == 0


def test_autocast_is_there_where_it_is_given() -> None:
    made = sc.inference_model(network(), options=sc.TrainingOptions(autocast=torch.bfloat16))
    assert made.form["autocast"] == "used"


class TestFast:
    """CudaOptions(fast=True): everything that is fast and can be."""

    def test_without_a_gpu_it_is_refused(self) -> None:
        """It is refused as graph=True is."""
        with pytest.raises(ValueError, match=r"fast=True needs the network on a GPU, and 1.module.0.weight is on cpu"):
            trained(network(), sc.CudaOptions(fast=True))
        with pytest.raises(ValueError, match="fast=torch.cuda.is_available"):
            sc.inference_model(network(), options=sc.CudaOptions(fast=True))
        trained(network(), sc.CudaOptions(fast=torch.cuda.is_available()))

    def test_all_at_once(self, compiler: Compiler, gpu: Any) -> None:
        """The weights of the plain step, and each option used."""
        net, plain = network(), network()
        made, _ = trained(net, sc.CudaOptions(fast=True, pack_spikes=True), steps=8)
        trained(plain, None, steps=8)
        close(net, plain)
        assert made.form == dict.fromkeys(OPTIONS, "used")
        assert gpu().replayed == 5

    def test_what_cannot_be_is_left_out_with_a_reason(self, compiler: Compiler, gpu: Any) -> None:
        """A compiler that fails, and no convolutions: the rest goes on, and packs."""
        compiler.raises = {"net": failure()}
        net, plain = network(conv=False), network(conv=False)
        with pytest.warns(RuntimeWarning) as told:
            made, _ = trained(net, sc.CudaOptions(fast=True, pack_spikes=True), conv=False)
        trained(plain, None, conv=False)
        close(net, plain)
        texts = [str(one.message) for one in told]
        assert any("compile is left out, because torch.compile raised" in text for text in texts)
        assert any("channels_last is left out, because the network has no convolutions" in text for text in texts)
        assert made.form["compile"].startswith("left out: torch.compile raised TorchDynamoException: no compiler here")
        assert made.form["pack_spikes"] == made.form["graph"] == "used"
        assert compiler.called == ["net"]

    def test_a_capture_that_fails_is_left_out(self, compiler: Compiler, gpu: Any) -> None:
        """Training goes on eagerly, with the step that was not captured."""
        net, plain = network(), network()
        made, _ = trained(net, sc.CudaOptions(fast=True), steps=2)
        gpu().error = RuntimeError("operation not permitted")
        made(*batch(2))
        with pytest.warns(RuntimeWarning, match="graph is left out, because the step cannot be capt.*not permitted"):
            made(*batch(3))
        for i in range(4, 6):
            made(*batch(i))
        trained(plain, None, steps=6)
        close(net, plain)
        assert made.form["graph"].startswith("left out: the step cannot be captured in a CUDA graph")


class TestPooling:
    """Average pooling whose gradient torch has wrong in one of the forms."""

    def test_clipped_windows_are_not_compiled(self, compiler: Compiler) -> None:
        """In training; what divides every window by the same number, or by what it holds, is."""
        options = sc.TrainingOptions(compile=True)
        net = nn.Sequential(nn.Linear(2, 2), nn.AvgPool2d(2, ceil_mode=True))
        with pytest.raises(
            sc.backend.Unsupported, match="compile=True cannot be: torch.compile computes a wrong.*198119.*use"
        ):
            sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1), options=options)
        assert sc.inference_model(net, options=options).form["compile"] == "used"
        net[1] = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
        sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1), options=options)


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
def test_compiled_by_torch_itself() -> None:
    """No stand-in: a small network, compiled and packed, trains to the weights of the plain one."""
    from kernel_loop import Loop, bound

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 512), bound(sc.LIF(), Loop()), nn.Linear(512, 3))

    net, plain = make(), make()
    made, _ = trained(net, sc.TrainingOptions(compile=True, pack_spikes=True), steps=3, conv=False)
    trained(plain, None, steps=3, conv=False)
    close(net, plain)
    assert made.form["compile"] == made.form["pack_spikes"] == "used"


def mlp() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Linear(6, 12), sc.layers.TimeBatched(nn.BatchNorm1d(12)), sc.LIF(backend="torch"), nn.Linear(12, 3)
    return nn.Sequential(*parts)


def labelled(i: int) -> Any:
    generator = torch.Generator().manual_seed(i)
    return torch.rand(5, 4, 6, generator=generator) * 3, torch.randint(3, (4,), generator=generator)


def trained_mlp(net: nn.Module, options: Any = None, steps: int = 7, change: Any = None, kind: Any = None) -> Any:
    optimizer = kind(net.parameters()) if kind else torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    made = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
    for i in range(steps):
        made(*labelled(i))
        if change is not None:
            change(i, optimizer)
    return made


FAST = sc.CudaOptions(fast=True, channels_last=False)


def same(net: nn.Module, plain: nn.Module) -> None:
    for one, other in zip(net.state_dict().values(), plain.state_dict().values()):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "compiled"),
    [
        (FAST, {"net", "loss", "update"}),
        (sc.CudaOptions(graph=True, compile=True), {"net", "loss", "update"}),
        (sc.CudaOptions(graph=True), set()),
        (sc.CudaOptions(compile=True), {"net"}),
    ],
    ids=["fast", "graph", "graph-alone", "compile-alone"],
)
def test_they_are_compiled_with_the_network_in_a_captured_step(
    compiler: Compiler, gpu: Any, options: Any, compiled: Any
) -> None:
    """And not without either; the numbers are the same."""
    net, plain = mlp(), mlp()
    made = trained_mlp(net, options)
    trained_mlp(plain)
    same(net, plain)
    assert set(compiler.called) == compiled
    assert made.form["compile"] == ("used" if compiled else "not asked for")


@pytest.mark.parametrize("name", ["loss", "update"])
def test_what_the_compiler_refuses_runs_as_it_is(compiler: Compiler, gpu: Any, name: str) -> None:
    """Said once, with its reason, and the rest is compiled and captured."""
    compiler.raises = {name: failure("not this one\nmore")}
    net, plain = mlp(), mlp()
    with pytest.warns(RuntimeWarning) as told:
        made = trained_mlp(net, FAST)
    trained_mlp(plain)
    same(net, plain)
    why = "torch.compile raised TorchDynamoException: not this one"
    assert made.form == {
        **dict.fromkeys(("channels_last", "pack_spikes"), "not asked for"),
        "compile": f"used, but for the {name}: {why}",
        "graph": "used",
    }
    said = [str(one.message) for one in told]
    assert said == [f"compile: the {name} runs as it is, because {why}"]
    assert compiler.called.count(name) == 1


def test_a_hyperparameter_that_changes(compiler: Compiler, gpu: Any) -> None:
    """A number would be compiled anew at every value: the update runs as it is from the first change on."""

    def change(i: int, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + (i + 1) // 4)

    net, plain = mlp(), mlp()
    made = trained_mlp(net, FAST, steps=14, change=change)
    trained_mlp(plain, steps=14, change=change)
    same(net, plain)
    assert "the update: lr changed; a learning rate that is to change is a tensor" in made.form["compile"]
    assert compiler.called.count("update") < 5


@pytest.mark.skipif(not COMPILES, reason="torch.compile needs torch 2.6 here")
def test_loss_and_update_compiled_by_torch_itself(gpu: Any) -> None:
    """No stand-in for the compiler: the weights of the plain step to rounding, beside a scheduler."""
    weights = []
    for options in (sc.CudaOptions(graph=True, compile=True), None):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1), momentum=0.9)
        made = sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for i in range(5):
            made(*labelled(i))
            schedule.step()
        weights.append(net[0].weight)
        if options is not None:
            assert made.form["compile"] == made.form["graph"] == "used"
    torch.testing.assert_close(*weights)


@pytest.mark.skipif(not COMPILES, reason="this torch is too old to compile neurons")
@pytest.mark.slow
def test_more_lengths_than_the_compiler_keeps_run_eagerly() -> None:
    """Every length trains, compiled ones before and after, and one warning names the limit and the way out."""
    nets = [network(conv=False), network(conv=False)]
    options = (sc.TrainingOptions(compile=True), None)
    compiled, plain = (
        sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1), options=chosen)
        for net, chosen in zip(nets, options)
    )
    with torch._dynamo.config.patch(recompile_limit=1), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for steps in (3, 2, 4, 3):
            x = torch.rand(steps, 4, 6, generator=torch.Generator().manual_seed(steps))
            (_, loss), (_, wanted) = compiled(x, torch.arange(4) % 3), plain(x, torch.arange(4) % 3)
            assert float(loss) == pytest.approx(float(wanted))
    texts = [str(each.message) for each in told if "run eagerly" in str(each.message)]
    assert len(texts) == 1
    assert "inputs [2, 4, 6] and further new shapes run eagerly, because torch.compile keeps 1" in texts[0]
    assert "Pad sequences to a few lengths (sc.functional.mask_of), or raise that limit" in texts[0]
    assert compiled.form["compile"] == "used"
    close(*nets)
