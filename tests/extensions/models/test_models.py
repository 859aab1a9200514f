"""Networks have the numbers of parameters of their papers, begin as theirs, and take what is done to networks."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import MSBlock, SEWBlock

#: A network, and its parameters: docs/benchmarks/guides.md says of each what the paper has.
COUNTS = [
    (functools.partial(sc.models.sew_resnet, 18), 11_689_512),
    (functools.partial(sc.models.sew_resnet, 50), 25_557_032),
    (functools.partial(sc.models.ms_resnet, 18), 11_693_736),
    (sc.models.resnet19, 12_697_994),
    (functools.partial(sc.models.vgg, 9, in_channels=2, size=48), 9_268_746),
    (functools.partial(sc.models.spikformer, 4, 256, heads=8), 4_155_178),
    (sc.models.qkformer, 6_706_234),
    (functools.partial(sc.models.qkformer, (1, 2, 7), heads=6, patch=16, classes=1000), 16_473_688),
    (sc.models.spike_driven_transformer, 16_816_024),
    (sc.models.spiking_unet, 49_841_665),
]
#: Small ones, for images of 16 pixels.
SMALL = {
    "vgg": functools.partial(sc.models.vgg, 9, size=16),
    "sew": functools.partial(sc.models.sew_resnet, 18, classes=10, small=True),
    "ms": functools.partial(sc.models.ms_resnet, 18, classes=10, small=True, zero_init=False),
    "resnet19": functools.partial(sc.models.resnet19, neuron=lambda: sc.LIF(decay_input=False, threshold=0.05)),
    "spikformer": functools.partial(sc.models.spikformer, 2, 32, heads=4),
    "qkformer": functools.partial(sc.models.qkformer, (1, 1, 1), 32, heads=4),
    "spike-driven": functools.partial(sc.models.spike_driven_transformer, 1, 32, patch=4, classes=10),
    "unet": functools.partial(sc.models.spiking_unet, 2, 8, classes=10),
}


def images(size=16, batch=2, steps=None):
    shape = (batch, 3, size, size) if steps is None else (steps, batch, 3, size, size)
    return 3 * torch.rand(shape, generator=torch.Generator().manual_seed(0))


def trained(net):
    """In eval(), with the statistics of a batch."""
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.momentum = None
    with torch.no_grad():
        net(images(batch=4))
    return net.eval()


@pytest.mark.parametrize(("make", "count"), COUNTS, ids=[str(count) for _, count in COUNTS])
def test_parameters(make, count):
    """The number is that of docs/benchmarks/guides.md."""
    assert sum(value.numel() for value in make().parameters()) == count


def test_weights_begin_as_in_the_papers():
    """MS-ResNet: branches at 0, normalisations at the threshold; SEW: He's deviations; Spikformer: linear layers."""
    for block in sc.models.ms_resnet(18).modules():
        if isinstance(block, MSBlock):
            first, last = block.body[1].module[1], block.body[3].module[1]
            assert (first.weight == 0.5).all()
            assert (last.weight == 0).all()
    block = sc.models.resnet19()[5]
    assert [norm.weight[0].item() for norm in block.modules() if isinstance(norm, nn.BatchNorm2d)] == pytest.approx(
        [0.5, 0.5**1.5, 0.5**1.5]
    )
    net = sc.models.sew_resnet(18)
    weight = net[3].body[0].module[0].weight
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    ones = [block.body[2].module[1].weight for block in net.modules() if isinstance(block, SEWBlock)]
    assert all((one == 1).all() for one in ones)
    zeros = sc.models.sew_resnet(18, zero_init=True)
    assert all((b.body[2].module[1].weight == 0).all() for b in zeros.modules() if isinstance(b, SEWBlock))
    read_out = sc.models.spikformer(1, 256, heads=8, classes=100)[-1]
    assert read_out.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert (read_out.bias == 0).all()


@pytest.mark.parametrize("kind", SMALL)
class TestEach:
    def test_images_and_sequences(self, kind):
        """steps=T repeats images; without it the input has time. Every parameter learns."""
        net, timed = SMALL[kind](steps=3), SMALL[kind]()
        timed.load_state_dict(
            {f"{int(k.split('.')[0]) - 1}.{k.split('.', 1)[1]}": v for k, v in net.state_dict().items()}
        )
        y = net(images())
        assert y.shape[:3] == (3, 2, 10)
        torch.testing.assert_close(timed(images().expand(3, 2, 3, 16, 16)), y, atol=1e-4, rtol=1e-4)
        y.square().sum().backward()
        assert all(value.grad is not None and value.grad.isfinite().all() for value in net.parameters())

    def test_with_what_takes_time(self, kind):
        """A neuron that has no ``repeat``, and a normalisation that has factors for each step."""
        for options in ({"neuron": nn.ReLU}, {"norm": functools.partial(sc.layers.TEBN, steps=3)}):
            net, timed = SMALL[kind](steps=3, **options).eval(), SMALL[kind](**options).eval()
            names = {f"{int(k.split('.')[0]) - 1}.{k.split('.', 1)[1]}": v for k, v in net.state_dict().items()}
            timed.load_state_dict(names)
            torch.testing.assert_close(timed(images().expand(3, 2, 3, 16, 16)), net(images()), atol=1e-4, rtol=1e-4)

    def test_streams(self, kind):
        """A stream of single steps gives what all steps give, in eval()."""
        net = trained(SMALL[kind](steps=4)).double()
        with torch.no_grad():
            expected = net(images().double())
            assert expected.std(0).max() > 0
            sc.set_step(net, "single")
            torch.testing.assert_close(torch.stack([net(images().double()) for _ in range(4)]), expected)


def test_what_is_joined_keeps_its_layout():
    """In a U-Net whose images have their channels last, so has the input of each convolution."""
    net = SMALL["unet"](steps=2).to(memory_format=torch.channels_last)
    found = []
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    net(images().contiguous(memory_format=torch.channels_last))
    assert len(found) == 15
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in found)


test_refused = refusals.table(__file__, globals())
