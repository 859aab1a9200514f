"""Small products in the graph of a compiled network: a bias is added behind them."""

from __future__ import annotations

import copy
import subprocess
import sys
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
        pytest.param((10, (3200, 500), (10, 500)), id="short sum"),
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
    monkeypatch.setattr(_products, "precision", lambda: "tf32")
    assert changed(linear, 10, (320, 1000), (10, 1000)) == [aten.addmm.default]


SETTINGS = [
    "torch.set_float32_matmul_precision('high')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    *(["torch.backends.cuda.matmul.fp32_precision = 'tf32'"] if hasattr(torch.backends, "fp32_precision") else []),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_way_to_ask_for_tf32_is_seen(setting: str) -> None:
    """In a process of its own, since torch refuses to be asked in one way for what was set in another."""
    code = f"""
import torch
from torch import nn
from spikecore.training import _graph_passes, _products
made = _graph_passes.compiling_options(nn.Linear(2, 2)).get("joint_custom_pre_pass")
before = _products.precision(), None if made is None else made.uuid()
{setting}
after = _products.precision(), None if made is None else made.uuid()
assert before[0] != after[0] == "tf32", (before, after)
assert made is None or before[1] != after[1]  # a graph of float32 was taken from the disk
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_passes_of_the_user_come_first() -> None:
    """They were replaced, in silence."""
    config = pytest.importorskip("torch._inductor.config")
    if not hasattr(config, "joint_custom_pre_pass"):
        pytest.skip("this torch has no passes over the joint graph")

    class Mine:
        def __init__(self) -> None:
            self.key: Any = b"mine"
            self.graphs: List[Any] = []

        def __call__(self, graph: Any) -> None:
            self.graphs.append(graph)

        def uuid(self) -> Any:
            return self.key

    mine = Mine()
    with config.patch(joint_custom_pre_pass=mine):
        made = _graph_passes.compiling_options(nn.Linear(2, 2))["joint_custom_pre_pass"]
    graph = fx.Graph()
    made(graph)
    assert mine.graphs == [graph]
    assert b"mine" in made.uuid()
    mine.key = None  # nothing is to be kept on disk
    assert made.uuid() is None


def test_checkpointed_products_stay_so() -> None:
    """What is noted of a product is noted of what stands in its place, but for its value."""
    values = [torch.randn(10), torch.randn(320, 1000), torch.randn(10, 1000)]
    module = make_fx(linear, tracing_mode="fake")(*values)
    for node in module.graph.nodes:
        node.meta["recompute"] = node.name
    _products.change(module.graph)
    found = [node for node in module.graph.nodes if node.meta.get("recompute") == "addmm"]
    assert [node.target for node in found] == [
        aten.mm.default,
        aten.unsqueeze.default,
        aten.add.Tensor,
        aten.squeeze.dim,
    ]
    assert [node.meta["val"].shape for node in found] == [(320, 10), (1, 320, 10), (1, 320, 10), (320, 10)]


def test_scaled_sums_are_left_as_they_are() -> None:
    """Their factors belong to the operation."""
    scaled = changed(lambda b, x, w: aten.addmm(b, x, aten.t(w), beta=2.0), 10, (320, 1000), (10, 1000))
    assert scaled == [aten.addmm.default]


@pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_compiling"), reason="this torch is too old to compile neurons"
)
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")  # by torch's compiler itself
def test_a_compiled_network_trains_as_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is met, and gradients are those of the eager network to rounding."""
    from torch._functorch import config as autograd

    rules: List[str] = []
    rule = _products._add_bias_behind
    monkeypatch.setattr(_products, "_add_bias_behind", lambda *args: (rules.append("bias"), rule(*args)))
    torch.manual_seed(0)
    net = nn.Sequential(sc.encode.Constant(4), nn.Linear(300, 513), sc.LI(tau=2.0, backend="torch"), nn.Linear(513, 3))
    plain = copy.deepcopy(net)
    x, labels = torch.rand(65, 300), torch.arange(65) % 3
    for one, compiled in ((net, True), (plain, False)):
        options = sc.TrainingOptions(compile=compiled)
        step = sc.training_model(one, sc.losses.ce_rate, torch.optim.SGD(one.parameters(), 0.1), options=options)
        # what is kept on disk met the rules before
        with torch._inductor.config.patch(fx_graph_cache=False), autograd.patch(enable_autograd_cache=False):
            step(x, labels)
    assert rules == ["bias"]
    for found, expected in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(found.grad, expected.grad)
        assert found.grad is not None
        assert found.grad.stride() == found.stride()
