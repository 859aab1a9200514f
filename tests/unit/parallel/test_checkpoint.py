"""sc.checkpoint, and torch's own with checkpoint_contexts: regions are computed again, with the plain numbers."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import checkpoint

import refusals
import spikecore as sc
from spikecore.context import COMPILES

T, B, C = 6, 4, 8


def net(step="multi", dropout=0.3):
    """Seven layers, always with the same weights: norms, dropout, feedback."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(C, C),
        sc.LIF(1.6, threshold=0.3, learn=("tau",), step=step),
        (sc.layers.TimeBatched if step == "multi" else nn.Sequential)(nn.Linear(C, C), nn.BatchNorm1d(C)),
        sc.Recurrent(sc.LIF(2.0, threshold=0.3), nn.Linear(C, C), step=step),
        nn.Dropout(dropout),
        nn.Linear(C, C),
        sc.LI(3.0, step=step),
    )


def inputs():
    return torch.randn(T, B, C, generator=torch.Generator().manual_seed(1)).add(0.5).requires_grad_()


def ran(model, run):
    """All that a run gives: outputs, gradients, running statistics, states, random numbers after it."""
    x = inputs()
    torch.manual_seed(5)
    out = run(model, x)
    stream = torch.get_rng_state()
    out.square().sum().backward()
    states = [value.detach() for m in sc.functional.stateful_modules(model) for value in (m.state or {}).values()]
    gradients = [x.grad, *(parameter.grad for parameter in model.parameters())]
    return [out.detach(), stream, *gradients, *model.buffers(), *states]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert torch.equal(a, b)


def at_once(model, x, call=None):
    return (call or model)(x)


def in_steps(model, x, call=None):
    return torch.stack([(call or model)(x_t) for x_t in x])


def in_chunks(model, x, call=None):
    with sc.carry_state(model):
        return torch.cat([(call or model)(chunk) for chunk in x.split(2)])


class Reruns:
    """Counts the calls of every layer of a network."""

    def __init__(self, model):
        self.calls = [0] * len(model)
        for k, layer in enumerate(model):
            layer.register_forward_pre_hook(lambda *_, k=k: self.note(k))

    def note(self, k):
        self.calls[k] += 1


@pytest.mark.parametrize(("step", "run"), [("multi", at_once), ("multi", in_chunks), ("single", in_steps)])
def test_numbers_are_those_of_the_plain_network(step, run):
    """Outputs, gradients, running statistics, states and random numbers are the same, bit for bit."""
    wanted = ran(net(step), run)
    model = sc.checkpoint(net(step), every=3)
    counted = Reruns(model)
    assert_same(ran(model, run), wanted)
    calls = {"at_once": 1, "in_steps": T, "in_chunks": 3}[run.__name__]
    assert counted.calls == [2 * calls] * 7


class Alive(TorchDispatchMode):
    """The storages that operations made, and how many bytes of them are still alive."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self.made.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        return result

    def bytes(self):
        return sum(size for held, size in self.made.values() if not held.expired())


def kept(model, x):
    """Bytes that a forward pass leaves for backward."""
    with Alive() as alive:
        out = model(x)
    assert out.requires_grad
    return alive.bytes()


def test_memory():
    """Forward keeps the input of each group: of sixteen layers in groups of four, a fraction of what all would save."""

    def model():
        torch.manual_seed(0)
        return nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(64, 64), sc.LIF(threshold=0.2))])

    x = torch.rand(8, 16, 64)
    plain, saving = kept(model(), x), kept(sc.checkpoint(model(), every=4), x)
    one = 4 * 8 * 16 * 64
    assert plain > 16 * one
    assert saving < plain / 2.5
    undone = kept(sc.checkpoint(sc.checkpoint(model(), every=4), every=None), x)
    assert undone == plain


def test_copies():
    """Copies have the groups, their own layers, and the names of the plain network, whose weights load both ways."""
    model = sc.checkpoint(net(), every=2)
    other = pickle.loads(pickle.dumps(model))
    counted = Reruns(other)
    plain = net()
    assert list(other.state_dict()) == list(plain.state_dict())
    assert other.load_state_dict(plain.state_dict()) == ([], [])
    plain.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key.*wrong"):
        other.load_state_dict({**plain.state_dict(), "wrong": torch.ones(1)})
    assert_same(ran(other, at_once), ran(net(), at_once))
    assert counted.calls == [2] * 7
    assert all(parameter.grad is None for parameter in model.parameters())


def test_undone():
    """every=None gives the network itself, and takes groups out of all it contains; another number replaces one."""
    inner = net()
    model = nn.Sequential(sc.checkpoint(sc.checkpoint(inner, every=2), every=3), nn.Identity())
    assert model[0].module is inner
    assert (model[0].every, len(model[0]), model[0][1].tau.item()) == (3, 7, inner[1].tau.item())
    assert sc.checkpoint(model, every=None) is model
    assert model[0] is inner
    assert sc.checkpoint(sc.checkpoint(inner, every=2), every=None) is inner
    counted = Reruns(inner)
    ran(model, at_once)
    assert counted.calls == [1] * 7


class Blocks(nn.Module):
    """A network with a forward of its own, and a module of several inputs and outputs."""

    class Two(nn.Module):
        """Two inputs, several outputs."""

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(C, C)

        def forward(self, a, *, b, scale=1.0):
            return {"sum": torch.relu(self.fc(a)) + b * scale, "rest": (a, scale)}

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.two = Blocks.Two()
        self.body = net()
        self.neuron = sc.LIF(threshold=0.4)

    def forward(self, x):
        made = self.two(x, b=x.square(), scale=0.5)
        return self.neuron(self.body(made["sum"]) + made["rest"][0])


def test_named_modules():
    """Of any network the named modules are computed again, with several inputs and outputs; no others are."""
    model = sc.checkpoint(Blocks(), every=3, modules=["two", "body", "neuron"])
    calls = []
    for name in ("two", "body", "neuron"):
        getattr(model, name).register_forward_pre_hook(lambda *_, name=name: calls.append(name), with_kwargs=False)
    model.two.fc.register_forward_pre_hook(lambda *_: calls.append("fc"))
    assert_same(ran(model, at_once), ran(Blocks(), at_once))
    assert sorted(calls) == ["body", "fc", "fc", "neuron", "two"]
    sc.checkpoint(model, every=None, modules=["two"])
    assert type(model.two) is Blocks.Two
    assert type(model.body) is sc.parallel.Checkpointed
    assert model.state_dict().keys() == Blocks().state_dict().keys()
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Blocks().named_parameters()]


def test_an_encoder_with_a_generator():
    """An encoder in a group draws the same spikes again, and goes on from where it was afterwards."""

    def made():
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(3)
        return nn.Sequential(sc.encode.Poisson(5, generator=generator), nn.Linear(C, C), sc.LIF(threshold=0.2))

    one, many, x = made(), sc.checkpoint(made(), every=3), torch.rand(B, C)
    for _ in range(2):
        wanted, found = one(x), many(x)
        assert torch.equal(found, wanted)
        wanted.sum().backward()
        found.sum().backward()
    assert_same([p.grad for p in many.parameters()], [p.grad for p in one.parameters()])


class TestRefused:
    """Wrong numbers, and no policy at all, are refused in words."""

    def test_a_forward_of_its_own(self):
        """A network with a forward of its own is asked for names, and told those it has."""
        with pytest.raises(
            TypeError, match=r"net is a Blocks, whose forward, .* is its own.*modules=\[.*'two', 'body', 'neuron'"
        ):
            sc.checkpoint(Blocks(), every=1)
        backwards = type("Backwards", (nn.Sequential,), {"forward": lambda self, x: self[0](self[1](x))})
        with pytest.raises(TypeError, match="whose forward, __call__ or __iter__ is its own"):
            sc.checkpoint(backwards(nn.Linear(C, C), sc.LIF()), every=1)
        chain: nn.Module = net()
        chain.forward = chain[0].forward
        with pytest.raises(TypeError, match="whose forward, __call__ or __iter__ is its own"):
            sc.checkpoint(chain, every=1)


@pytest.mark.filterwarnings("ignore")  # torch's own while it traces
@pytest.mark.skipif(not COMPILES, reason="a neuron is compiled as a whole with torch 2.6")
@pytest.mark.parametrize("every", [2, "spikes"])
@pytest.mark.parametrize("whole", [False, True])
def test_compiled(every, whole):
    """Each group is compiled by itself, where the network is, too; torch.export is refused."""
    torch._dynamo.reset()
    plain, model = net(dropout=0.0), sc.checkpoint(net(dropout=0.0), every)
    frames = []

    def compiler(graph, examples):
        frames.append(graph)
        return graph.forward

    model.compile(backend=compiler)
    run = torch.compile(model, backend="eager") if whole else None
    found, wanted = ran(model, lambda model, x: at_once(model, x, run)), ran(plain, at_once)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, wanted))
    assert len(frames) >= (2 if every == 2 else 1)
    with pytest.raises(Exception, match=r"torch.export cannot follow sc.checkpoint; export net = sc.checkpoint\(net"):
        torch.export.export(model, (inputs(),), strict=False)


def truncated(model, x, call=None):
    """Backward after each chunk; the gradient ends between them."""
    outputs = []
    with sc.carry_state(model):
        for chunk in x.split(2):
            outputs.append((call or model)(chunk))
            outputs[-1].square().sum().backward(retain_graph=True)
            sc.detach(model)
    return torch.cat(outputs)


@pytest.mark.skipif(not COMPILES, reason="checkpoint_contexts needs torch 2.6")
@pytest.mark.parametrize(
    ("step", "run"), [("multi", at_once), ("multi", in_chunks), ("multi", truncated), ("single", in_steps)]
)
def test_torchs_own_checkpoint(step, run):
    """With checkpoint_contexts outputs, gradients and states are those of the plain network, bit for bit."""

    def region(model, x):
        again = {"use_reentrant": False, "context_fn": sc.parallel.checkpoint_contexts(model)}
        return run(model, x, lambda part: checkpoint(model, part, **again))

    assert_same(ran(net(step).eval(), region), ran(net(step).eval(), run))


test_refused = refusals.table(__file__, globals())
