"""First layers once: what is the same at every step is computed for one step, and gives what T equal steps give."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc
from first_layers import B, Noisy, Residual, Scale, T, check_same, is_once, pair, same_weights, values
from spikecore.layers import TimeBatched, per_sample

_weights = pytest.fixture(autouse=True)(same_weights)

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

    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of shapes that are compared
    def test_a_hoisted_network_is_traced(self):
        """Whatever the strides of the example: what repeats is no question of the trace."""
        for net in (nn.Sequential(nn.Linear(4, 2), nn.Tanh()), TimeBatched(nn.Linear(4, 2))):
            sc.hoist(net)
            for example in (torch.rand(T, B, 4), torch.rand(B, 4).expand(T, B, 4)):
                traced = torch.jit.trace(net, example)
                x = torch.rand(T, B, 4)
                torch.testing.assert_close(traced(x), net(x))

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

    @pytest.mark.parametrize("nested", ["flat", "first of a chain", "first of a chain in a chain"])
    @pytest.mark.parametrize("kind", [nn.ReLU, nn.RReLU, type("Mine", (nn.ReLU,), {})], ids=lambda kind: kind.__name__)
    def test_any_layer_that_writes_gets_a_copy_wherever_it_stands_in_a_sequential(self, kind, nested):
        """Behind a layer that is computed once, in a chain of its own too, of torch's or a subclass."""
        layer = kind(inplace=True)
        for _ in range({"flat": 0, "first of a chain": 1, "first of a chain in a chain": 2}[nested]):
            layer = nn.Sequential(layer)
        once, every = pair(nn.Linear(7, 5), layer)
        sc.hoist(once)
        made = [torch.manual_seed(3) and net(values(B, 7)) for net in (once, every)]
        torch.testing.assert_close(*made)
        assert not [part for part in sc.unhoist(once).modules() if part._forward_pre_hooks]

    def test_a_layer_that_writes_in_a_sequential_of_ones_own_gets_a_copy(self):
        """A class that adds no forward to nn.Sequential, as torchvision's blocks are."""

        class Block(nn.Sequential):
            pass

        for layers in (
            (Block(nn.Linear(7, 5), nn.ReLU(inplace=True)),),
            (nn.Linear(7, 5), Block(nn.ReLU(inplace=True))),
        ):
            once, every = pair(*layers)
            torch.testing.assert_close(sc.hoist(once)(values(B, 7)), every(values(B, 7)))

    def test_one_layer_that_writes_twice_in_a_sequential_gets_a_copy(self):
        """Activations are often one object."""
        relu = nn.ReLU(inplace=True)
        once, every = pair(nn.Linear(7, 5), relu, nn.Linear(5, 5), nn.Sequential(relu))
        torch.testing.assert_close(sc.hoist(once)(values(B, 7)), every(values(B, 7)))

    def test_a_layer_that_a_forward_may_call_for_what_it_writes_gets_no_copy(self):
        """The copy would lose in silence what it writes."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.relu = nn.Linear(7, 5), nn.ReLU(inplace=True)
                self.chain = nn.Sequential(nn.Linear(5, 5), nn.Sequential(self.relu))

            def forward(self, x):
                z = self.first(x)
                self.relu(z)
                return self.chain(x[..., :5]) + z

        net = sc.hoist(Net().double())
        with pytest.raises(RuntimeError, match="inplace|single memory location"):
            net(sc.encode.Constant(T)(values(B, 7)))

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
            with pytest.raises(TypeError, match=r"net=3 is an int; give the network \(an nn.Module\)"):
                function(3)
        with pytest.raises(TypeError, match=r"per_sample\(.*\) needs an nn.Module or a class of them"):
            per_sample(lambda x: x)


def test_padding_of_the_batch_is_of_no_sample():
    """``nn.ConstantPad2d`` of ``[B, N]`` pads the batch: with one sample more and one less the sizes are the same."""
    x, pad = torch.arange(6.0).view(3, 2), nn.ConstantPad2d((0, 0, 1, -1), 0.0)
    wrapped = sc.layers.TimeBatched(pad)
    assert torch.equal(wrapped(sc.encode.Constant(2)(x)), wrapped(torch.stack([x, x])))


def test_padding_within_a_marked_module_is_computed_once():
    """The rule for ``[B, C]`` does not hold it back, where the size of its input is not known."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.pad = nn.ZeroPad2d(1)

        def forward(self, x):
            return self.pad(x)

    wrapped = sc.layers.TimeBatched(per_sample(Own()))
    assert wrapped(sc.encode.Constant(3)(torch.rand(2, 2, 4, 4))).stride(0) == 0
