"""Small products in the graph of a compiled network: a bias is added behind, gradients of few rows are transposed."""

from __future__ import annotations

import copy
from typing import Any, Callable, List

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import spikecore as sc
from spikecore.training import _graph_passes, _products

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_products, "_DEVICE", "cpu")


def changed(function: Callable[..., Any], *sizes: Any, dtype: torch.dtype = torch.float32) -> List[Any]:
    """The products of a function after the pass, and what it computes then beside what it computed."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    module: fx.GraphModule = make_fx(function, tracing_mode="fake")(*values)
    expected = function(*values)
    _products.change(module.graph)
    module.graph.lint()
    module.recompile()
    for node in module.graph.nodes:
        if node.op == "call_function":
            assert node.meta["val"].dtype == dtype
    found = module(*values)
    # sums of thousands of numbers, in another order
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
    assert found.stride() == expected.stride()
    return [node.target for node in module.graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]


def linear(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """As torch traces it."""
    return aten.addmm(bias, x, aten.t(weight))


def test_a_bias_is_added_behind_a_small_product() -> None:
    """And numbers are the same to rounding."""
    assert changed(linear, 10, (3200, 1000), (10, 1000)) == [aten.mm.default]


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((10, (3200, 128), (10, 128)), id="short sum"),
        pytest.param((512, (1024, 256), (512, 256)), id="large result"),
        pytest.param((1, (64, 256), (8, 256)), id="one bias for all"),
    ],
)
def test_other_products_keep_their_bias(sizes: Any) -> None:
    """Where nothing is won."""
    assert changed(linear, *sizes) == [aten.addmm.default]


def test_half_types_and_tf32_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a bias costs nothing."""
    assert changed(linear, 10, (320, 1000), (10, 1000), dtype=torch.bfloat16) == [aten.addmm.default]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert changed(linear, 10, (320, 1000), (10, 1000)) == [aten.addmm.default]


def test_graphs_that_are_kept_on_disk_are_those_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TF32 the graph of float32 was taken from the disk."""
    changes = _graph_passes.compiling_options(nn.Linear(2, 2)).get("joint_custom_pre_pass")
    if changes is None:
        pytest.skip("this torch has no passes over the joint graph")
    before = changes.uuid()
    assert changes.uuid() == before
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert changes.uuid() != before


def test_scaled_sums_are_left_as_they_are() -> None:
    """Their factors belong to the operation."""
    scaled = changed(lambda b, x, w: aten.addmm(b, x, aten.t(w), beta=2.0), 10, (320, 1000), (10, 1000))
    assert scaled == [aten.addmm.default]


def sides(function: Callable[..., Any], *sizes: Any) -> Any:
    """The rows and columns of the products after the pass."""
    values = [torch.randn(size) for size in sizes]
    module = make_fx(function, tracing_mode="fake")(*values)
    _products.change(module.graph)
    module.recompile()
    torch.testing.assert_close(module(*values), function(*values), rtol=1e-3, atol=2e-3)
    return [tuple(node.meta["val"].shape) for node in module.graph.nodes if node.target is aten.mm.default]


def test_a_gradient_of_few_rows_is_computed_transposed() -> None:
    """It comes back as contiguous as the weight."""

    def gradient(cotangent: Tensor, x: Tensor) -> Tensor:
        return aten.t(aten.t(aten.mm(aten.t(cotangent), x)))

    assert sides(gradient, (3200, 10), (3200, 1000)) == [(1000, 10)]
    assert changed(gradient, (3200, 10), (3200, 1000)) == [aten.mm.default]
    assert sides(gradient, (3200, 100), (3200, 10)) == [(100, 10)]


def test_a_product_that_something_else_reads_is_not_transposed() -> None:
    """The next kernel would read it across its memory."""
    assert sides(lambda x, w: torch.relu(aten.mm(x, w)), (10, 784), (784, 1000)) == [(10, 1000)]


@pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_compiling"), reason="this torch is too old to compile neurons"
)
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
def test_a_compiled_network_trains_as_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rules are met, and gradients are those of the eager network to rounding."""
    from torch._functorch import config as autograd

    rules: List[str] = []
    for name in ("_add_bias_behind", "_transpose"):
        rule = getattr(_products, name)
        monkeypatch.setattr(_products, name, lambda *args, rule=rule, name=name: (rules.append(name), rule(*args)))
    torch.manual_seed(0)
    net = nn.Sequential(sc.encode.Constant(4), nn.Linear(300, 301), sc.LI(tau=2.0, backend="torch"), nn.Linear(301, 3))
    plain = copy.deepcopy(net)
    x, labels = torch.rand(65, 300), torch.arange(65) % 3
    for one, compiled in ((net, True), (plain, False)):
        options = sc.TrainingOptions(compile=compiled)
        step = sc.training_model(one, sc.losses.ce_rate, torch.optim.SGD(one.parameters(), 0.1), options=options)
        # what is kept on disk met the rules before
        with torch._inductor.config.patch(fx_graph_cache=False), autograd.patch(enable_autograd_cache=False):
            step(x, labels)
    assert set(rules) == {"_add_bias_behind", "_transpose"}
    for found, expected in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(found.grad, expected.grad)
        assert found.grad is not None
        assert found.grad.stride() == found.stride()
