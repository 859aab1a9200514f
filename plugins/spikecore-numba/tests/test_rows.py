"""Linear layers that add rows of the weight for what fired: values, gradients, the order of sums, and when."""

from __future__ import annotations

import copy
import re
from typing import Any, Iterator, List

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from spikecore.layers import PackedLinear, TimeBatched

#: Largest difference from float64, as a part of the largest number.
CLOSE = {torch.float64: 1e-15, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The rule depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spikes(*shape: int, rate: float = 0.05, largest: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    fires = torch.rand(shape, generator=generator) < rate
    return fires * torch.randint(1, largest + 1, shape, generator=generator).float()


def layer(inputs: int, outputs: int, **options: Any) -> PackedLinear:
    """A layer as ``sc.layers.pack`` leaves it."""
    torch.manual_seed(0)
    made = PackedLinear(inputs, outputs, **options)
    sc.layers.pack(nn.Sequential(made))
    return made


def check_close(found: Any, expected: Tensor) -> None:
    most = CLOSE[found.dtype] * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=most)


def takes_rows(linear: nn.Module, x: Tensor) -> bool:
    """True if a call skips the weights of an input that never fires: a dense product has NaN of an infinite one."""
    x = x.clone()
    x[..., 0] = 0
    marked = copy.deepcopy(linear)
    marked.weight.data[:, 0] = torch.inf
    y = marked(x)
    return bool(y.isfinite().all())


# -- values and gradients


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("drawn", range(4))
def test_values_and_gradients_are_those_of_dense_layers(drawn: int, dtype: torch.dtype) -> None:
    """Of drawn shapes, rates, and largest counts, beside float64."""
    draw = torch.Generator().manual_seed(drawn)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    inputs, outputs, shape = whole(1, 200), whole(1, 90), [whole(1, 40) for _ in range(whole(0, 3))]
    largest, bias = whole(1, 5), drawn % 2 == 0
    x = spikes(*shape, inputs, rate=0.3 * drawn / 3, largest=largest, seed=drawn).to(dtype).requires_grad_()
    mine = layer(inputs, outputs, bias=bias, largest=largest, in_order=True).to(dtype)
    plain = nn.Linear(inputs, outputs, bias=bias).double()
    plain.load_state_dict(mine.state_dict())
    exact = x.detach().double().requires_grad_()
    y, expected = mine(x), plain(exact)
    check_close(y, expected)
    grad = torch.cos(torch.arange(y.numel())).view(y.shape).to(dtype)
    y.backward(grad)
    expected.backward(grad.double())
    check_close(x.grad, exact.grad)
    for one, other in zip(mine.parameters(), plain.parameters()):
        check_close(one.grad, other.grad)
    with torch.no_grad():
        assert torch.equal(mine(x), y)


def test_sums_are_in_the_order_of_the_inputs() -> None:
    """The bits of a loop over the inputs, from the bias on."""
    mine, x = layer(300, 40, in_order=True, largest=3), spikes(70, 300, rate=0.2, largest=3)
    expected = mine.bias.detach().expand(70, 40).clone()
    for i in range(300):
        expected += x[:, i : i + 1] * mine.weight.detach()[:, i]
    with torch.no_grad():
        assert torch.equal(mine(x), expected)


@pytest.mark.parametrize("largest", [1, 3])
def test_a_network_by_rows_has_the_gradients_of_the_dense_one(largest: int) -> None:
    """In float64, where its neurons fire alike; gradients behind a surrogate of compact support, too."""
    torch.manual_seed(0)

    def neuron() -> sc.Neuron:
        if largest > 1:
            return sc.ILIF(levels=largest, backend="torch")
        return sc.LIF(surrogate=sc.surrogate.Rectangular(20.0), detach_reset=True, backend="torch")

    plain = nn.Sequential(nn.Linear(64, 256), neuron(), nn.Linear(256, 256), neuron(), nn.Linear(256, 128)).double()
    x = torch.rand(20, 30, 64, dtype=torch.float64)
    net = sc.layers.pack(copy.deepcopy(plain))
    assert [type(part) for part in net[2::2]] == [PackedLinear, PackedLinear]
    assert takes_rows(net[2], plain[:2](x).detach())
    for one in (net, plain):
        one(x).square().sum().backward()
    for mine, its in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grad", [True, False])
def test_layouts_of_inputs_change_no_bit_in_order(grad: bool) -> None:
    """A transposed input, and a part of a wider one."""
    mine, x = layer(300, 40, in_order=True), spikes(6, 70, 300, rate=0.2)
    wide = torch.cat((x, x), -1)
    with torch.set_grad_enabled(grad):
        expected = mine(x)
        assert torch.equal(mine(wide[..., :300]), expected)
        assert torch.equal(mine(x[0].t().contiguous().t()), expected[0])


# -- single steps and sequences


def check_stream(net: nn.Module, x: Tensor) -> None:
    """Every step by itself has the bits of the sequence, for one sample, some, and all."""
    with torch.no_grad():
        expected = net(x)
        for chosen in (slice(0, 1), slice(1, 4), slice(None)):
            with sc.carry_state(net):
                steps = [net(x[t : t + 1, chosen]) for t in range(len(x))]
            assert torch.equal(torch.cat(steps), expected[:, chosen])


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_streams_have_the_bits_of_sequences(rate: float) -> None:
    """With ``in_order``, at any rate, also where a sequence has several blocks."""
    torch.manual_seed(0)
    net = nn.Sequential(
        PackedLinear(700, 256), sc.LIF(threshold=0.05), nn.Linear(256, 256), sc.LIF(threshold=0.05), nn.Linear(256, 20)
    )
    sc.layers.pack(net, in_order=True)
    check_stream(net, spikes(60, 11, 700, rate=rate))


def test_calls_that_add_rows_do_not_depend_on_the_batch() -> None:
    """By the rule, where it takes rows for a step and for a sequence."""
    net, x = nn.Sequential(layer(1024, 512), sc.LIF()), spikes(40, 16, 1024, rate=0.04)
    with torch.no_grad():
        assert takes_rows(net[0], x)
        assert takes_rows(net[0], x[0])
    check_stream(net, x)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    """Forward, and the gradients."""
    results: List[List[Tensor]] = []
    for count in (1, threads):
        torch.set_num_threads(count)
        mine, x = layer(500, 400, in_order=True), spikes(900, 500, rate=0.1).requires_grad_()
        y = mine(x)
        y.backward(spikes(900, 400, rate=0.1, seed=1))
        results.append([y.detach(), x.grad, mine.weight.grad])  # type: ignore[list-item]  # there is one
    assert all(map(torch.equal, *results))


# -- when rows are added


@pytest.mark.parametrize(
    ("rows", "rate", "training", "alone"), [(1, 0.05, False, True), (64, 0.05, True, True), (64, 0.9, False, False)]
)
def test_the_rule_looks_at_the_rate(rows: int, rate: float, training: bool, alone: bool) -> None:
    """With gradients, where rows have to pay for the bits that are kept, and without."""
    linear, x = layer(1024, 1024), spikes(rows, 1024, rate=rate)
    assert takes_rows(linear, x) is training
    with torch.no_grad():
        assert takes_rows(linear, x) is alone


@pytest.mark.parametrize(
    ("rows", "rate", "whole"), [(4, 0.05, True), (1000, 0.05, False), (1000, 0.9, True), (2000, 0.9, False)]
)
def test_small_inputs_of_dense_products_are_kept_whole(rows: int, rate: float, whole: bool) -> None:
    """Up to 4 MiB, with torch's gradients; where rows are added, and of larger inputs, bits are kept. What is kept
    whole may be other numbers.
    """
    linear, x = layer(1024, 512), spikes(rows, 1024, rate=rate).requires_grad_()
    saved: List[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: saved.append(value) or value, lambda value: value):
        y = linear(x)
    assert any(value.numel() == x.numel() and value.dtype == x.dtype for value in saved) is whole
    plain = nn.Linear(1024, 512)
    plain.load_state_dict(linear.state_dict())
    inputs, own = ([each, *net.parameters()] for each, net in ((x, linear), (x, plain)))
    found = torch.autograd.grad(y.square().sum(), inputs)
    for mine, its in zip(found, torch.autograd.grad(plain(x).square().sum(), own)):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-3)
    if whole:
        assert linear(x * 0.3).requires_grad
    else:
        with pytest.raises(ValueError, match="is not what its layer was said to get"):
            linear(x * 0.3)


@pytest.mark.parametrize(("rate", "expected"), [(0.05, True), (0.9, False)])
def test_gradients_add_rows_by_rates_of_their_own(rate: float, expected: bool) -> None:
    """Gradient of the weight by the rate of the spikes, and of the input by the rate of the cotangents."""
    linear, x, grad = layer(512, 512), spikes(2048, 512, rate=rate), spikes(2048, 512, rate=rate, seed=1)
    x[0], grad[0] = 0, torch.inf
    linear(x).backward(grad)
    assert bool(linear.weight.grad.isfinite().all()) is expected  # type: ignore[union-attr]  # there is one
    grad[0], grad[:, 0] = 0, 0
    linear.weight.data[0] = torch.inf
    x.requires_grad_()
    linear(x).backward(grad)
    assert bool(x.grad.isfinite().all()) is expected  # type: ignore[union-attr]  # there is one


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows", "dtype"),
    [(16, 16, 4, torch.float32), (1024, 1024, 16, torch.float16), (1024, 20, 4096, torch.float32)],
)
def test_the_rule_leaves_what_it_would_slow_down(inputs: int, outputs: int, rows: int, dtype: torch.dtype) -> None:
    """Small layers, a dtype without an estimate, and few outputs."""
    linear, x = layer(inputs, outputs).to(dtype), spikes(rows, inputs, rate=0.01).to(dtype)
    assert not takes_rows(linear, x)


def test_empty_batches_have_empty_outputs() -> None:
    """With and without gradients, in order, too."""
    for linear in (layer(512, 512), layer(512, 512, in_order=True)):
        assert linear(torch.empty(0, 512)).shape == (0, 512)
        with torch.no_grad():
            assert linear(torch.empty(3, 0, 512)).shape == (3, 0, 512)


def test_one_dense_block_of_many_gives_a_dense_product() -> None:
    """With all values right."""
    linear, x = layer(512, 512), spikes(1024, 512, rate=0.02)
    x[512:700] = 1
    assert not takes_rows(linear, x)
    with torch.no_grad():
        check_close(linear(x), x.double() @ linear.weight.double().t() + linear.bias.double())


def test_what_traces_a_call_sees_a_dense_product() -> None:
    """torch.func, torch.compile and autocast without gradients, beside the call by rows."""
    linear, x = layer(512, 512), spikes(16, 512)
    parameters = dict(linear.named_parameters())
    with torch.no_grad():
        expected = linear(x)
        torch._dynamo.reset()
        compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
        mapped = torch.func.vmap(lambda one: torch.func.functional_call(linear, parameters, (one,)))
        for found in (compiled(x), mapped(x)):
            torch.testing.assert_close(found, expected)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(linear(x).float(), expected, rtol=0.02, atol=0.02)


# -- in networks


@pytest.mark.parametrize(("rate", "grad", "advised"), [(0.02, True, True), (0.02, False, True), (0.3, True, False)])
def test_explain_advises_to_pack(rate: float, grad: bool, advised: bool) -> None:
    """Where linear layers behind neurons have few spikes and sizes for which rows are added; not once packed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 512), sc.LIF(threshold=1.0), nn.Linear(512, 512), sc.LI(), nn.Linear(512, 8))
    net.requires_grad_(grad)
    x = torch.randn(60, 32, 4)
    sc.functional.calibrate(net, x, rate=rate)
    sentence = r"2 \(Linear\) gets spikes in [12]\.\d % of the inputs: behind sc.layers.pack\(net\) it adds up"
    found = [text for text in sc.explain(net, x).advice if re.match(sentence, text)]
    assert len(found) == advised
    assert not any("pack(net)" in text for text in sc.explain(sc.layers.pack(net), x).advice)


def test_pack_lays_weights_by_input_and_unpack_as_they_were() -> None:
    """The optimiser goes on with the same parameters, a copy and a saved state have them, and a hook still runs."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 256), sc.LIF(threshold=0.2), TimeBatched(nn.Linear(256, 256)))
    net, calls = copy.deepcopy(plain), []
    weight = net[2].module.weight
    steps = [torch.optim.Adam(one.parameters(), 1e-2) for one in (plain, net)]
    sc.layers.pack(net)
    net[2].module.register_forward_hook(lambda module, args, out: calls.append(out.shape))
    assert net[2].module.weight is weight
    assert weight.stride() == (1, 256)
    assert copy.deepcopy(net)[2].module.weight.stride() == (1, 256)
    x = torch.rand(30, 8, 20)
    for one, step in zip((plain, net), steps):
        for _ in range(2):
            step.zero_grad()
            one(x).square().mean().backward()
            step.step()
    assert weight.grad.stride() == (1, 256)  # type: ignore[union-attr]  # there is one
    assert calls == [torch.Size([240, 256])] * 2
    for mine, its in zip(net.state_dict().values(), plain.state_dict().values()):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-5)
    sc.layers.unpack(net)
    assert net[2].module.weight is weight
    assert weight.is_contiguous()
    assert type(net[2].module) is nn.Linear


test_refused = refusals.table(__file__, globals(), torch.compile)
