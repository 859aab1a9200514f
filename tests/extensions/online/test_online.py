"""The online step: its calls, what it holds and lets go, what it saves, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any, Iterator, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import refusals
import spikecore as sc
from graphed import without_a_gpu
from online_rules import check_one_chunk_is_held, read_out_of_lif

T, B, N, K = 12, 3, 5, 4


def network() -> nn.Sequential:
    """Two layers, one of them recurrent, with a learnt time constant, and a read-out."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(N, N),
        sc.Recurrent(sc.LIF(2.0, learn=("tau",)), nn.Linear(N, N), detach=True),
        nn.Linear(N, N),
        sc.ALIF(3.0, threshold=0.05),
        nn.Linear(N, K),
        sc.LI(2.0),
    )


def batch(seed: int = 0, size: int = B) -> Tuple[Tensor, Tensor]:
    """Spikes times four, and what the read-out is to be."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(T, size, N, generator=generator) < 0.5).float() * 4
    return x, torch.randn(T, size, K, generator=generator)


def squares(y: Tensor, targets: Tensor) -> Tensor:
    """A sum over steps."""
    return (y - targets).square().sum()


def step_of(net: nn.Module, loss: Any = squares, lr: float = 1e-2, **options: Any) -> Any:
    """A step with momentum, which the optimiser's state is."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    given = {"rule": "d_rtrl", "chunk": 1, "time_targets": True, **options}
    return sc.training_model(net, loss, optimizer, options=sc.OnlineOptions(**given))


def weights(net: nn.Module) -> List[Tensor]:
    """Copies of the parameters."""
    return [p.detach().clone() for p in net.parameters()]


def near(a: Any, b: Any) -> bool:
    """The same to rounding: products of torch depend on where their factors lie in memory."""
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(a, b))


def same(a: Any, b: Any) -> bool:
    """The same bits."""
    return all(torch.equal(x, y) for x, y in zip(a, b))


RULES = pytest.mark.parametrize("rule", ["d_rtrl", "eprop", "pp_prop", "ottt", "sltt", "bptt"])

# -- calls


@RULES
@pytest.mark.parametrize("update", ["sequence", "chunk"])
def test_a_sequence_chunks_and_single_steps_are_one_training(rule: str, update: str) -> None:
    """A tensor, an iterator of chunks, and steps that are fed one by one leave the same weights and give the same."""
    x, targets = batch()
    results = []
    for form in ("tensor", "iterator", "feed"):
        net = network()
        step = step_of(net, rule=rule, update=update)
        for _ in range(2):
            if form == "tensor":
                outputs, loss = step(x, targets)
            elif form == "iterator":
                outputs, loss = step(iter(x.split(1)), iter(targets.split(1)))
            else:
                given = [step.feed(x_t, y_t) for x_t, y_t in zip(x, targets)]
                outputs, loss = torch.stack([out for out, _ in given]), sum(part for _, part in given)
                if update == "sequence":
                    step.update()
                sc.reset(net)
            assert not loss.requires_grad
        results.append((weights(net), loss, outputs))
    (want, total, everything), (others, total_of_others, last), (fed, total_of_fed, stacked) = results
    assert same(want, others)
    assert same(want, fed)
    assert total == total_of_others == total_of_fed
    assert torch.equal(everything, stacked)
    assert torch.equal(everything[-1:], last)


def test_without_time_targets_each_chunk_gets_the_targets_whole() -> None:
    """Labels of a sequence count once for each chunk."""
    net, (x, _) = network(), batch()
    labels, seen = torch.arange(B), []

    def loss(y: Tensor, targets: Tensor) -> Tensor:
        seen.append((len(y), targets.tolist()))
        return nn.functional.cross_entropy(y.sum(0), targets)

    step_of(net, loss, chunk=5, time_targets=False)(x, labels)
    assert seen == [(5, [0, 1, 2]), (5, [0, 1, 2]), (2, [0, 1, 2])]


def test_a_step_leaves_the_network_as_any_step_does() -> None:
    """At rest, without traces, hooks or states, with gradients; a call of it is backpropagated as before."""
    net, (x, targets) = network(), batch()
    before = copy.deepcopy(net)
    step = step_of(net, lr=0.0)
    step(x, targets)
    assert step.traces == {}
    assert all(
        module.state is None and not module.carrying for module in net if isinstance(module, (sc.Neuron, sc.Recurrent))
    )
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    for network_ in (net, before):
        network_.zero_grad()
        squares(network_(x), targets).backward()
    assert same([p.grad for p in net.parameters()], [p.grad for p in before.parameters()])


def test_a_chunk_that_fails_changes_no_state() -> None:
    """A loss that raises in the third step: the stream goes on as if that step had not been tried."""
    x, targets = batch()
    nets = [network() for _ in range(2)]
    steps = [step_of(net) for net in nets]
    for t in range(4):
        for k, step in enumerate(steps):
            if (k, t) == (1, 2):
                with pytest.raises(RuntimeError, match="size of tensor"):
                    step.feed(x[t], targets[t, :, :2])
            step.feed(x[t], targets[t])
    assert same([p.grad for p in nets[0].parameters()], [p.grad for p in nets[1].parameters()])


def test_within_carry_state_a_call_goes_on_from_the_one_before() -> None:
    """Two calls on halves give the updates of a stream, and leave no state behind the block."""
    x, targets = batch()
    one, other = network(), network()
    step_of(one, update="chunk", chunk=3)(x, targets)
    step = step_of(other, update="chunk", chunk=3)
    with sc.carry_state(other):
        for part in (slice(0, 6), slice(6, T)):
            step(x[part], targets[part])
        assert step.traces
    assert same(weights(one), weights(other))
    step(x, targets)
    assert step.traces == {}


def test_reset_clears_states_and_traces_and_the_batch_may_change() -> None:
    """Of the network or of the step; without it another batch is refused, as of any stream."""
    net = network()
    step = step_of(net, lr=0.0)
    fresh = network()
    expected = step_of(fresh, lr=0.0)
    for reset in (lambda: sc.reset(net), step.reset):
        x, targets = batch(1)
        for t in range(4):
            step.feed(x[t], targets[t])
        assert step.traces
        x, targets = batch(2, size=B + 2)
        with pytest.raises(ValueError, match=r"sc\.reset"):
            step.feed(x[0], targets[0])
        reset()
        step.update()
        sc.reset(fresh)
        expected.update()
        for t in range(4):
            step.feed(x[t], targets[t])
            expected.feed(x[t], targets[t])
        assert same([p.grad for p in net.parameters()], [p.grad for p in fresh.parameters()])
        step.reset()


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "ottt", "stdp"])
def test_traces_end_with_a_reset_whatever_a_neuron_is_called(rule: str) -> None:
    """Names with a slash, one of which begins as another ends: a second sequence learns as the first one."""
    net: Any = nn.Sequential()
    for name, part in (
        ("a", nn.Linear(N, N)),
        ("a/layer", sc.LIF(2.0)),
        ("b", nn.Linear(N, N)),
        ("a/layer/b", sc.LIF()),
    ):
        net.add_module(name, part)
    step = step_of(net, lr=0.0, rule=rule, update="chunk")
    results = []
    for size in (B, B, B + 1):
        x, targets = torch.ones(4, size, N), torch.ones(4, size, N)
        for t in range(4):
            step.feed(x[t], targets[t])
        results.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
        sc.reset(net)
    assert len(results[0]) == (2 if rule == "stdp" else 4)
    assert all(torch.allclose(a, b) for a, b in zip(*results[:2]))


# -- what is held


@RULES
def test_a_step_holds_no_more_than_a_chunk(rule: str) -> None:
    """Of a stream."""
    check_one_chunk_is_held(read_out_of_lif(), rule=rule)


@RULES
def test_what_earlier_chunks_read_may_be_overwritten(rule: str) -> None:
    """One buffer for all chunks of a stream gives the gradients of a tensor for each."""
    x, targets = batch()
    net = network()
    step_of(net, rule=rule, chunk=3, lr=0.0)(x, targets)
    want = [p.grad.clone() for p in net.parameters()]
    buffer = torch.empty(3, B, N)

    def chunks() -> Iterator[Tensor]:
        for part in x.split(3):
            yield buffer.copy_(part)

    step_of(net, rule=rule, lr=0.0)(chunks(), iter(targets.split(3)))
    assert near([p.grad for p in net.parameters()], want)


@RULES
def test_traces_have_the_same_size_at_every_step(rule: str) -> None:
    """After one step and after all."""
    net, (x, targets) = network(), batch()
    step = step_of(net, rule=rule)
    sizes = []
    for t in range(T):
        step.feed(x[t], targets[t])
        sizes.append({name: tuple(value.shape) for name, value in step.traces.items()})
        assert not any(value.requires_grad for value in step.traces.values())
    assert all(size == sizes[1] for size in sizes[2:])


@RULES
def test_gradients_are_clipped(rule: str) -> None:
    """To the norm that was given; what is not finite raises, and changes no weight."""
    net, (x, targets) = network(), batch()
    step = step_of(net, rule=rule, clip_norm=0.5)
    step(x, targets)
    norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(0.5, rel=1e-3)
    before = weights(net)
    with pytest.raises(FloatingPointError, match="the target has 12 NaN"):
        step(x, targets * float("nan"))
    assert same(before, weights(net))


# -- feedback


def test_without_feedback_the_last_layer_alone_learns() -> None:
    """It learns as it does with feedback."""
    net, (x, targets) = network(), batch()
    step_of(net, lr=0.0)(x, targets)
    want = [p.grad.clone() for p in net[4].parameters()]
    step_of(net, lr=0.0, feedback="none")(x, targets)
    assert [p.grad is None for p in net.parameters()] == [True] * 7 + [False] * 2
    assert same([p.grad for p in net[4].parameters()], want)


def test_random_feedback_is_drawn_once_from_its_generator() -> None:
    """The same seed trains the same; another one another way; none of it is that of the network's own weights."""
    x, targets = batch()
    results = []
    for seed in (1, 1, 2):
        net = network()
        step = step_of(net, feedback="random", generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            step(x, targets)
        results.append(weights(net))
    assert same(results[0], results[1])
    assert not torch.equal(results[0][0], results[2][0])


# -- graphs


@pytest.mark.parametrize("rule", ["d_rtrl", "eprop", "pp_prop", "ottt", "sltt"])
@pytest.mark.parametrize("update", ["sequence", "chunk"])
def test_a_captured_stream_trains_as_an_eager_one(rule: str, update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences, a short chunk at their end, another batch, and steps that are fed; a stand-in runs the work again."""
    capture = without_a_gpu(monkeypatch)
    results = []
    for graph in (False, True):
        net = network()
        step = step_of(net, rule=rule, update=update, chunk=5, graph=graph)
        seen = []
        for k, size in enumerate((B, B, B + 2, B)):
            x, targets = batch(k, size)
            seen += step(x, targets)
            seen += [value for x_t, y_t in zip(x, targets) for value in step.feed(x_t, y_t)]
            step.update()
            step.reset()
        results.append((weights(net), seen))
    assert near(*[kept for kept, _ in results])
    assert near(*[seen for _, seen in results])
    assert capture().replayed > 10


# -- saving


@RULES
@pytest.mark.parametrize("update", ["sequence", "chunk"])
def test_a_stream_that_was_saved_goes_on(rule: str, update: str, tmp_path: Any) -> None:
    """States, traces, random feedback, gradients that wait and the optimiser: bit for bit, through a file."""
    x, targets = batch()
    options: Any = {"rule": rule, "update": update, "feedback": "exact" if rule == "bptt" else "random"}
    net = network()
    step = step_of(net, **options)
    for t in range(T // 2):
        step.feed(x[t], targets[t])
    sc.save_checkpoint(tmp_path / "run.pt", {}, step=step.state_dict())
    other = network()
    again = step_of(other, **options)
    again.load_state_dict(sc.load_checkpoint(tmp_path / "run.pt", {})["step"])
    for t in range(T // 2, T):
        assert same(*[s.feed(x[t], targets[t]) for s in (step, again)])
    for each in (step, again):
        each.update()
    assert same(weights(net), weights(other))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: state.pop("online"), "state has no 'online'"),
        (lambda state: state["online"].pop("traces"), r"state\['online'\] has no 'traces'. Nothing was loaded"),
        (lambda state: state["online"]["states"].update({"9": {}}), "has '9', which the network lacks"),
        (lambda state: state["online"].update(rule="pp_prop"), "is of rule='pp_prop', and this step has rule='d_rtrl'"),
        *[
            (lambda state, part=part, value=value: state["online"].update({part: value}), text)
            for part in ("states", "traces", "feedback", "gradients")
            for value, text in (
                (None, f"has a NoneType for '{part}', and no dict"),
                ([], f"has a list for '{part}', and no dict"),
                ({"1": 3.0}, f"has '1', which the network lacks or which does not fit it, in '{part}'"),
                ({"1": {"v": 3.0}}, f"has '1', which .* in '{part}'"),
            )
        ],
        *[
            (lambda state, change=change: change(state["online"]), f"which does not fit it, in '{part}'")
            for part, change in (
                ("states", lambda online: online["states"]["1"].pop("v")),
                ("gradients", lambda online: online["gradients"].update({"0.bias": torch.zeros(N + 1)})),
                ("feedback", lambda online: online["feedback"].update({"7/0": torch.zeros(K, N)})),
                ("traces", lambda online: online["traces"].update({("1", "layer", "9", "mean"): torch.zeros(B, N)})),
                (
                    "traces",
                    lambda online: online["traces"].update({("1", "layer", "0", "weight", "v"): torch.zeros(3)}),
                ),
                ("traces", lambda online: online["traces"].update({("1", "parameter", "tau", "v"): torch.zeros(3)})),
                ("traces", lambda online: online["traces"].update({("9", "post", "v"): torch.zeros(B, N)})),
            )
        ],
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, text: str) -> None:
    """Neither weights nor states, of which the file has others."""
    net, (x, targets) = network(), batch()
    step = step_of(net)
    step.feed(x[0], targets[0])
    state = step.state_dict()
    change(state)
    step.update()
    step.feed(x[1], targets[1])
    before, traces, potential = weights(net), dict(step.traces), net[1].state["v"]
    with pytest.raises(ValueError, match=text):
        step.load_state_dict(state)
    assert same(before, weights(net))
    assert same(traces.values(), step.traces.values())
    assert net[1].state["v"] is potential


# -- what is refused


class Loop(nn.Module):
    """A ``forward`` that loops over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lif = nn.Linear(N, N), sc.LIF()

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N] -> [T, B, N]``."""
        return self.lif(torch.stack([self.linear(step) for step in x]))


class Twice(nn.Module):
    """A layer whose output reaches two neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.a, self.b = nn.Linear(N, N), sc.LIF(2.0), sc.LIF(3.0)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N] -> [T, B, N]``."""
        x = self.linear(x)
        return self.a(x) + self.b(x)


class Mixed(nn.Module):
    """Something between layer and neuron that is not element-wise, and keeps the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lif = nn.Linear(N, N), sc.LIF(2.0)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N] -> [T, B, N]``."""
        return self.lif(self.linear(x).softmax(-1))


class Own(Mixed):
    """A forward that is given."""

    def __init__(self, given: Any, first: Any = None, neuron: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(N, N) if first is None else first
        self.lif, self.given, self.scale = neuron or sc.LIF(2.0, learn=("tau",)), given, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N] -> [T, B, N]``."""
        return self.given(self, x)


def straight(net: Any, x: Tensor) -> Any:
    """Layer and neuron."""
    return net.lif(net.linear(x))


class Tripled(nn.Linear):
    """A layer that is none of torch's."""

    def forward(self, x: Tensor) -> Tensor:
        """Three times the product."""
        return 3.0 * F.linear(x, self.weight, self.bias)


class Gain(sc.LIF):
    """A neuron with a forward of its own."""

    def forward(self, x: Tensor) -> Any:
        """Of twice the input."""
        return super().forward(2.0 * x)


def hooked(module: nn.Module) -> nn.Module:
    """One whose output a hook doubles."""
    module.register_forward_hook(lambda module, args, output: 2.0 * output)
    return module


def replaced(module: nn.Module) -> nn.Module:
    """One whose forward is set on it."""
    forward = module.forward
    module.forward = lambda x: 3.0 * forward(x)  # type: ignore[method-assign]  # as a user does
    return module


class BatchFirst(Mixed):
    """A layer that reads the batch first."""

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N] -> [T, B, N]``."""
        return self.lif(self.linear(x.transpose(0, 1)).transpose(0, 1))


class Folded(Mixed):
    """A layer that reads samples and steps as one dimension, the steps of a sample side by side."""

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, N] -> [T, B, N]``."""
        h = self.linear(x.transpose(0, 1).flatten(0, 1))
        return self.lif(h.unflatten(0, (B, -1)).transpose(0, 1))


def masked(net: nn.Module) -> nn.Module:
    """One whose weights a hook of their gradient keeps as they are."""
    net[0].weight.register_hook(torch.zeros_like)  # type: ignore[index]  # a Sequential
    return net


def conv() -> nn.Module:
    """A convolution along the neurons."""
    return sc.layers.TimeBatched(nn.Unflatten(1, (1, N)), nn.Conv1d(1, 1, 3, padding=1), nn.Flatten())


def trained(net: nn.Module, rule: str) -> None:
    """A call of a step of four steps of time each."""
    step_of(net, lambda y, _: y.sum(), rule=rule, chunk=4, time_targets=False)(torch.rand(T, B, N))


def test_frozen_weights_need_no_trace() -> None:
    """A layer norm without gradients is space like any other."""
    net = nn.Sequential(nn.Linear(N, N), nn.LayerNorm(N).requires_grad_(False), sc.LIF(), nn.Linear(N, K))
    x, targets = batch()
    step_of(net, rule="ottt")(x, targets)
    assert net[0].weight.grad is not None


def test_a_network_without_neurons_is_warned_of() -> None:
    """In the words of the options, and trained all the same."""
    with pytest.warns(UserWarning, match=r"OnlineOptions: net=Linear.* has no spikecore neuron"):
        step = step_of(nn.Linear(N, K), rule="sltt")
    step(*batch())  # an update warns of nothing


def test_a_backend_with_a_training_of_its_own_refuses() -> None:
    """An IPU compiles a step as a whole."""
    net = nn.Sequential(nn.Linear(N, N), sc.LIF(backend="ipu"))
    with pytest.raises(sc.Unsupported, match="backend 'ipu' trains in a way of its own; give backend="):
        step_of(net)


test_refused = refusals.table(__file__, globals())


def test_a_sequence_that_is_fed_as_a_step_is_named() -> None:
    """Targets for its samples tell it; where an error has another cause, that one is raised."""
    net = nn.Sequential(nn.Linear(12, 6), sc.LIF(), nn.Linear(6, 3), sc.LI())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = sc.training_model(net, sc.losses.ce_rate, optimizer, options=sc.OnlineOptions("sltt"))
    y = torch.zeros(8, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"^feed takes one step \[B, \.\.\.\], and got x \[50, 8, 12\] for 8 targets: .*step\(x, y\)"
    ):
        step.feed(torch.rand(50, 8, 12), y)
    with pytest.raises(ValueError, match=r"^targets must be one class index per sample"):
        step.feed(torch.rand(4, 12), y)
