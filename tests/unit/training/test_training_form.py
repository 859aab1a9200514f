"""The form of a step: channels-last, compiled, packed and captured; what is left out, and why."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any, List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from graphed import Compiler, failure, without_a_gpu
from spikecore._base.versions import COMPILES
from spikecore.training import _form, _models

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
    """As if the network were on a GPU; a function that gives the stand-in of the last capture."""
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

    def test_states_that_are_there_already_follow(self) -> None:
        """A fused update wants weights and states with the same strides; so also after a state was loaded."""
        net = network()
        made, optimizer = trained(net, None)
        state = copy.deepcopy(made.state_dict())
        again = sc.training_model(net, sc.losses.ce_rate, optimizer, options=sc.TrainingOptions(channels_last=True))
        weight = net[1].module[0].weight
        for _ in range(2):
            held = [value for value in optimizer.state[weight].values() if value.ndim]
            assert len(held) == 1
            assert all(value.stride() == weight.stride() for value in held)
            again.load_state_dict(state)
        again(*batch())

    @pytest.mark.parametrize("time", [False, True])
    @pytest.mark.parametrize("dims", [2, 3])
    def test_inputs_with_and_without_time(self, dims: int, time: bool) -> None:
        """Every time step is channels-last, and so is the batch that time is folded into."""
        x = torch.rand(*[2] * time, 3, 4, *[5, 6, 7][:dims])
        (laid_out,) = _form.inputs_channels_last((x,), dims)
        assert torch.equal(laid_out, x)
        one = laid_out.flatten(0, 1) if time else laid_out
        assert one.is_contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)

    def test_others_stay(self) -> None:
        """Targets of another number of dimensions, and what is no image."""
        x = torch.rand(2, 3)
        assert _form.inputs_channels_last({"x": x}, 2)["x"] is x

    def test_a_network_without_convolutions_is_named(self) -> None:
        """Asked for by name it is an error."""
        with pytest.raises(
            sc.Unsupported, match="channels_last=True cannot be: the network has no convolutions.*False"
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
        assert compiler.given == [("net", {"fullgraph": True, "dynamic": False})]
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
            sc.Unsupported, match=r"compile=True cannot be: torch.compile raised .*no compiler here; use compile=False"
        ):
            trained(net, sc.TrainingOptions(compile=True))
        assert norm.num_batches_tracked == 0

    def test_a_later_kind_of_batch_that_fails_moves_no_buffer_twice(self, compiler: Compiler) -> None:
        """Its backward pass is compiled when the forward pass has moved the running statistics."""
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=sc.TrainingOptions(compile=True))
        images, labels = batch()
        for _ in range(2):
            step(images, labels)
        compiler.raises_in_backward = {"net": failure()}
        norm = net[1].module[1]
        before = norm.running_mean.clone()
        with pytest.raises(sc.Unsupported, match="no compiler here"):
            step(images[:3], labels[:3])
        assert norm.num_batches_tracked == 2
        assert torch.equal(norm.running_mean, before)

    def test_a_step_that_compiles_is_pickled(self) -> None:
        """With what was given to the compiler it could not be."""
        net = nn.Sequential(nn.Linear(4, 3), sc.LIF(), nn.Linear(3, 3), sc.LI(tau=2.0))
        step = sc.training_model(
            net,
            sc.losses.ce_rate,
            torch.optim.SGD(net.parameters(), 0.1),
            options=sc.TrainingOptions(compile=True, pack_spikes=True),
        )
        for one in (step, sc.inference_model(net, options=sc.TrainingOptions(compile=True))):
            assert pickle.loads(pickle.dumps(one)).form == one.form

    def test_an_error_of_the_network_is_its_own(self, compiler: Compiler) -> None:
        """Nothing falls back for it."""
        compiler.raises = {"net": ZeroDivisionError("mine")}
        with pytest.raises(ZeroDivisionError, match="mine"):
            trained(network(), sc.TrainingOptions(compile=True))

    def test_a_compiled_network_is_not_compiled_again(self, compiler: Compiler) -> None:
        """Its layers are replaced all the same: torch compiles it again."""
        net = network()
        net[1]._compiled_call_impl = net[1]._call_impl
        with pytest.raises(sc.Unsupported, match="compile=True cannot be: the network is under torch.compile already"):
            trained(net, sc.TrainingOptions(compile=True))
        assert trained(net, sc.TrainingOptions(pack_spikes=True))[0].form["pack_spikes"] == "used"


class TestFast:
    """CudaOptions(fast=True): everything that is fast and can be."""

    def test_without_a_gpu_it_is_refused(self) -> None:
        """As graph=True is."""
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

    @pytest.mark.parametrize("name", OPTIONS)
    def test_each_can_be_left_out(self, compiler: Compiler, gpu: Any, name: str) -> None:
        """By its name, without a warning; packing, which is for memory, is left out by no word."""
        made, _ = trained(network(), sc.CudaOptions(fast=True, **{name: False}))
        used = {option for option, what in made.form.items() if what == "used"}
        assert used == set(OPTIONS) - {name, "pack_spikes"}
        assert [what for what, _ in compiler.given].count("net") == (name != "compile")

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

    def test_a_compiler_that_keeps_no_more_results(self, compiler: Compiler, gpu: Any) -> None:
        """As one that fails: its error is of another kind."""
        from torch._dynamo import exc

        if not hasattr(exc, "FailOnRecompileLimitHit"):
            pytest.skip("this torch has no such error")
        net, plain = network(), network()
        made, _ = trained(net, sc.CudaOptions(fast=True), steps=2)
        compiler.raises = {"net": exc.FailOnRecompileLimitHit("8 results")}
        with pytest.warns(RuntimeWarning, match="compile is left out, because torch.compile raised .*8 results"):
            made(*batch(2))
        trained(plain, None, steps=3)
        close(net, plain)

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

    def test_a_scaler_has_no_graph(self, compiler: Compiler, gpu: Any) -> None:
        """It reads on the host."""
        if not hasattr(torch.amp, "GradScaler"):
            pytest.skip("this version of torch has torch.cuda.amp only")
        scaler = torch.amp.GradScaler("cpu")
        with pytest.warns(RuntimeWarning, match="graph is left out, because the scaler decides on the host"):
            made, _ = trained(network(), sc.CudaOptions(fast=True, scaler=scaler))
        made.load_state_dict(made.state_dict())

    def test_a_network_that_no_graph_can_follow(self, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its steps run eagerly."""
        monkeypatch.setattr(_models, "_check_cuda", lambda net, options: None)
        net = network()
        with pytest.warns(RuntimeWarning, match="graph is left out, because graph=True needs the network on one GPU"):
            made, _ = trained(net, sc.CudaOptions(fast=True))
        assert made.form["graph"].startswith("left out: graph=True needs the network on one GPU")

    def test_inference(self, compiler: Compiler, gpu: Any) -> None:
        """The same form, without packing."""
        net = network()
        predict = sc.inference_model(net, options=sc.CudaOptions(fast=True))
        expected = sc.inference_model(net)(batch()[0])
        for _ in range(5):
            torch.testing.assert_close(predict(batch()[0]), expected)
        assert predict.form == {**dict.fromkeys(OPTIONS, "used"), "pack_spikes": "not asked for"}
        assert gpu().replayed == 2

    @pytest.mark.parametrize("options", [sc.TrainingOptions, sc.CudaOptions])
    def test_inference_says_why_it_packs_nothing(self, options: Any) -> None:
        """Asked for, it is left out with the reason; otherwise it was not asked for."""
        for asked, said in ((True, "left out: inference keeps nothing for backward"), (False, "not asked for")):
            predict = sc.inference_model(network(), options=options(pack_spikes=asked))
            predict(batch()[0])
            assert predict.form["pack_spikes"] == said

    @pytest.mark.parametrize("name", ["channels_last", "compile", "graph", "fast"])
    def test_another_value_is_refused(self, name: str) -> None:
        """True, False, or None where it is left open."""
        with pytest.raises(TypeError, match=f"{name}=1 must be True or False"):
            sc.CudaOptions(**{name: 1})


class TestPooling:
    """Average pooling whose gradient torch has wrong in one of the forms."""

    @pytest.mark.parametrize("kind", [nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d])
    def test_clipped_windows_are_not_compiled(self, compiler: Compiler, kind: Any) -> None:
        """In training; what divides every window by the same number, or by what it holds, is."""
        options = sc.TrainingOptions(compile=True)
        net = nn.Sequential(nn.Linear(2, 2), kind(2, ceil_mode=True))
        with pytest.raises(sc.Unsupported, match="compile=True cannot be: torch.compile computes a wrong.*198119.*use"):
            sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1), options=options)
        assert sc.inference_model(net, options=options).form["compile"] == "used"
        net[1] = kind(2, ceil_mode=True, count_include_pad=False)
        sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1), options=options)

    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
    def test_a_block_with_such_a_shortcut_compiles_to_its_gradient(self) -> None:
        """By torch itself: windows at the edge are divided by what they hold."""
        torch._dynamo.reset()
        torch.manual_seed(0)
        lif = functools.partial(sc.LIF, backend="torch")
        net = sc.layers.MSBlock(2, 4, lif, stride=2, pooled_shortcut=True, zero_init=False).double()
        x = torch.randn(2, 2, 2, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        gradients = []
        for part in (copy.deepcopy(net), net):
            options = sc.TrainingOptions(compile=part is net)
            optimizer = torch.optim.SGD(part.parameters(), 0.1)
            sc.training_model(part, lambda y, t: (y**2).sum(), optimizer, options=options)(x, torch.zeros(1))
            gradients.append([parameter.grad for parameter in part.parameters()])
        torch.testing.assert_close(*gradients)

    @pytest.mark.parametrize("padding", [1, (0, 1)])
    def test_padded_windows_are_not_channels_last_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch, padding: Any) -> None:
        """In training."""
        options = sc.TrainingOptions(channels_last=True)
        net = nn.Sequential(nn.Conv2d(2, 2, 2), nn.AvgPool2d(2, padding=padding))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        assert sc.training_model(net, sc.losses.ce_rate, optimizer, options=options).form["channels_last"] == "used"
        monkeypatch.setattr(nn.Parameter, "is_cuda", True, raising=False)
        with pytest.raises(sc.Unsupported, match="channels_last=True cannot be: torch before July 2026 gives.*188344"):
            sc.training_model(net, sc.losses.ce_rate, optimizer, options=options)
        assert sc.inference_model(net, options=options).form["channels_last"] == "used"


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
