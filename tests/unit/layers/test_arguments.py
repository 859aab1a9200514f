"""What layers and networks are given is checked where they are made, by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore import layers, models

WRONG = [
    (lambda: layers.SEWBlock(0, 4, sc.LIF), ValueError, "SEWBlock: in_channels=0 must be 1 or more"),
    (lambda: layers.SEWBlock(4, 4, sc.LIF, stride=1.5), TypeError, "SEWBlock: stride=1.5 must be a whole number"),
    (lambda: layers.SEWBlock(4, 4, sc.LIF()), TypeError, "SEWBlock: neuron must be a function .* got the module LIF"),
    (lambda: layers.MSBlock(4, -1, sc.LIF), ValueError, "MSBlock: channels=-1 must be 1 or more"),
    (lambda: layers.MSBlock(4, 4, sc.LIF, norm="batch"), TypeError, "MSBlock: norm must be a function .* got 'batch'"),
    (lambda: layers.SpikingSelfAttention(8, 0, sc.LIF), ValueError, "SpikingSelfAttention: heads=0 must be 1 or more"),
    (
        lambda: layers.SpikingSelfAttention(8, 2, sc.LIF, attention_neuron=sc.LIF()),
        TypeError,
        "SpikingSelfAttention: attention_neuron must be a function",
    ),
    (lambda: layers.tdbn(0), ValueError, "tdbn: channels=0 must be 1 or more"),
    (lambda: layers.tdbn(4, threshold="1"), TypeError, "tdbn: threshold must be a number, got '1'"),
    (lambda: layers.tdbn(4, alpha=float("inf")), ValueError, "tdbn: alpha must be above 0, got inf"),
    (lambda: layers.TEBN(4.5, 2), TypeError, "TEBN: channels=4.5 must be a whole number"),
    (lambda: layers.TEBN(4, 2)(None), TypeError, "TEBN: x must be a floating-point tensor, got None"),
    (
        lambda: layers.TEBN(4, 2, dims=1)(torch.ones(2, 3, 4, dtype=torch.int64)),
        TypeError,
        "TEBN: x must be a floating-point tensor",
    ),
    (lambda: layers.TEBN(4, 2, dims=[2]), ValueError, r"TEBN: dims must be 1, 2 or 3, .* got \[2\]"),
    (lambda: layers.SpikingSelfAttention(8, 2, sc.LIF)(None), TypeError, "SpikingSelfAttention: x must be a tensor"),
    (lambda: models.vgg([9]), ValueError, r"vgg: depth must be one of 9, .* got \[9\]"),
    (lambda: models.spikformer(patch=[4]), ValueError, r"spikformer: patch must be one of .* pixels, got \[4\]"),
    (lambda: layers.Voting(2)(None), TypeError, "Voting: x must be a tensor, got NoneType"),
    (
        lambda: models.vgg(size=(3, 32, 32)),
        TypeError,
        r"vgg: size=\(3, 32, 32\) must be a whole number of pixels, or two",
    ),
    (lambda: models.vgg(size=True), TypeError, "vgg: size=True must be a whole number of pixels"),
    (lambda: models.vgg(classes=0), ValueError, "vgg: classes=0 must be 1 or more"),
    (lambda: models.vgg(neuron=sc.LIF()), TypeError, "vgg: neuron must be a function .* got the module LIF"),
    (lambda: models.sew_resnet(classes=-1), ValueError, "sew_resnet: classes=-1 must be 1 or more"),
    (lambda: models.sew_resnet(norm=nn.BatchNorm2d(64)), TypeError, "sew_resnet: norm must be a function"),
    (lambda: models.ms_resnet(in_channels=1.5), TypeError, "ms_resnet: in_channels=1.5 must be a whole number"),
    (lambda: models.spikformer(depth=-1), ValueError, "spikformer: depth=-1 must be 1 or more"),
    (lambda: models.spikformer(heads=0), ValueError, "spikformer: heads=0 must be 1 or more"),
    (lambda: models.spikformer(hidden=True), TypeError, "spikformer: hidden=True must be a whole number"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_a_wrong_argument_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("size", [32, (32, 48), [16, 16]])
def test_sizes_that_a_vgg_takes(size):
    height, width = (size, size) if isinstance(size, int) else size
    net = models.vgg(size=size, steps=1, neuron=sc.IF)
    assert net(torch.rand(1, 3, height, width)).shape == (1, 1, 10)
