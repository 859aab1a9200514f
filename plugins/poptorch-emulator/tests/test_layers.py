"""Layers and functions that PopTorch takes and that torch decomposes, each version into other operations."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emulator as poptorch
import refusals
from emulated_nets import Apply
from poptorch_emulator import traced


def x_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Squared(nn.Module):
    """A layer behind a linear one, if ``width`` says how wide, and the sum of the squares of its output as the loss."""

    def __init__(self, layer, width=0):
        super().__init__()
        self.before = nn.Linear(width, width) if width else nn.Identity()
        self.layer = layer

    def forward(self, x, *others):
        out = self.layer(self.before(x), *others)
        out = out[0] if isinstance(out, tuple) else out
        return out, poptorch.identity_loss((out * out).sum(), "none")


WORDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
LAYERS = {
    "LSTM both ways": (lambda: Squared(nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True)), (x_of(5, 2, 4),)),
    "GRU, batch first": (lambda: Squared(nn.GRU(4, 3, 2, bidirectional=True, batch_first=True)), (x_of(5, 2, 4),)),
    "RNN": (lambda: Squared(nn.RNN(4, 3)), (x_of(5, 2, 4),)),
    "RNN relu": (lambda: Squared(nn.RNN(4, 3, nonlinearity="relu")), (x_of(5, 2, 4),)),
    "LSTMCell": (lambda: Squared(nn.LSTMCell(4, 3)), (x_of(2, 4),)),
    "GRUCell": (lambda: Squared(nn.GRUCell(4, 3)), (x_of(2, 4),)),
    "RNNCell": (lambda: Squared(nn.RNNCell(4, 3)), (x_of(2, 4),)),
    "EmbeddingBag": (lambda: Squared(nn.EmbeddingBag(10, 3)), (WORDS,)),
    "EmbeddingBag max": (lambda: Squared(nn.EmbeddingBag(10, 3, mode="max")), (WORDS,)),
    "Bilinear": (lambda: Squared(nn.Bilinear(4, 4, 3), 4), (x_of(2, 4), x_of(2, 4, seed=1))),
    "CosineSimilarity": (lambda: Squared(nn.CosineSimilarity(), 4), (x_of(2, 4), x_of(2, 4, seed=1))),
    "MultiheadAttention": (lambda: Squared(nn.MultiheadAttention(4, 2), 4), (x_of(5, 2, 4),) * 3),
    "TransformerEncoderLayer": (lambda: Squared(nn.TransformerEncoderLayer(4, 2, 8, 0.0)), (x_of(5, 2, 4),)),
    "TransformerDecoderLayer": (lambda: Squared(nn.TransformerDecoderLayer(4, 2, 8, 0.0)), (x_of(5, 2, 4),) * 2),
    "Upsample": (lambda: Squared(nn.Upsample(scale_factor=2, mode="bilinear"), 3), (x_of(2, 1, 3, 3),)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    """Values and gradients are those of torch on the host."""
    build, inputs = LAYERS[name]
    torch.manual_seed(0)
    model = build()
    out, loss = model(*inputs)
    loss.backward()
    expected = [parameter.detach() - parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    torch.testing.assert_close(executor(*inputs), (out.detach(), loss.detach()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close([parameter.detach() for parameter in model.parameters()], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.clamp(x, min=y),
        lambda x, y: x.clamp(y, y + 1),
        lambda x, y: (x + 0).clamp_(min=y),
        lambda x, y: F.scaled_dot_product_attention(x, y, x),
        lambda x, y: F.scaled_dot_product_attention(x, y, x, is_causal=True),
    ],
)
def test_functions(function):
    x, y = x_of(2, 4, 4), x_of(2, 4, 4, seed=1)
    torch.testing.assert_close(traced(function, x, y)(x, y), function(x, y))


def test_bincount():
    """PopTorch takes it with a number of bins; what is above is not counted."""
    x, weights = torch.tensor([0, 2, 2, 5]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    graph = traced(lambda x, w: (torch.bincount(x, minlength=4), torch.bincount(x, w, 4)), x, weights)
    assert [counts.tolist() for counts in graph(x, weights)] == [[1, 0, 2, 0], [1, 0, 5, 0]]


def test_clamp_at_a_bound():
    """PopTorch makes clamp of a maximum, which gives the whole gradient to both of two equal numbers."""
    x, low = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    found = torch.autograd.grad(traced(lambda x, low: x.clamp(min=low), x, low)(x, low).sum(), (x, low))
    assert [gradient.tolist() for gradient in found] == [[1, 1], [1, 1]]


def test_attention_without_a_key():
    """A query that may look at no key gives NaN, as in the torch that PopTorch is for."""
    x, mask = x_of(1, 2, 4), torch.tensor([[True, True], [False, False]])
    graph = traced(lambda x, mask: F.scaled_dot_product_attention(x, x, x, attn_mask=mask), x, mask)
    assert graph(x, mask).isnan().all(-1).tolist() == [[False, True]]


@pytest.mark.parametrize(("in_half", "weights_in_half"), [(True, False), (False, True)])
@pytest.mark.parametrize(("layer", "shape"), [(nn.Linear(4, 3), (2, 4)), (nn.Conv1d(4, 3, 2), (2, 4, 5))])
def test_half_meets_float(in_half, weights_in_half, layer, shape):
    """Computed in float32, and given in the dtype of the input; gradients reach the weights in theirs."""
    x = x_of(*shape).half() if in_half else x_of(*shape)
    expected = layer(x.float()).to(x.dtype)
    layer = copy.deepcopy(layer)
    layer = layer.half() if weights_in_half else layer
    model = Squared(layer)
    before = layer.bias.detach().clone()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    out, _ = executor(x)
    # for a vector torch 2.0 adds the bias in an operation of its own, which makes float32 of half and float32
    torch.testing.assert_close(out, expected.detach(), rtol=1e-2, atol=1e-2, check_dtype=x.dim() > 1)
    assert layer.bias.dtype == before.dtype
    assert not torch.equal(layer.bias.detach(), before)


def test_this_torch_only(monkeypatch):
    """An operation that only this torch makes of a function is not modelled; PopTorch's compiler is not blamed."""
    monkeypatch.setattr("poptorch_emulator._functions._POPTORCHS_TORCH", False)
    with pytest.raises(poptorch.Error, match=r"torch\.pdist on torch .* is not modelled") as caught:
        traced(F.pdist, x_of(3, 4))
    assert "Graphcore" not in str(caught.value)
    monkeypatch.setattr("poptorch_emulator._functions._POPTORCHS_TORCH", True)
    with pytest.raises(poptorch.Error, match=r"Unsupported ops found in compiled model: \[aten::_pdist_forward\]"):
        traced(F.pdist, x_of(3, 4))


def test_distributions(monkeypatch):
    """Their arguments are not checked while a model is compiled: that would read them. Afterwards they are."""
    # torch.compile turns the checks of a process off
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    p = torch.full((100,), 0.5)
    executor = poptorch.inferenceModel(Apply(lambda p: torch.distributions.Bernoulli(probs=p).sample()))
    drawn = executor(p)
    assert drawn.unique().numel() > 1
    assert not torch.equal(drawn, executor(p))
    with pytest.raises(ValueError, match="probs"):
        torch.distributions.Bernoulli(probs=torch.tensor(2.0))


test_refused = refusals.table(__file__, globals())
