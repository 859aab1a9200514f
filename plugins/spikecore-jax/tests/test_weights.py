"""Weights that cross over: every kind of layer computes the same numbers in Flax and in Equinox as in PyTorch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Dict, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore_jax import weights
from spikecore_jax.tensors import x64

#: A layer, and the shape of its input; sizes are odd, and kernels, strides, paddings differ along each dimension.
LAYERS: Dict[str, Tuple[Any, Tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (4, 5)),
    "square linear": (lambda: nn.Linear(4, 4), (3, 4)),
    "conv1": (lambda: nn.Conv1d(3, 5, 4, stride=2, padding=1), (2, 3, 11)),
    "conv2": (lambda: nn.Conv2d(2, 4, (3, 1), padding=(2, 0), bias=False), (2, 2, 7, 5)),
    "conv2 groups": (lambda: nn.Conv2d(4, 6, (2, 3), stride=(1, 2), dilation=(2, 1), groups=2), (3, 4, 7, 9)),
    "conv2 depthwise": (lambda: nn.Conv2d(3, 3, 3, groups=3), (2, 3, 5, 6)),
    "conv3": (lambda: nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 2)), (2, 2, 4, 5, 6)),
    "transposed1": (lambda: nn.ConvTranspose1d(3, 5, 4, stride=3, padding=1, output_padding=2), (2, 3, 5)),
    "transposed2": (
        lambda: nn.ConvTranspose2d(3, 3, (3, 2), stride=(2, 1), padding=(1, 0), output_padding=(1, 0)),
        (2, 3, 5, 4),
    ),
    "transposed2 dilated": (lambda: nn.ConvTranspose2d(2, 4, (2, 3), dilation=(2, 1), bias=False), (2, 2, 5, 4)),
    "transposed2 groups": (lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=2), (2, 4, 3, 4)),
    "transposed3": (lambda: nn.ConvTranspose3d(2, 3, (1, 2, 3), padding=(0, 1, 1)), (2, 2, 3, 4, 5)),
    "embedding": (lambda: nn.Embedding(7, 3), (4, 5)),
    "norm1": (lambda: nn.BatchNorm1d(5), (4, 5)),
    "norm2": (lambda: nn.BatchNorm2d(3, eps=1e-3), (2, 3, 4, 5)),
    "norm3 without affine": (lambda: nn.BatchNorm3d(3, affine=False), (2, 3, 2, 4, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (3, 5)),
    "layer norm without bias": (lambda: nn.LayerNorm(5, bias=False), (3, 5)),
}


def made(name: str) -> Tuple[nn.Module, torch.Tensor]:
    """The layer, with numbers in every entry that are no defaults, in eval mode; an input."""
    torch.manual_seed(0)
    layer, shape = LAYERS[name][0]().eval(), LAYERS[name][1]
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.25)
    return layer, torch.randint(7, shape) if name == "embedding" else torch.randn(shape)


def saved(layer: nn.Module, tmp_path: Path) -> Tuple[Path, nn.Module]:
    """A file of a network with this layer, and the network without its weights."""
    files = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    net = nn.Sequential(nn.Identity(), layer)
    files.save_file(net.state_dict(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors", copy.deepcopy(net).to("meta")


def comes_back(arrays: Any, net: nn.Module, layer: nn.Module, library: str) -> None:
    """The way back gives every entry but the count of batches, to the bit."""
    found = weights.state_dict(arrays, net, {"1": "own"}, library)
    wanted = {f"1.{key}": value for key, value in layer.state_dict().items() if key != "num_batches_tracked"}
    assert {*found} == {*wanted}
    for key, value in wanted.items():
        assert torch.equal(found[key], value)


def in_flax(layer: Any, nnx: Any) -> Tuple[Any, Any]:
    """Flax's layer of the same sizes, and a function that gives its outputs in PyTorch's order of dimensions."""
    rngs, bias = nnx.Rngs(0), getattr(layer, "bias", None) is not None
    if isinstance(layer, nn.Linear):
        return nnx.Linear(layer.in_features, layer.out_features, use_bias=bias, rngs=rngs), lambda m, x: m(x)
    if isinstance(layer, nn.Embedding):
        return nnx.Embed(layer.num_embeddings, layer.embedding_dim, rngs=rngs), lambda m, x: m(x)
    if isinstance(layer, nn.LayerNorm):
        own = nnx.LayerNorm(layer.normalized_shape[0], epsilon=layer.eps, use_bias=bias, rngs=rngs)
        return own, lambda m, x: m(x)

    def last(m: Any, x: Any) -> Any:
        return jnp.moveaxis(m(jnp.moveaxis(x, 1, -1)), -1, 1)

    if isinstance(layer, weights.NORMS):
        affine: Dict[str, Any] = {"use_bias": layer.affine, "use_scale": layer.affine, "use_running_average": True}
        return nnx.BatchNorm(layer.num_features, epsilon=layer.eps, **affine, rngs=rngs), last
    sizes = layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride
    pads = [(p, p) for p in layer.padding]
    if isinstance(layer, weights.CONVOLUTIONS):
        options = {"feature_group_count": layer.groups, "padding": pads, "kernel_dilation": layer.dilation}
        return nnx.Conv(*sizes, use_bias=bias, **options, rngs=rngs), last
    each = zip(layer.kernel_size, layer.padding, layer.output_padding, layer.dilation)
    pads = [(d * (k - 1) - p, d * (k - 1) - p + o) for k, p, o, d in each]
    own = nnx.ConvTranspose(*sizes, use_bias=bias, padding=pads, kernel_dilation=layer.dilation, rngs=rngs)
    return own, last


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "transposed2 groups"])
def test_flax(name: str, tmp_path: Path) -> None:
    """Every array has its place, no place is left, and the outputs are PyTorch's."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    layer, x = made(name)
    own, call = in_flax(layer, nnx)
    path, net = saved(layer, tmp_path)
    arrays = weights.load(path, net, {"1": "own"})
    comes_back(arrays, net, layer, "flax")
    for key, value in arrays.items():
        variable = getattr(own, key.partition(".")[2])
        assert variable.shape == value.shape
        variable[...] = value
    places = [k for k, v in vars(own).items() if isinstance(v, nnx.Variable) and v.get_value() is not None]
    assert {f"own.{k}" for k in places} == {*arrays}
    found = call(own, jnp.asarray(x.numpy()))
    np.testing.assert_allclose(found, layer(x).detach(), rtol=1e-5, atol=1e-5)


def in_equinox(layer: Any, eqx: Any) -> Tuple[Any, Any]:
    """Equinox's layer of the same sizes, and a function that maps it over the batch."""
    key, bias = jax.random.key(0), getattr(layer, "bias", None) is not None
    if isinstance(layer, nn.Linear):
        own = eqx.nn.Linear(layer.in_features, layer.out_features, use_bias=bias, key=key)
    elif isinstance(layer, nn.Embedding):
        own = eqx.nn.Embedding(layer.num_embeddings, layer.embedding_dim, key=key)
        return own, lambda m, x: jax.vmap(jax.vmap(m))(x)
    elif isinstance(layer, nn.LayerNorm):
        own = eqx.nn.LayerNorm(layer.normalized_shape, layer.eps, use_bias=bias)
    else:
        kind = eqx.nn.Conv if isinstance(layer, weights.CONVOLUTIONS) else eqx.nn.ConvTranspose
        options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
        if kind is eqx.nn.ConvTranspose:
            options["output_padding"] = layer.output_padding
        sizes = len(layer.kernel_size), layer.in_channels, layer.out_channels, layer.kernel_size
        own = kind(*sizes, use_bias=bias, **options, key=key)
    return own, lambda m, x: jax.vmap(m)(x)


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith("norm")])
def test_equinox(name: str, tmp_path: Path) -> None:
    """The same in Equinox."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    layer, x = made(name)
    own, call = in_equinox(layer, eqx)
    path, net = saved(layer, tmp_path)
    arrays = weights.load(path, net, {"1": "own"}, "equinox")
    comes_back(arrays, net, layer, "equinox")
    assert len(arrays) == len(jax.tree.leaves(eqx.filter(own, eqx.is_array)))
    for key, value in arrays.items():
        attribute = key.partition(".")[2]
        assert getattr(own, attribute).shape == value.shape
        own = eqx.tree_at(lambda m, a=attribute: getattr(m, a), own, value)
    found = call(own, jnp.asarray(x.numpy()))
    np.testing.assert_allclose(found, layer(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["norm1", "norm2", "norm3 without affine"])
@pytest.mark.parametrize("mode", ["ema", "batch"])
def test_batch_norm_of_equinox(name: str, mode: str, tmp_path: Path) -> None:
    """Its running statistics are set in the state, as the module's documentation says."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    layer, x = made(name)
    options = {"channelwise_affine": layer.affine, "inference": True, "mode": mode}
    own, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(layer.num_features, "batch", layer.eps, **options)
    arrays = weights.load(*saved(layer, tmp_path), {"1": "norm"}, "equinox")
    mean, var = arrays["norm.running_mean"], arrays["norm.running_var"]
    if mode == "ema":
        state = state.set(own.ema_state_index, (mean, var)).set(own.ema_first_time_index, jnp.asarray(False))
    else:
        state = state.set(own.batch_state_index, (mean, var)).set(own.batch_counter, jnp.asarray(10**6))
    if layer.affine:
        own = eqx.tree_at(lambda m: (m.weight, m.bias), own, (arrays["norm.weight"], arrays["norm.bias"]))
    batched = jax.vmap(lambda one: own(one, state)[0], axis_name="batch")
    np.testing.assert_allclose(batched(jnp.asarray(x.numpy())), layer(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_neurons(library: str) -> None:
    """The learnt parameters of a neuron, and nothing else of it."""
    net = nn.Sequential(
        sc.LIF(torch.linspace(1.5, 3.0, 4), threshold=torch.full((4,), 0.9), learn=("threshold",)), sc.LIF(2.0)
    )
    found = weights.converted(net, {"0": "hidden.neuron", "1": "out"}, library)
    key = "hidden.neuron.threshold" if library == "flax" else "hidden.neuron.learnt.threshold"
    assert [*found] == [key]
    assert np.array_equal(found[key], net[0].threshold.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    """Every one that JAX has."""
    layer = nn.Linear(3, 2).to(dtype)
    with x64(True):
        arrays = weights.converted(layer, {"": "own"})
        assert torch.equal(weights.state_dict(arrays, layer, {"": "own"})["weight"], layer.weight)
        found = arrays["own.kernel"]
        assert str(found.dtype) == str(dtype)[6:]
        assert np.array_equal(np.asarray(found, np.float64), layer.weight.detach().double().numpy().T)


class Doubled(nn.Linear):
    """A layer that is no ``nn.Linear``, though its weight has the same dimensions."""

    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


def converted(layer: nn.Module, library: str) -> Any:
    """The arrays of one layer for a library."""
    return weights.converted(nn.Sequential(layer), {"0": "own"}, library)


NET = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


test_refused = refusals.table(__file__, globals(), converted, NET)
