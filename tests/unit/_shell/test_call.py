"""A call like an earlier one goes past the checks that one passed, and a call that is not goes through them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._shell import checks

N = 5


def blocked(monkeypatch):
    """Have every check of a call fail."""

    def refused(*_, **__):
        raise AssertionError("checked again")

    for name in ("inputs", "same_device", "state"):
        monkeypatch.setattr(checks, name, refused)


def calls(make):
    """One way to call a neuron of each kind, as a function that may be called again and again."""
    x, step = torch.rand(3, 4, N), torch.rand(4, N)
    single, carried, plain = make(step="single"), make(), make()
    sc.reset(carried)
    carried._carrying = 1
    return {
        "at rest": lambda: plain(x),
        "single": lambda: single(step),
        "carried": lambda: carried(x),
        "run": lambda: plain.run(x)[0],
        "run from a state": lambda: plain.run(x, state=plain.run(x)[1])[0],
    }


NEURONS = {
    "numbers": lambda **kwargs: sc.LIF(backend="torch", **kwargs),
    "learnt": lambda **kwargs: sc.LIF(learn=("tau", "threshold"), backend="torch", **kwargs),
    "per channel": lambda **kwargs: sc.LIF(torch.linspace(2, 3, N), backend="torch", **kwargs),
    "full": lambda **kwargs: sc.LIF(torch.full((4, N), 2.5), learn=("tau",), backend="torch", **kwargs),
    "two states": lambda **kwargs: sc.ALIF(backend="torch", **kwargs),
}


@pytest.mark.parametrize("neuron", sorted(NEURONS))
@pytest.mark.parametrize("how", ["at rest", "single", "carried", "run", "run from a state"])
class TestRepeated:
    """Every kind of call that can be repeated."""

    def test_goes_past_the_checks(self, how, neuron, monkeypatch):
        """The third call checks nothing again: the first was at rest where it carries, the second was not."""
        call = calls(NEURONS[neuron])[how]
        call(), call()
        blocked(monkeypatch)
        call()

    def test_computes_the_same(self, how, neuron):
        """It gives, to the bit, what a neuron gives that goes through every check."""
        torch.manual_seed(0)
        quick = calls(NEURONS[neuron])[how]
        torch.manual_seed(0)
        slow = calls(NEURONS[neuron])[how]
        owners = [cell.cell_contents for cell in slow.__closure__ if isinstance(cell.cell_contents, nn.Module)]
        for _ in range(4):
            for owner in owners:
                owner._dispatch.noted.clear()
            assert torch.equal(quick(), slow())


class TestChecksThatCanFail:
    """A carried call that is not as the last one was is checked as the first one was."""

    def neuron(self, **kwargs):
        """A single-step neuron that was called three times with [4, N]."""
        lif = sc.LIF(step="single", backend="torch", **kwargs)
        for _ in range(3):
            lif(torch.rand(4, N))
        return lif

    def test_another_batch(self):
        """A changed batch is refused, with the way out."""
        with pytest.raises(
            ValueError, match=r"v of shape \[4, 5\], one time step of the input has \[3, 5\]; call sc.re"
        ):
            self.neuron()(torch.rand(3, N))

    def test_another_device(self):
        """So is another device."""
        with pytest.raises(ValueError, match=r"carried from the last call has v on cpu, the input is on meta"):
            self.neuron()(torch.rand(4, N, device="meta"))

    def test_another_layout(self):
        """A sparse input is refused after a dense one, at rest and carried."""
        for lif in (self.neuron(), sc.LIF(backend="torch")):
            lif(torch.rand(4, N))
            with pytest.raises(TypeError, match="give a dense tensor"):
                lif(torch.rand(4, N).to_sparse())

    def test_another_dtype(self):
        """The state follows the precision of the input, as it does in a neuron that was never called."""
        lif, x = self.neuron(), torch.rand(4, N).double()
        expected = lif.run(x.unsqueeze(0), state=lif.state)[0][0]
        assert torch.equal(lif(x), expected)
        assert lif.state["v"].dtype == torch.float64

    def test_a_state_of_other_names(self):
        """A state given by hand is checked by name."""
        lif, x = sc.LIF(backend="torch"), torch.rand(3, 4, N)
        for _ in range(3):
            _, state = lif.run(x, state=lif.run(x)[1])
        with pytest.raises(ValueError, match=r"state has \['w'\]"):
            lif.run(x, state={"w": state["v"]})

    def test_a_parameter_elsewhere(self):
        """A parameter that was moved alone is refused."""
        lif = self.neuron(learn=("tau",))
        lif._parameters["tau"] = nn.Parameter(torch.tensor(2.0, device="meta"))
        with pytest.raises(ValueError, match="tau is on meta and the input is on cpu"):
            lif(torch.rand(4, N))

    def test_a_parameter_that_no_longer_fits(self):
        """One value per channel is refused where there are other channels."""
        lif = sc.LIF(torch.full((N,), 2.0), backend="torch")
        lif(torch.rand(3, 4, N)), lif(torch.rand(3, 2, N))
        with pytest.raises(ValueError, match="tau has 5 values, which does not fit"):
            lif(torch.rand(3, 4, N + 1))


class TestWhatChangesBetweenCalls:
    """Nothing of an earlier call outlives what it was made of."""

    def test_a_parameter_freezes(self):
        """Without requires_grad no gradient reaches it, and with it one does again."""
        lif, x = sc.LIF(learn=("tau",), backend="torch"), torch.rand(3, 4, N) * 2
        for wanted in (True, False, True, False):
            lif.tau.requires_grad_(wanted)
            lif.tau.grad = None
            out = lif(x)
            assert out.requires_grad is wanted
            if wanted:
                out.sum().backward()
                assert lif.tau.grad is not None

    def test_a_parameter_is_replaced(self):
        """A new parameter, a moved one and a loaded one count at the next call."""
        lif, x = sc.LIF(learn=("tau",), backend="torch"), torch.rand(6, 4, N) * 2
        lif(x), lif(x)
        lif.tau = nn.Parameter(torch.tensor(5.0))
        assert torch.equal(lif(x), sc.LIF(5.0, backend="torch")(x))
        lif.load_state_dict({"tau": torch.tensor(3.0)})
        assert torch.equal(lif(x), sc.LIF(3.0, backend="torch")(x))
        lif.double()
        assert torch.equal(lif(x), sc.LIF(3.0, backend="torch")(x))

    def test_parameters_of_a_functional_call(self):
        """torch.func.functional_call's parameters are those of its call alone."""
        lif, x = sc.LIF(learn=("tau",), backend="torch"), torch.rand(6, 4, N) * 2
        usual = lif(x).detach()
        lif(x)
        out = torch.func.functional_call(lif, {"tau": torch.tensor(7.0)}, (x,))
        assert torch.equal(out, sc.LIF(7.0, backend="torch")(x))
        assert torch.equal(lif(x), usual)

    def test_gradients_are_wanted_later(self):
        """A state that needs a gradient gets one after calls whose states needed none."""
        lif, x = sc.LIF(backend="torch"), torch.rand(3, 4, N)
        state = {"v": torch.rand(4, N)}
        lif.run(x, state=state), lif.run(x, state=state)
        state["v"].requires_grad_()
        out, end = lif.run(x, state=state)
        (out.sum() + end["v"].sum()).backward()
        assert state["v"].grad is not None


class Setting(dict):
    """A state that sets a surrogate while a call reads it, as another thread may."""

    def __init__(self, neuron, surrogate):
        super().__init__(v=torch.zeros(5))
        self.neuron, self.surrogate = neuron, surrogate

    def __getitem__(self, name):
        self.neuron.surrogate = self.surrogate
        return super().__getitem__(name)


@pytest.mark.parametrize("after", [sc.surrogate.Sigmoid(), sc.surrogate.ATan(5.0)], ids=["another", "numbers"])
def test_a_surrogate_set_during_a_call_is_for_the_next_one(after):
    """A call has one definition and its numbers; numbers of one for the program of another were an IndexError."""
    x = torch.rand(3, 5, requires_grad=True)
    plain, changed, other = sc.LIF(backend="torch"), sc.LIF(backend="torch"), sc.LIF(surrogate=after, backend="torch")
    outs = [plain(x), changed.run(x, state=Setting(changed, after))[0], changed(x), other(x)]
    first, during, then, expected = (torch.autograd.grad(out.sum(), x)[0] for out in outs)
    assert torch.equal(first, during)
    assert torch.equal(then, expected)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_number_that_is_set_at_each_step_checks_nothing_again(backend, monkeypatch):
    """A schedule of tau: numbers are arguments of a kernel. A step took 156 us."""
    if backend == "numba":
        pytest.importorskip("spikecore_numba", reason="the plugin is not installed")
    lif, x = sc.LIF(backend=backend), torch.rand(3, 5)
    lif(x)
    expected = [sc.LIF(tau=tau, threshold=tau / 4, backend=backend)(x) for tau in (2.5, 7.0)]
    blocked(monkeypatch)
    for tau, out in zip((2.5, 7.0), expected):
        lif.tau, lif.threshold = tau, tau / 4
        assert torch.equal(lif(x), out)
