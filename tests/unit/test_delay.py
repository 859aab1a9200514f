"""Delay: values, gradients, carried inputs and layouts against loops over every connection and lag."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import spikecore as sc

T, B, J, OUT, LONGEST = 7, 2, 3, 4, 3
PER = ("connection", "input")


def drawn(*shape, seed=0, dtype=torch.float64):
    """Normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def made(per="connection", longest=LONGEST, dtype=torch.float64, **options):
    """A delay with weights and positions that are always the same."""
    torch.manual_seed(1)
    linear = nn.Linear(J, OUT, dtype=dtype)
    return sc.Delay(linear, longest, per=per, generator=torch.Generator().manual_seed(2), **options)


def by_hand(x, weight, bias, delay, sigma, longest=LONGEST):
    """The sums, written out in NumPy; ``sigma`` is None for delays that are rounded."""
    delay = np.broadcast_to(delay, weight.shape)
    out = np.zeros((*x.shape[:2], len(weight))) + bias
    for o in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            share = [float(k == round(delay[o, j])) for k in range(longest + 1)]
            if sigma is not None:
                share = [np.exp(-((k - delay[o, j]) ** 2) / (2 * sigma**2)) for k in range(longest + 1)]
            for k in range(longest + 1):
                for t in range(k, len(x)):
                    out[t, :, o] += weight[o, j] * share[k] / sum(share) * x[t - k, :, j]
    return out


def numbers(layer):
    """Weight, bias, delay, sigma of a layer as arrays."""
    values = (layer.linear.weight, layer.linear.bias, layer.delay, layer.sigma)
    return tuple(None if value is None else value.detach().numpy() for value in values)


class TestValues:
    """Against the loop."""

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("sigma", [0.3, 1.5, 20.0])
    def test_a_gaussian_while_training(self, per, sigma):
        """Every lag has its normalised part of the weight."""
        layer, x = made(per, sigma=sigma), drawn(T, B, J)
        np.testing.assert_allclose(layer(x).detach(), by_hand(x.numpy(), *numbers(layer)), rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("fixed", [True, False])
    def test_whole_steps_otherwise(self, per, fixed):
        """In eval mode, and for fixed delays in training, an input comes the rounded delay later."""
        layer, x = made(per, learn=() if fixed else ("delay",)).train(fixed), drawn(T, B, J)
        weight, bias, delay, _ = numbers(layer)
        assert not np.array_equal(delay, delay.round())
        np.testing.assert_allclose(layer(x).detach(), by_hand(x.numpy(), weight, bias, delay, None), rtol=1e-13)
        assert np.array_equal(layer.whole, np.vectorize(round)(delay))

    def test_a_narrow_gaussian_is_the_whole_delay(self):
        """What training ends with is what eval computes, where delays are whole."""
        layer, x = made(delay=2.0, sigma=0.05), drawn(T, B, J)
        assert torch.equal(layer(x), layer.eval()(x))
        torch.testing.assert_close(layer(x)[2:], layer.linear(x[:-2]), rtol=1e-13, atol=1e-13)

    def test_half_a_step_goes_to_the_even_number(self):
        """As Python's and torch's round."""
        layer = made(learn=(), delay=torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64), per=None)
        assert layer.whole.tolist() == [0, 2, 2]

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("longest", [1, 3, 20])
    def test_delays_longer_than_the_sequence(self, per, training, longest):
        """Before the first step there are zeros."""
        layer, x = made(per, longest).train(training), drawn(3, B, J)
        weight, bias, delay, sigma = numbers(layer)
        want = by_hand(x.numpy(), weight, bias, delay, sigma if training else None, longest)
        np.testing.assert_allclose(layer(x).detach(), want, rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("shape", [(0, B), (1, B), (T, 1), (T, 0), (T,), (T, B, 5), (T, 2, 3, 1)])
    def test_layouts(self, per, training, shape):
        """No steps, one step, one sample or none, no batch, several leading dimensions."""
        layer, x = made(per).train(training), drawn(*shape, J).requires_grad_()
        out, state = layer.run(x)
        assert out.shape == (*shape, OUT)
        assert state["past"].shape == (*shape[1:], J, LONGEST)
        weight, bias, delay, sigma = numbers(layer)
        flat = x.detach().reshape(shape[0], int(np.prod(shape[1:])), J).numpy()
        want = by_hand(flat, weight, bias, delay, sigma if training else None)
        np.testing.assert_allclose(out.detach().reshape(want.shape), want, rtol=1e-12, atol=1e-13)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.shape == x.shape

    def test_an_input_in_another_layout(self):
        """Batch before time, a step that repeats, every other feature."""
        layer, x = made(), drawn(B, T, 2 * J)[..., ::2].transpose(0, 1)
        assert torch.equal(layer(x), layer(x.contiguous()))
        assert torch.equal(layer(x[:1].expand(T, B, J)), layer(x[:1].repeat(T, 1, 1)))
        assert layer(x).is_contiguous()

    def test_first_layers_once_leave_it_alone(self):
        """Behind Constant the first steps differ from those behind them: zeros came before."""
        layer, x = made(dtype=torch.float32), drawn(B, J, dtype=torch.float32)
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Identity(), layer))
        assert torch.equal(net(x), layer(x.repeat(T, 1, 1)))
        assert not torch.equal(net(x)[0], net(x)[-1])


class TestGradients:
    """Against central differences of the loop."""

    @pytest.mark.parametrize("per", PER)
    def test_of_everything_while_training(self, per):
        """Inputs, weights, bias, positions and the width."""
        layer, x = made(per, learn=("delay", "sigma"), sigma=0.8), drawn(T, B, J).requires_grad_()
        cotangent = drawn(T, B, OUT, seed=5)
        wanted = [x, layer.linear.weight, layer.linear.bias, layer.delay, layer.sigma]
        found = torch.autograd.grad(layer(x), wanted, cotangent)
        values = [value.detach().numpy().copy() for value in wanted]
        for at, grad in enumerate(found):
            np.testing.assert_allclose(grad, slope(values, at, cotangent.numpy()), rtol=1e-6, atol=1e-8)
            assert grad.abs().max() > 0

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("longest", [LONGEST, 15])
    def test_whole_delays_pass_those_of_inputs_and_weights(self, per, longest):
        """In eval mode the positions have none; few steps of long delays are looked up, one for each connection."""
        layer, x = made(per, longest).eval(), drawn(T, B, J).requires_grad_()
        cotangent = drawn(T, B, OUT, seed=5)
        wanted = [x, layer.linear.weight, layer.linear.bias]
        found = torch.autograd.grad(layer(x), [*wanted, layer.delay], cotangent, allow_unused=True)
        values = [value.detach().numpy().copy() for value in (*wanted, layer.delay)] + [None]
        for at, grad in enumerate(found[:3]):
            np.testing.assert_allclose(grad, slope(values, at, cotangent.numpy(), longest), rtol=1e-6, atol=1e-8)
        assert found[3] is None

    @pytest.mark.parametrize("per", PER)
    def test_of_the_past(self, per):
        """Inputs before a call have the gradients that they have within one call."""
        layer, x = made(per), drawn(T, B, J).requires_grad_()
        cotangent = drawn(T, B, OUT, seed=5)
        first, state = layer.run(x[:4])
        second, _ = layer.run(x[4:], state=state)
        (apart,) = torch.autograd.grad(torch.cat([first, second]), x, cotangent)
        (whole,) = torch.autograd.grad(layer(x), x, cotangent)
        torch.testing.assert_close(apart, whole, rtol=1e-12, atol=1e-13)

    def test_second_derivatives(self):
        """Plain operations have derivatives of any order."""
        layer, x = made(learn=("delay", "sigma"), sigma=0.8), drawn(4, 1, J).requires_grad_()
        delay, sigma = layer.delay.detach().clone().requires_grad_(), layer.sigma.detach().clone().requires_grad_()

        def function(x, delay, sigma):
            return torch.func.functional_call(layer, {"delay": delay, "sigma": sigma}, (x,))

        assert torch.autograd.gradgradcheck(function, (x, delay, sigma))


def slope(values, at, cotangent, longest=LONGEST, h=1e-6):
    """The derivative of the loop, weighted by the cotangent, with respect to one of its values."""
    found = np.zeros(values[at].shape)
    for index in np.ndindex(values[at].shape):
        ends = []
        for sign in (1, -1):
            moved = [value if k != at else value.copy() for k, value in enumerate(values)]
            moved[at][index] += sign * h
            ends.append((by_hand(*moved, longest) * cotangent).sum())
        found[index] = (ends[0] - ends[1]) / (2 * h)
    return found


class TestState:
    """The last inputs, carried as the state of a neuron is."""

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("sizes", [(4, 3), (1, 1, 5), (2, 0, 5), (1,) * T])
    def test_parts_are_one_call(self, per, training, sizes):
        """Whatever the lengths of the parts, shorter and longer than the longest delay."""
        layer, x = made(per).train(training), drawn(T, B, J)
        with sc.carry_state(layer):
            parts = [layer(part) for part in x.split(sizes)]
            state = layer.state["past"]
        torch.testing.assert_close(torch.cat(parts), layer(x), rtol=1e-12, atol=1e-13)
        assert torch.equal(state, x[-LONGEST:].movedim(0, -1))
        assert layer.state is None

    @pytest.mark.parametrize("per", PER)
    @pytest.mark.parametrize("training", [True, False])
    def test_single_steps_are_one_call(self, per, training):
        """And reset puts zeros before the next one."""
        layer, single, x = made(per), made(per, step="single"), drawn(T, B, J)
        layer.train(training), single.train(training)
        for _ in range(2):
            out = torch.stack([single(now) for now in x])
            torch.testing.assert_close(out, layer(x), rtol=1e-12, atol=1e-13)
            sc.reset(single)
        assert single.state is None

    def test_every_call_starts_from_zeros(self):
        """A multi-step call leaves nothing behind."""
        layer, x = made(), drawn(T, B, J)
        assert torch.equal(layer(x), layer(x))
        assert layer.state is None

    def test_run_is_pure(self):
        """It neither reads nor writes what is carried, and its state is a copy."""
        layer, x = made(step="single"), drawn(T, B, J)
        layer(x[0])
        before = layer.state["past"].clone()
        out, state = layer.run(x)
        assert torch.equal(out, made()(x))
        assert torch.equal(layer.state["past"], before)
        kept = state["past"].clone()
        x.zero_()
        assert torch.equal(state["past"], kept)

    def test_detach_truncates(self):
        """Values go on, gradients do not; without it the second backward says what is missing."""
        layer = made(step="single")
        x = drawn(2, B, J).requires_grad_()
        layer(x[0])
        sc.detach(layer)
        out = layer(x[1])
        torch.testing.assert_close(out, made()(x)[1], rtol=1e-12, atol=1e-13)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad[0].abs().max() == 0 < grad[1].abs().max()

    def test_state_is_no_part_of_state_dict(self):
        """Which has parameters alone, and sigma, where annealing goes on from."""
        layer = made(step="single")
        layer(drawn(B, J))
        assert list(layer.state_dict()) == ["delay", "sigma", "linear.weight", "linear.bias"]
        assert list(made(learn=()).state_dict()) == ["delay", "linear.weight", "linear.bias"]

    def test_another_batch(self):
        """A carried state that does not fit says reset."""
        layer = made(step="single")
        layer(drawn(B, J))
        with pytest.raises(ValueError, match=r"carried from the last call has past of shape \[2, 3, 3\], wanted is"):
            layer(drawn(5, J))
        sc.reset(layer)
        assert layer(drawn(5, J)).shape == (5, OUT)
