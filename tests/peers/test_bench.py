"""What stands for a neuron in the bench is that neuron, as far as the bench says it is."""

import pytest
import torch

import spikecore as sc

pytestmark = pytest.mark.peers


def test_norses_neuron_is_lif_but_for_ties_and_the_surrogate():
    """Norse's LIFBox with a time step of 1 and tau 2 gives LIF's spikes where no potential is at the threshold."""
    pytest.importorskip("norse", reason="norse is built from source, which make test-peers does not do")
    from spikecore.bench._peers import NorseSingle, NorseSteps

    x = 2.0 * torch.rand(40, 4, 16, generator=torch.Generator().manual_seed(0))
    wanted = sc.LIF(2.0, backend="torch")(x)
    assert 0.1 < float(wanted.mean()) < 0.5
    steps, single = NorseSteps(), NorseSingle()
    assert torch.equal(steps(x), wanted)
    assert torch.equal(steps(x), wanted), "a call begins at rest"
    assert torch.equal(torch.stack([single(now) for now in x]), wanted)
    single.reset()
    assert torch.equal(single(x[0]), wanted[0])
    # at the threshold itself LIF fires and LIFBox does not
    tie = torch.full((1, 1), 2.0)
    assert (sc.LIF(2.0, backend="torch")(tie).item(), NorseSteps()(tie).item()) == (1.0, 0.0)
