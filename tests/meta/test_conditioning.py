"""Sound backends round otherwise than the oracle: a number that hangs on last digits is judged by how much it does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from plain_loop import Loop, Plain
from spikecore.testing import check_backend, installed
from spikecore.testing.conditioning import Conditioning
from spikecore.testing.edge_table import TABLE
from spikecore.testing.models import BY_NAME

#: Operations that no library rounds correctly.
ROUNDED = {name for name, edge in TABLE.items() if not edge.exact}
#: Calls with a gradient, of thousands, that is a small difference of large terms.
ILL_CONDITIONED = [
    f"generated/{call},given=output:0,cotangents=huge"
    for call in (
        "reset=soft,detach=yes,params=channel,learn=threshold,x=expanded-steps,draw=14",
        "model=gated,shape=2x3x21851,params=channel,learn=threshold,draw=128",
        "model=eif,reset=soft,shape=2x3x21851,params=channel,learn=all,wanted=inputs",
    )
]


class Device(Loop):
    """Every function of :data:`ROUNDED` is off by up to two units in the last place, as on a GPU."""

    def operate(self, node, args):
        value = super().operate(node, args)
        if node.op not in ROUNDED or not value.numel():
            return value
        bits = value.clone().view(torch.int32 if value.dtype == torch.float32 else torch.int64)
        off = ((bits.long() * 2654435761) >> 7) % 5 - 2
        normal = torch.isfinite(value) & (value.abs() > torch.finfo(value.dtype).tiny * 8)
        return (bits + torch.where(normal, off, 0).to(bits.dtype)).view(value.dtype)


class GradientsOff(Device):
    """By a thousandth, of inputs, states and parameters."""

    def backward(self, tensors, record, grads):
        return [None if g is None else g * 1.001 for g in super().backward(tensors, record, grads)]


class ExponentialOff(Device):
    """By a thousandth."""

    def operate(self, node, args):
        value = super().operate(node, args)
        return value * 1.001 if node.op == "exp" else value


def outcome(loop, id):
    """The result of the case on a loop."""
    with installed(type("Like", (Plain,), {"name": "like", "loop": loop})):
        return check_backend("like", cases=[id])[0]


class TestVerdicts:
    """On calls that the tier of another seed may draw."""

    @pytest.mark.parametrize("id", ILL_CONDITIONED)
    def test_a_backend_that_rounds_otherwise_is_sound(self, id):
        """And the reference on this machine."""
        assert outcome(Device, id).outcome == "passed"
        assert {result.outcome for result in check_backend("torch", cases=[id])} == {"passed"}

    @pytest.mark.parametrize("id", ILL_CONDITIONED)
    def test_one_that_is_wrong_by_a_thousandth_is_not(self, id):
        """Well-conditioned numbers of the same call show it."""
        result = outcome(GradientsOff, id)
        assert result.outcome == "failed"
        assert "everything is" in result.message or "differ from the oracle" in result.message

    def test_an_operation_that_is_off_by_a_thousandth_is_found(self):
        """By the same call, too."""
        assert outcome(ExponentialOff, ILL_CONDITIONED[-1]).outcome == "failed"


def measured(reset, x):
    """The conditioning of a run of IF."""
    params = {"threshold": 1.0, "v_reset": 0.0}
    return Conditioning(BY_NAME["if"].twin(reset), [np.asarray(x)], params, None, np.float32)


class TestSpread:
    """Allowed deviations, where a spike hangs on rounding. No case of the suite draws such inputs, but by chance."""

    def test_a_tie_stays_a_tie(self):
        """No copy decides otherwise."""
        of = measured("none", [[0.75], [0.25], [0.25]])
        assert of.seen.outputs[0][1].all()
        assert not of.outputs(0).any()

    def test_where_rounding_decides_about_a_spike_nothing_is_judged(self):
        """From that step on, of that neuron, and none of its gradients."""
        x = np.asarray([[0.5, 0.5], [0.5 - 1e-9, 0.25], [0.1, 0.1]])
        of = measured("hard", x)
        assert np.array_equal(np.isinf(of.outputs(0)), [[False, False], [True, False], [True, False]])
        copies = of.seen.outputs[0].shape[1]
        params = {"threshold": np.ones(copies)}
        g = of.gradients(lambda seen: SimpleNamespace(inputs=[np.ones((3, copies, 2))], state={}, params=params))
        assert np.array_equal(np.isinf(g.inputs[0]).any(axis=0), [True, False])
        assert np.isinf(g.params["threshold"]).all()
