"""A stand-in for a neuron in the bench is that neuron, as far as the bench says it is."""

import pytest
import torch

import spikecore as sc
from spikecore_bench import models
from spikecore_bench.adapters import NorseSingle, Steps
from spikecore_bench.equations import verdict_of
from spikecore_bench.machine import version_of
from spikecore_bench.peers import PEERS

pytestmark = pytest.mark.peers


def test_norses_neuron_is_lif_but_for_ties_and_the_surrogate():
    """Norse's LIFBox with a time step of 1 and tau 2 gives LIF's spikes where no potential is at the threshold."""
    x = 2.0 * torch.rand(40, 4, 16, generator=torch.Generator().manual_seed(0))
    wanted = sc.LIF(2.0, backend="torch")(x)
    assert 0.1 < float(wanted.mean()) < 0.5
    steps, single = Steps(NorseSingle()), NorseSingle()
    assert torch.equal(steps(x), wanted)
    assert torch.equal(steps(x), wanted), "a call begins at rest"
    assert torch.equal(torch.stack([single(now) for now in x]), wanted)
    single.reset()
    assert torch.equal(single(x[0]), wanted[0])
    # at the threshold itself LIF fires and LIFBox does not
    tie = torch.full((1, 1), 2.0)
    assert (sc.LIF(2.0, backend="torch")(tie).item(), Steps(NorseSingle())(tie).item()) == (1.0, 0.0)


# torch.compile traces an autograd function of Norse in a way that warns
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("library", [peer for peer in PEERS if peer.in_field], ids=lambda library: library.name)
def test_a_library_computes_the_equation_of_its_row(library):
    """Spikes, and gradients where it has the surrogate, of the layer that the field's suites time."""
    if version_of(library.distribution) is None:
        pytest.skip(f"{library.distribution} is not installed")
    generator = torch.Generator().manual_seed(0)
    x, cotangent = (torch.randn(20, 2, 33, generator=generator) for _ in range(2))
    status, detail = verdict_of(library.in_field, False, library.in_field.set_up(), x.requires_grad_(), cotangent)
    if library.name == "BrainTrace pp_prop":  # its spikes are right, and its gradient approximates
        assert detail.startswith("the gradient of a learnt parameter is off by")
    else:
        assert (status, detail) == ("ok", "") or detail.endswith("checked")


def test_spikformer_ti_has_the_weights_of_spikingjellys():
    """Equally many; queries, keys and values are one matrix there, and only ours has biases before a normalisation."""
    pytest.importorskip("spikingjelly", reason="spikingjelly is not installed")
    ours, theirs = models.spikformer_ti(4, lambda: sc.LIF(2.0)), models.JellySpikformer(4)
    weights = [sum(p.numel() for p in net.parameters() if p.ndim > 1) for net in (ours, theirs)]
    assert weights[0] == weights[1]
