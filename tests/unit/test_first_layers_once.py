"""First layers once: what is the same at every step is computed for one step, and gives what T equal steps give."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from graphed import GRAPH, Rerun
from spikecore._base.batches import inputs_on
from spikecore.layers import TimeBatched, per_sample
from spikecore.training._cuda_graph import facts
from spikecore.training._cuda_graph import step as graph_step

T, B = 5, 3


def _compiles():
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


COMPILED = pytest.mark.skipif(not _compiles(), reason="torch.compile looks through neurons from torch 2.6 on")


@pytest.fixture(autouse=True)
def _weights():
    """The same weights in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class EveryStep(sc.encode.Constant):
    """Constant whose steps lie apart in memory, so that nothing is known to be the same."""

    def forward(self, x):
        """A copy for every step."""
        return super().forward(x).clone()


@per_sample
class Scale(nn.Module):
    """A user's layer, which remembers the shape that it saw."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        """Every number times the factor."""
        self.seen = tuple(x.shape)
        return x * self.factor


class Noisy(Scale):
    """Derived from a marked class, with a forward that draws: not marked."""

    def forward(self, x):
        """Noise."""
        return super().forward(x) + torch.rand_like(x)


class Residual(nn.Module):
    """A user's layer with layers inside."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        """The input added."""
        return x + self.inside(x)


def values(*shape, seed=0):
    """Values in [0, 3), in float64."""
    return 3 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(*modules):
    """The same layers behind an encoder that repeats, and behind one whose steps are computed each."""
    net = nn.Sequential(*modules).double()
    return nn.Sequential(sc.encode.Constant(T), *net), nn.Sequential(EveryStep(T), *copy.deepcopy(net))


def gradients(net, x, cotangent):
    """Outputs, and gradients of input and parameters."""
    x = x.clone().requires_grad_()
    out = net(x)
    return out.detach(), torch.autograd.grad(out, [x, *net.parameters()], cotangent)


def check_same(once, every, x):
    """Outputs, gradients and buffers of both."""
    expected = every(x)
    every.load_state_dict(once.state_dict())
    cotangent = values(*expected.shape, seed=1)
    (a, grads), (b, others) = gradients(once, x, cotangent), gradients(every, x, cotangent)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for grad, other in zip(grads, others):
        torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-9)
    for (name, buffer), other in zip(once.named_buffers(), every.buffers()):
        torch.testing.assert_close(buffer, other, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


def is_once(net, x):
    """Whether the output of a network is one step that is repeated."""
    return net(x).stride(0) == 0


IMAGE = (B, 4, 8, 8)
SAMPLES = {
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), IMAGE),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3), (B, 4, 8)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (B, 2, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3), IMAGE),
    "Linear": (lambda: nn.Linear(7, 5), (B, 7)),
    "LayerNorm": (lambda: nn.LayerNorm(8), IMAGE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "PReLU": (lambda: nn.PReLU(4), IMAGE),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(1), IMAGE),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "Flatten": (nn.Flatten, IMAGE),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), IMAGE),
    "GELU": (nn.GELU, (B, 7)),
    "ReLU": (nn.ReLU, (B, 7)),
    "Scale": (Scale, (B, 7)),
    "Residual": (lambda: per_sample(Residual(nn.Sequential(nn.Linear(7, 7), nn.ReLU()))), (B, 7)),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()), nn.MaxPool2d(2)), IMAGE),
}


class TestTimeBatched:
    """Layers within TimeBatched."""

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("name", SAMPLES)
    def test_a_layer_of_samples_is_computed_once(self, name, training):
        """The output repeats one step, and values and gradients are those of T equal steps."""
        make, shape = SAMPLES[name]
        once, every = pair(TimeBatched(make()))
        once.train(training), every.train(training)
        assert is_once(once, values(*shape))
        check_same(once, every, values(*shape))

    def test_the_layer_sees_one_step(self):
        """A layer of the user's, marked as of samples, gets [B, ...]."""
        layer = Scale()
        nn.Sequential(sc.encode.Constant(T), TimeBatched(layer))(torch.rand(B, 7))
        assert layer.seen == (B, 7)

    @pytest.mark.parametrize(
        "options",
        [{}, {"momentum": None}, {"momentum": 0.3}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}],
    )
    @pytest.mark.parametrize("training", [True, False])
    def test_batch_normalisation_moves_its_statistics_as_by_all_steps(self, options, training):
        """Running mean, variance and counter over three calls, values and gradients."""
        norm = nn.BatchNorm2d(6, **options).double()
        once, every = pair(TimeBatched(nn.Conv2d(4, 6, 3), norm, nn.ReLU()))
        once.train(training), every.train(training)
        for seed in range(3):
            x = values(2, 4, 3, 3, seed=seed)
            out = once(x)
            assert out.stride(0) == 0
            torch.testing.assert_close(out, every(x), rtol=1e-12, atol=1e-12)
        for buffer, other in zip(once.buffers(), every.buffers()):
            torch.testing.assert_close(buffer, other, rtol=1e-12, atol=1e-12)
        check_same(once, every, values(2, 4, 3, 3, seed=9))

    def test_the_running_variance_is_that_of_so_many_numbers(self):
        """Against the definition: T * B * H * W numbers, each of B * H * W T times."""
        norm = nn.BatchNorm1d(1, momentum=1.0).double()
        nn.Sequential(sc.encode.Constant(T), TimeBatched(norm))(torch.tensor([[1.0], [4.0]], dtype=torch.float64))
        torch.testing.assert_close(norm.running_var, torch.tensor([1.0] * T + [4.0] * T).double().var().reshape(1))

    def test_one_number_per_channel_is_normalised_with_every_step(self):
        """Torch refuses to normalise one number, and takes T equal ones."""
        once, every = pair(TimeBatched(nn.BatchNorm1d(7)))
        check_same(once, every, values(1, 7))

    def test_dropout_in_training_draws_for_every_step(self):
        """Layers before it are computed once, itself and those behind it for every step."""
        layer = Scale()
        net = nn.Sequential(sc.encode.Constant(50), TimeBatched(layer, nn.Dropout(0.5), nn.Flatten()))
        out = net(torch.ones(2, 4, 5))
        assert layer.seen == (2, 4, 5)
        assert len({tuple(step.flatten().tolist()) for step in out.detach()}) > 40
        assert is_once(net.eval(), torch.ones(2, 4, 5))

    @pytest.mark.parametrize(
        "layer",
        [
            Noisy(),
            Residual(nn.Identity()),
            per_sample(Residual(nn.Dropout(0.5))),
            per_sample(Residual(nn.BatchNorm1d(7))),
            nn.Softmax(0),
            nn.Flatten(0, 0),
            type("Mine", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x) - x.mean(0)})(7, 7),
            nn.RReLU(),
        ],
        ids=lambda layer: type(layer).__name__,
    )
    def test_what_is_not_known_to_be_of_samples_is_computed_at_every_step(self, layer):
        """Noise, statistics of the batch, a class that nobody marked, one that is derived."""
        assert not is_once(nn.Sequential(sc.encode.Constant(T), TimeBatched(layer)), torch.rand(B, 7))

    def test_a_convolution_that_takes_the_batch_for_channels_is_computed_at_every_step(self):
        """Of [T * B, H, W] torch makes one image of T * B channels."""
        once, every = pair(TimeBatched(nn.Conv2d(T * B, T * B, 3)))
        check_same(once, every, values(B, 6, 6))

    def test_a_layer_that_writes_into_its_input_does_not_write_into_the_users(self):
        """The first layer gets a copy, as it did."""
        x = torch.tensor([[-1.0, 2.0]])
        nn.Sequential(sc.encode.Constant(T), TimeBatched(nn.Identity(), nn.ReLU(inplace=True)))(x)
        assert x.tolist() == [[-1.0, 2.0]]

    def test_a_marked_layer_with_one_inside_that_writes_does_not_write_into_the_users(self):
        """The block's first layer is one with inplace=True."""
        net = nn.Sequential(sc.encode.Constant(T), TimeBatched(per_sample(Residual(nn.ReLU(inplace=True)))))
        x = torch.tensor([[-1.0, 2.0]])
        assert is_once(net, x)
        assert x.tolist() == [[-1.0, 2.0]]

    @pytest.mark.parametrize("batch", [1, B])
    def test_a_layer_that_writes_behind_one_that_is_computed_once(self, batch):
        """It gets memory of its own for every step, in a batch of one sample, too."""
        made = []
        for net in pair(TimeBatched(nn.Linear(7, 5), nn.Dropout(0.5, inplace=True), nn.Linear(5, 5))):
            torch.manual_seed(3)
            made.append(net(values(batch, 7)))
        torch.testing.assert_close(*made)

    def test_a_layer_that_gives_several_tensors_is_computed_at_every_step(self):
        """What takes them gets those of all steps."""
        first = type("First", (nn.Module,), {"forward": lambda self, x: x[0]})()
        once, every = pair(TimeBatched(nn.MaxPool2d(2, return_indices=True), first))
        check_same(once, every, values(*IMAGE))

    @pytest.mark.parametrize("write", ["y[0] = 0", "y[0] += 1", "y.fill_(0)", "y[1].unbind()[0].mul_(2)"])
    def test_a_write_into_a_step_that_others_share_is_refused(self, write):
        """torch refuses most by itself, but not one into a single step, which all steps would get."""
        y = nn.Sequential(sc.encode.Constant(T), TimeBatched(nn.Linear(7, 5)))(torch.rand(B, 7))
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            exec(write, {"y": y})

    def test_another_leading_dimension_is_refused_in_words(self):
        """The sentence says what it must be."""
        halves = per_sample(type("Halves", (nn.Module,), {"forward": lambda self, x: x[:1]})())
        with pytest.raises(ValueError, match=r"must keep the leading dimension, B = 3 for x of shape \(5, 3, 7\)"):
            nn.Sequential(sc.encode.Constant(T), TimeBatched(halves))(torch.rand(B, 7))

    @pytest.mark.parametrize(
        "watch",
        [
            lambda layer, hook: layer.register_forward_hook(lambda module, args, out: hook(out)),
            lambda layer, hook: layer.register_forward_pre_hook(lambda module, args: hook(args[0])),
            lambda layer, hook: layer.register_full_backward_hook(lambda module, before, after: hook(after[0])),
            lambda layer, hook: nn.modules.module.register_module_forward_hook(
                lambda module, args, out: hook(out) if module is layer else None
            ),
        ],
        ids=["forward", "pre", "backward", "global"],
    )
    def test_a_hook_sees_every_step(self, watch):
        """What watches a layer gets what it always got; without it, the layer is computed once again."""
        layer, seen = nn.Linear(7, 5), []
        net = nn.Sequential(sc.encode.Constant(T), TimeBatched(nn.Identity(), layer))
        x = torch.rand(B, 7, requires_grad=True)
        handle = watch(layer, lambda value: seen.append(value.shape[0]))
        net(x).sum().backward()
        handle.remove()
        assert seen == [T * B]
        assert is_once(net, x)


class TestHoist:
    """sc.hoist: layers that get [T, B, ...] as it is."""

    @pytest.mark.parametrize(
        "make",
        [lambda: nn.Linear(7, 5), lambda: nn.LayerNorm(7), nn.SiLU, lambda: nn.Sequential(nn.Linear(7, 5), nn.Tanh())],
    )
    def test_a_layer_behind_the_encoder_is_computed_once(self, make):
        """Values and gradients are those of T equal steps."""
        once, every = pair(make())
        assert not is_once(once, values(B, 7))
        assert sc.hoist(once) is once
        assert is_once(once, values(B, 7))
        check_same(once, every, values(B, 7))
        assert not is_once(sc.unhoist(once), values(B, 7))

    @pytest.mark.parametrize("grad", [True, False])
    @pytest.mark.parametrize("layer", [nn.Linear(4, 2), TimeBatched(Scale()), nn.Identity()], ids=["linear", "own", ""])
    def test_a_batch_that_repeats_a_step_is_computed_once_and_written_out(self, layer, grad):
        """By its stride, as ``x.expand(T, ...)`` has it; anything may write into what comes of it."""
        x = values(B, 4).float().expand(T, B, 4)
        once, plain = sc.hoist(copy.deepcopy(layer)), copy.deepcopy(layer)
        with torch.set_grad_enabled(grad):
            y, expected = once(x), plain(x.clone())
        torch.testing.assert_close(y, expected)
        if grad and list(layer.parameters()):
            for one in (y, expected):
                one.square().sum().backward()
            for one, other in zip(once.parameters(), plain.parameters()):
                torch.testing.assert_close(one.grad, other.grad)
        for one in (y, expected):
            with torch.no_grad():
                one[0] = 0
                one += 1
        torch.testing.assert_close(y, expected)

    def test_it_is_written_out_in_the_layout_of_the_step(self):
        """Channels-last, here: a convolution behind it would copy else."""
        conv = TimeBatched(nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last))
        x = values(B, 2, 6, 5).float().contiguous(memory_format=torch.channels_last)
        y = conv(x.expand(T, *x.shape))
        assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(y, conv(x.expand(T, *x.shape).clone()))

    @pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILED)])
    @pytest.mark.parametrize("grad", [True, False])
    def test_a_network_that_writes_into_what_comes_of_a_repeated_tensor(self, grad, compiled):
        """Such as a position code, the same for each sample: no batch, and no time."""

        class Coded(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("code", values(1, 3, 4).float())
                self.project = nn.Linear(4, 4)

            def forward(self, x):
                h = self.project(self.code.expand(len(x), -1, -1))
                h[0] = 0
                h += x
                return h

        net, x = Coded(), values(B, 3, 4).float()
        expected = net(x).detach()
        sc.hoist(net)
        with torch.set_grad_enabled(grad):
            y = torch.compile(net, backend="aot_eager")(x) if compiled else net(x)
        torch.testing.assert_close(y.detach(), expected)

    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of shapes that are compared
    def test_a_hoisted_network_is_traced(self):
        """Whatever the strides of the example: what repeats is no question of the trace."""
        for net in (nn.Sequential(nn.Linear(4, 2), nn.Tanh()), TimeBatched(nn.Linear(4, 2))):
            sc.hoist(net)
            for example in (torch.rand(T, B, 4), torch.rand(B, 4).expand(T, B, 4)):
                traced = torch.jit.trace(net, example)
                x = torch.rand(T, B, 4)
                torch.testing.assert_close(traced(x), net(x))

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested_tensors_are_left_alone(self):
        """They have no strides."""
        net, x = nn.Linear(4, 2), torch.nested.nested_tensor([torch.rand(2, 4), torch.rand(3, 4)])
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        sc.training_model(net, lambda y, _: y.to_padded_tensor(0.0).sum(), optimizer)(x, torch.zeros(1))
        assert sc.inference_model(net)(x).is_nested

    def test_a_batch_with_a_derivative_is_computed_step_by_step(self):
        """Its gradient is asked for at every step."""
        x = values(B, 4).float().expand(T, B, 4).requires_grad_()
        sc.hoist(nn.Linear(4, 2))(x).sum().backward()
        assert x.grad.shape == x.shape

    @pytest.mark.parametrize("options", [None, GRAPH], ids=["eager", "graph"])
    def test_a_batch_that_repeats_a_step_stays_one_through_a_training_step(self, options, monkeypatch):
        """Also in the buffers of a graph, which replays fill; the numbers are those of a batch written out."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
        weights = []
        for repeated in (True, False):
            torch.manual_seed(0)
            scale = Scale()
            net = nn.Sequential(TimeBatched(scale), nn.Linear(4, 2), sc.LIF())
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            step = sc.training_model(net, lambda y, _: y.mean(), optimizer, options=options)
            for i in range(6):
                x = values(B, 4, seed=i).float().expand(T, B, 4)
                step(x if repeated else x.clone(), torch.zeros(B))
                assert scale.seen == ((B, 4) if repeated else (T * B, 4))
            weights.append(list(net.parameters()))
        for one, other in zip(*weights):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("options", [None, GRAPH], ids=["eager", "graph"])
    def test_a_network_that_writes_into_its_repeated_input(self, options, monkeypatch):
        """Of a copy that was made for the network, it is refused; a tensor of the user's own is as torch has it."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))

        class Writes(nn.Linear):
            def forward(self, x):
                x[0] = 0
                return super().forward(x)

        net, x = Writes(4, 2), values(B, 4).float().expand(T, B, 4)
        step = sc.training_model(net, lambda y, _: y.sum(), torch.optim.SGD(net.parameters(), 0.1), options=options)
        weight = net.weight.detach().clone()
        if options is None:
            step(x, torch.zeros(B))
            return
        for call in (lambda: step(x, torch.zeros(B)), lambda: sc.inference_model(net, options=options)(x)):
            with pytest.raises(RuntimeError, match=r"writes into its input.*5, 3, 4.*x\.contiguous\(\)"):
                call()
        assert torch.equal(net.weight, weight)
        step(x.contiguous(), torch.zeros(B))

    @pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Flatten(0, 1)], ids=["written", "viewed"])
    def test_what_torch_refuses_of_a_repeated_input_names_the_way_out(self, first, monkeypatch):
        """A write in place into the input itself, and a view of it."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
        if isinstance(first, nn.Flatten):
            monkeypatch.setattr(first, "forward", lambda x: x.view(T * B, 4))
        net, x = nn.Sequential(first, nn.Linear(4, 2)), values(B, 4).float().expand(T, B, 4)
        step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), 0.1), options=GRAPH)
        with pytest.raises(RuntimeError, match=r"share one memory.*x\.reshape.*x\.contiguous\(\)"):
            step(x, torch.zeros(B))
        step(x.contiguous(), torch.zeros(B))

    def test_a_batch_that_was_made_in_inference_mode(self):
        """It has no count of the writes into it."""
        with torch.inference_mode():
            x = values(B, 2, 4, 4).float().expand(T, B, 2, 4, 4)
        net = sc.layers.TimeBatched(nn.Conv2d(2, 3, 3))
        options = sc.TrainingOptions(channels_last=True)
        step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), 0.1), options=options)
        assert step(x, torch.zeros(B))[0].shape == (T, B, 3, 2, 2)

    def test_kinds_of_tensors_that_repeat_in_a_graph(self, monkeypatch):
        """A parameter is a batch as any other; a batch with a derivative, too."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
        net, x = nn.Linear(4, 2), values(B, 4).float().expand(T, B, 4)
        step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), 0.0), options=GRAPH)
        for given in (x, nn.Parameter(x), x.detach().requires_grad_(), x):
            for _ in range(4):
                torch.testing.assert_close(step(given, torch.zeros(B))[0], net(x.clone()).detach())

    def test_what_repeats_is_moved_once(self):
        """To another device, in the same form; what has a derivative as torch moves it."""
        x, cpu = torch.rand(B, 4, 1), torch.device("cpu")
        for given in (x.expand(T, B, 4, 6), x, x[:, :2], x.expand(B, 4, 1), torch.rand(1).expand(0, 1)):
            found = inputs_on(given, torch.device("meta"))
            assert found.shape == given.shape
            assert inputs_on(given, cpu) is given
            copied = inputs_on(given, cpu, copy=True)
            assert torch.equal(copied, given)
            assert not copied.numel() or copied.data_ptr() != given.data_ptr()
            for size, stride, other in zip(given.shape, given.stride(), found.stride()):
                assert size < 2 or (stride == 0) == (other == 0)
        sparse = torch.eye(3).to_sparse()
        assert inputs_on(sparse, cpu) is sparse
        leaf = torch.rand(3).expand(4, 3).requires_grad_()
        (inputs_on(leaf, cpu, copy=True) * torch.arange(4.0)[:, None]).sum().backward()
        assert torch.equal(leaf.grad[:, 0], torch.arange(4.0))

    def test_other_inputs_are_computed_as_before(self):
        """Steps that differ; one step; a normalisation over batch and steps."""
        net = sc.hoist(nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.ReLU()))
        plain = copy.deepcopy(net)
        x = torch.rand(T, B, 7)
        assert torch.equal(net(x), sc.unhoist(plain)(x))
        assert torch.equal(net(x[0]), plain(x[0]))
        whole = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.LayerNorm((B, 7))))
        assert not is_once(whole, torch.rand(B, 7))

    def test_dropout_and_what_writes_into_its_input_are_computed_at_every_step(self):
        """Dropout in training; a layer with inplace=True raises, as torch does, rather than change the user's input."""
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Dropout(0.5)))
        assert not is_once(net, torch.rand(B, 7))
        assert is_once(net.eval(), torch.rand(B, 7))
        x = -torch.ones(B, 7)
        with pytest.raises(RuntimeError, match="single memory location"):
            sc.hoist(nn.ReLU(inplace=True))(sc.encode.Constant(T)(x))
        assert torch.equal(x, -torch.ones(B, 7))

    @pytest.mark.parametrize("layer", [nn.ReLU, nn.Dropout])
    def test_a_layer_that_writes_behind_another_one_in_a_sequential_gets_a_copy(self, layer):
        """It did before the layer in front was computed once; twice is as once, and unhoist takes it away."""
        once, every = pair(nn.Linear(7, 5), layer(inplace=True))
        sc.hoist(sc.hoist(once))
        made = [torch.manual_seed(3) and net(values(B, 7)) for net in (once, every)]
        torch.testing.assert_close(*made)
        assert len(once[2]._forward_pre_hooks) == 2
        assert not sc.unhoist(once)[2]._forward_pre_hooks

    def test_a_layer_whose_class_was_replaced_is_computed_at_every_step(self):
        """Nothing is known of the new one."""
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 5)))
        net[1].__class__ = type("Mine", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x) * len(x)})
        assert not is_once(net, torch.rand(B, 7))

    def test_names_copies_and_pickles_are_as_before(self):
        """Twice is as once; a copy and a pickle compute once, too; state_dict has the same names."""
        net = nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 5))
        names = list(net.state_dict())
        sc.hoist(sc.hoist(net))
        assert list(net.state_dict()) == names
        assert len(net[1]._forward_hooks) == 1
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert is_once(other, torch.rand(B, 7))
            assert torch.equal(other(torch.ones(B, 7)), net(torch.ones(B, 7)))
        assert len(sc.unhoist(net)[1]._forward_hooks) == 0

    def test_a_hook_of_the_users_sees_every_step_and_stays(self):
        """With another hook the layer computes every step; unhoist leaves it."""
        net, seen = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 5))), []
        net[1].register_forward_hook(lambda module, args, out: seen.append((args[0].shape, out.shape)))
        net(torch.rand(B, 7))
        assert seen == [((T, B, 7), (T, B, 5))]
        sc.unhoist(net)(torch.rand(B, 7))
        assert len(seen) == 2

    def test_a_parametrization_takes_part(self):
        """torch.nn.utils.parametrize puts another class in the place of the layer's."""
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 7)))
        nn.utils.parametrizations.orthogonal(net[1])
        assert is_once(net, torch.rand(B, 7))

    def test_training_and_inference_models_hoist(self):
        """Both need no word from the user."""
        net = nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 5))
        sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.1))
        assert is_once(net, torch.rand(B, 7))
        sc.inference_model(sc.unhoist(net))
        assert is_once(net, torch.rand(B, 7))

    def test_what_is_no_module_is_refused_in_words(self):
        """hoist, unhoist and per_sample."""
        for function in (sc.hoist, sc.unhoist):
            with pytest.raises(TypeError, match=r"net=3 is a int; give the network \(an nn.Module\)"):
                function(3)
        with pytest.raises(TypeError, match=r"per_sample\(.*\) needs an nn.Module or a class of them"):
            per_sample(lambda x: x)


class TestWholeNetworks:
    """Networks with neurons."""

    @pytest.mark.parametrize("training", [True, False])
    def test_spikes_are_bit_equal_and_gradients_are_the_same(self, training):
        """784-1000-10 in small, and a convolutional network, in float32."""
        first = TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        fully = [nn.Linear(16, 12), sc.LIF(threshold=0.2), nn.Linear(12, 4), sc.LIF(threshold=0.01)]
        conv = [first, sc.LIF(threshold=0.2), TimeBatched(nn.Flatten(), nn.Linear(16, 4)), sc.LIF(threshold=0.01)]
        for modules, shape in ((fully, (B, 16)), (conv, (B, 1, 4, 4))):
            once, every = pair(*modules)
            once, every = sc.hoist(once).float().train(training), every.float().train(training)
            x = values(*shape).float() * 2
            (a, grads), (b, others) = (gradients(net, x, torch.ones(T, B, 4)) for net in (once, every))
            assert a.any()
            assert torch.equal(a, b)
            for grad, other in zip(grads, others):
                torch.testing.assert_close(grad, other, rtol=2e-6, atol=2e-6)

    def test_a_fused_normalisation_is_computed_once(self):
        """sc.fuse: the neuron normalises one step."""
        modules = [TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), sc.LIF()]
        once, every = pair(*modules)
        sc.fuse(once), sc.fuse(every)
        seen = []
        once[2].register_forward_pre_hook(lambda module, args: seen.append(args[0].stride(0)))
        check_same(once, every, values(B, 1, 4, 4))
        assert set(seen) == {0}

    def test_gradients_agree_with_finite_differences(self):
        """In float64, through an encoder, a linear layer, batch normalisation and a smooth neuron without spikes."""
        net = nn.Sequential(sc.encode.Constant(T), TimeBatched(nn.Linear(4, 3), nn.BatchNorm1d(3)), sc.LI(tau=2.0))
        assert torch.autograd.gradcheck(net.double(), values(B, 4).requires_grad_())

    def test_a_loop_over_steps_gets_every_step(self):
        """Single-step networks take the steps of an encoder one by one."""
        net = sc.hoist(nn.Sequential(nn.Linear(7, 5), sc.LIF(step="single")))
        x = torch.rand(B, 7) * 3
        steps = torch.stack([net(x_t) for x_t in sc.encode.Constant(T)(x)])
        multi = nn.Sequential(sc.encode.Constant(T), net[0], sc.LIF())
        assert torch.equal(steps, multi(x))

    @pytest.mark.parametrize("reentrant", [False, True])
    @pytest.mark.parametrize("backend", ["torch", "numba"])
    def test_checkpointed_regions_give_the_same(self, reentrant, backend):
        """A region that begins before, at, or behind the repeated input is computed again as it was first."""
        if backend == "numba":
            pytest.importorskip("spikecore_numba", reason="needs the plugin spikecore-numba")
        make = [
            sc.encode.Constant(T),
            TimeBatched(nn.Conv2d(1, 4, 3)),
            sc.LIF(backend=backend),
            TimeBatched(nn.Flatten()),
        ]
        net = sc.hoist(nn.Sequential(*make))
        x = values(B, 1, 4, 4).float().requires_grad_()
        expected = torch.autograd.grad(net(x).sum(), [x, *net.parameters()])
        for begin in range(3):
            inner = net[begin:]
            out = checkpoint(inner, net[:begin](x), use_reentrant=reentrant)
            x.grad = None
            net.zero_grad()
            out.sum().backward()
            for grad, other in zip([x.grad, *(p.grad for p in net.parameters())], expected):
                torch.testing.assert_close(grad, other, rtol=1e-5, atol=1e-6)

    def test_a_checkpointed_region_computes_every_step_both_times(self):
        """What it is given when it runs again may have lost that it repeats, and it must save the same tensors."""
        seen = []
        layer = per_sample(type("Seeing", (nn.Module,), {"forward": lambda self, x: seen.append(len(x)) or x * x})())
        x = torch.rand(B, 7, requires_grad=True)
        checkpoint(TimeBatched(layer), sc.encode.Constant(T)(x * 1), use_reentrant=False).sum().backward()
        assert seen == [T * B, T * B]

    def test_sc_checkpoint_gives_the_same(self):
        """Groups of layers, the first of which begins with the encoder."""
        modules = [
            TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
            sc.LIF(),
            TimeBatched(nn.Flatten(), nn.Linear(16, 4)),
        ]
        once, every = pair(*modules)
        sc.checkpoint(once, every=2)
        check_same(once, every, values(B, 1, 4, 4))

    @COMPILED
    @pytest.mark.parametrize("training", [True, False])
    def test_a_compiled_network_computes_once(self, training):
        """One graph, whose convolution and linear layer get B samples; values and gradients are the same."""
        modules = [TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), TimeBatched(nn.Flatten())]
        once, every = pair(*modules, nn.Linear(16, 4), sc.LI(tau=2.0))
        once, every = sc.hoist(once).train(training), every.train(training)
        batches = []

        def compiler(graph, inputs):
            layers = [
                node for node in graph.graph.nodes if getattr(node.target, "__name__", "") in ("conv2d", "linear")
            ]
            batches.extend(node.meta["example_value"].shape[0] for node in layers)
            return graph.forward

        compiled = torch.compile(once, backend=compiler, fullgraph=True)
        x, cotangent = values(B, 1, 4, 4), values(T, B, 4, seed=1)
        found, expected = compiled(x), every(x)
        torch.testing.assert_close(found, expected)
        grads = torch.autograd.grad(found, list(once.parameters()), cotangent)
        for grad, other in zip(grads, torch.autograd.grad(expected, list(every.parameters()), cotangent)):
            torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-9)
        for buffer, other in zip(once.buffers(), every.buffers()):
            torch.testing.assert_close(buffer, other)
        assert batches == [B, B]

    def test_threads_share_a_network(self):
        """Hooks keep nothing between the two halves of a call."""
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 5)))
        x, found = torch.rand(B, 7), []
        expected = net(x)
        work = [threading.Thread(target=lambda: found.append(net(x))) for _ in range(4)]
        [thread.start() for thread in work], [thread.join() for thread in work]
        assert all(torch.equal(one, expected) for one in found)
        assert len(found) == 4
