"""The guide's tables for who comes from snnTorch or SpikingJelly: every row runs against the peer as it is written."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.peers

GUIDE = Path(__file__).parents[2] / "docs" / "coming-from.md"
B, C = 8, 6
STEPS = (1, 5, 20)
#: The largest difference of gradients, and of potentials that are equal up to rounding, relative to the largest.
GRADIENTS, ROUNDING = 1e-5, 1e-5


def tables():
    """Its tables, each as the cells of its head and those of its rows."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", GUIDE.read_text(encoding="utf-8"), flags=re.M):
        head, _, *rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in block.splitlines()]
        found.append((head, rows))
    return found


def code(cell):
    """The text between the backticks of a cell that is one piece of code."""
    (inner,) = re.fullmatch(r"`([^`]+)`", cell).groups()
    return inner


NEURONS = [row for head, rows in tables() if head[0] in ("SpikingJelly", "snnTorch") for row in rows]
USES = [row for head, rows in tables() if head[0] == "there" for row in rows]


class Gain(nn.Module):
    """Feedback from each neuron to itself."""

    def __init__(self, gain):
        super().__init__()
        self.V = nn.Parameter(torch.tensor(gain))

    def forward(self, x):
        return x * self.V


@pytest.fixture(scope="module")
def names():
    """Names that the rows may use: the peers, spikecore, and what the section defines."""
    import snntorch
    from snntorch import functional as snn_functional
    from spikingjelly.activation_based import ann2snn, functional, layer, neuron, surrogate

    known = {"torch": torch, "nn": nn, "sc": sc, "Gain": Gain, "snn": snntorch, "SF": snn_functional}
    known.update(ann2snn=ann2snn, neuron=neuron, surrogate=surrogate, layer=layer, functional=functional)
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.S):
        exec(block, known)
    return SimpleNamespace(**known)


def built(cell, names):
    """The neuron that a cell writes."""
    torch.manual_seed(0)
    return eval(code(cell), dict(vars(names)))


def run_theirs(peer, x):
    """Spikes (None if it does not fire) and potentials of the peer, one step after the other, from rest."""
    if type(peer).__name__.startswith("NonSpiking"):
        return None, torch.stack(list(peer(x)))
    if hasattr(peer, "step_mode"):
        outputs, potentials = zip(*((peer(now), peer.v) for now in x))
        return torch.stack(outputs), torch.stack(potentials)
    state = peer.reset_mem()
    state = state if isinstance(state, tuple) else (state,)
    spikes, potentials = [], []
    for now in x:
        out = peer(now, *state)
        state = out[-len(state) :] if len(out) > len(state) else out
        spikes.append(out[0])
        potentials.append(out[-1])
    return torch.stack(spikes), torch.stack(potentials)


def run_ours(neuron, x):
    """Likewise; a read-out's output is its potential."""
    out, _, trace = neuron.run(x, record=("v",))
    return (None if isinstance(neuron, sc.LI) else out), trace["v"]


def learnt(module):
    """Parameters by name, a recurrent layer's under one name on both sides."""
    named = {re.sub(r"^(neuron|recurrent|linear)\.", "", name): p for name, p in module.named_parameters()}
    return dict(sorted(named.items()))


def gradients(values, wanted):
    """Gradients of a random linear function of spikes and potentials."""
    random = torch.Generator().manual_seed(7)
    total = sum((v * torch.randn(v.shape, generator=random)).sum() for v in values if v is not None)
    return torch.autograd.grad(total, wanted, allow_unused=True)


def close(got, want, limit):
    """Equal, or different by no more than a part of the largest value there is, or of 1."""
    if got is None or want is None:
        return got is want
    return bool((got - want).abs().max() <= limit * max(1.0, want.abs().max().item()))


def drive(steps, seed, scale):
    """Input ``[T, B, C]``."""
    return (torch.rand(steps, B, C, generator=torch.Generator().manual_seed(seed)) * 1.4 - 0.2) * scale


def firing(cell, names):
    """The scale of the input with which the peer fires in 10 to 60 % of 20 steps; 1 for what does not fire."""
    for scale in (1.0, 0.5, 0.25, 0.15, 2.0, 3.0):
        spikes, _ = run_theirs(built(cell, names), drive(20, 0, scale))
        if spikes is None or 0.1 <= spikes.mean() <= 0.6:
            return scale
    raise AssertionError(f"no input makes {cell} fire in 10 to 60 % of the steps")


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("row", NEURONS, ids=lambda row: code(row[0]))
def test_neuron_of_a_row_is_the_peers(names, row, steps):
    """Spikes are equal, potentials as equal as the page says, and the gradients of inputs and parameters agree."""
    theirs, ours = row
    scale = firing(theirs, names)
    for seed in range(3):
        peer, mine = built(theirs, names), built(ours, names)
        if isinstance(mine, sc.Recurrent):
            mine.linear.load_state_dict(peer.recurrent.state_dict())
        xs = [drive(steps, seed, scale).requires_grad_() for _ in range(2)]
        want, got = run_theirs(peer, xs[0]), run_ours(mine, xs[1])
        if want[0] is not None:
            assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1]) or (theirs.startswith("`snn.R") and close(got[1], want[1], ROUNDING))
        assert list(learnt(mine)) == list(learnt(peer))
        by_theirs = gradients(want, [xs[0], *learnt(peer).values()])
        by_ours = gradients(got, [xs[1], *learnt(mine).values()])
        # the two currents of Alpha cancel at the first step
        assert by_ours[0].abs().max() > 0 or (steps == 1 and isinstance(mine, sc.Alpha))
        for name, mine_grad, their_grad in zip(("x", *learnt(mine)), by_ours, by_theirs):
            assert close(mine_grad, their_grad, GRADIENTS), f"gradient of {name} differs"


# -- the other rows: what stands in their first cell -> what shows that the second does the same


def loop(names):
    x = drive(9, 0, 1.0)
    lif, single, mem, spikes, singles = names.snn.Leaky(beta=0.9), sc.Leaky(0.9, step="single"), None, [], []
    for x_t in x:
        spk, mem = lif(x_t, mem)
        spikes.append(spk)
        singles.append(single(x_t))
    assert torch.equal(sc.Leaky(0.9)(x), torch.stack(spikes))
    assert torch.equal(torch.stack(singles), torch.stack(spikes))


def record(names):
    x = drive(9, 0, 1.0)
    lif = sc.Leaky(0.9)
    spk, state, trace = lif.run(x, record=("v",))
    spikes, mem_rec = run_theirs(names.snn.Leaky(beta=0.9), x)
    assert torch.equal(trace["v"], mem_rec)
    assert torch.equal(spk, spikes)
    assert torch.equal(state["v"], mem_rec[-1])


def losses(names):
    spk, y = (drive(9, 0, 1.0) > 0.4).float().requires_grad_(), torch.arange(B) % C
    ours, theirs = sc.losses.ce_count(spk, y), names.SF.ce_count_loss()(spk, y)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, spk)[0] for loss in (ours, theirs)))
    assert float(sc.metrics.accuracy(spk, y)) == pytest.approx(float(names.SF.accuracy_rate(spk, y)))


def counted(names):
    spk, y = (drive(9, 0, 1.0) > 0.4).float().requires_grad_(), torch.arange(B) % C
    ours = sc.losses.mse_count(spk, y, correct_rate=0.8, incorrect_rate=0.2)
    theirs = names.SF.mse_count_loss(correct_rate=0.8, incorrect_rate=0.2)(spk, y)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, spk)[0] for loss in (ours, theirs)))


def cross_entropies(names):
    spk, y = (drive(9, 0, 1.0) > 0.4).float(), torch.arange(B) % C
    for name in ("ce_rate", "ce_max_membrane", "ce_temporal"):
        theirs = getattr(names.SF, f"{name}_loss")()(spk, y)
        torch.testing.assert_close(getattr(sc.losses, name)(spk, y), theirs.squeeze())


def class_weights(names):
    spk, y, w = (drive(9, 0, 1.0) > 0.4).float(), torch.arange(B) % C, torch.linspace(0.5, 5.0, C)
    for name in ("ce_rate", "ce_count", "ce_max_membrane"):
        mine, theirs = getattr(sc.losses, name), getattr(names.SF, f"{name}_loss")(weight=w)(spk, y)
        torch.testing.assert_close(mine(spk, y, weight=w, reduction="sample_mean"), theirs)
        torch.testing.assert_close(mine(spk, y, weight=w) * w[y].mean(), theirs)


def membranes(names):
    mem_rec, y = drive(9, 0, 1.0).requires_grad_(), torch.arange(B) % C
    ours, theirs = len(mem_rec) * sc.losses.ce_rate(mem_rec, y), sum(F.cross_entropy(mem, y) for mem in mem_rec)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, mem_rec)[0] for loss in (ours, theirs)))


def layers(names):
    x = drive(9, 0, 1.0)
    theirs, ours = names.layer.Dropout(0.5, step_mode="m"), sc.layers.SequenceDropout(0.5)
    for dropout in (theirs, ours):  # one mask for all steps, scaled alike; the numbers are drawn in another way
        masks = dropout(torch.ones_like(x))
        assert torch.equal(masks, masks[:1].expand_as(masks))
        assert set(masks.unique().tolist()) <= {0.0, 2.0}
    wide = torch.rand(4, B, 30)
    torch.testing.assert_close(sc.layers.Voting(10)(wide), names.layer.VotingLayer(10, step_mode="m")(wide))


def parallel(names):
    x = drive(9, 0, 3.0)
    for name, size, mode in (("PSN", len(x), {}), ("SlidingPSN", 3, {"step_mode": "m"})):
        theirs, ours = getattr(names.neuron, name)(size, **mode), getattr(sc.layers, name)(size)
        ours.load_state_dict(theirs.state_dict())
        assert torch.equal(ours(x), theirs(x))


def rates(names):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 3)).eval(), torch.rand(50, 4)
    loader = [(x, torch.zeros(len(x)))]
    theirs = names.ann2snn.Converter(names.ann2snn.RateCodingRecipe(loader, mode="99.9%")).convert(net)
    snn, _ = sc.ann2snn(net, loader, steps=200, quantile=0.999)
    means = (snn(x).mean(0), sum(theirs(x) for _ in range(200)) / 200)
    for mean in means:
        torch.testing.assert_close(mean, net(x), atol=0.02, rtol=0.0)


class Residual(nn.Module):
    """A shortcut of spikes, and a maximum of spikes."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc = (
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Linear(128, 3),
        )
        self.relu1, self.relu2, self.pool, self.flatten = nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()

    def forward(self, x):
        x = self.relu1(self.conv1(x))
        return self.fc(self.flatten(self.pool(self.relu2(self.conv2(x) + x))))


def test_rates_of_a_residual_network_with_maximum_pooling_are_nearer(names):
    """The same network by both converters, with the maxima of the same data as thresholds."""
    torch.manual_seed(0)
    net, x = Residual().eval(), torch.rand(20, 1, 8, 8)
    loader = [(x, torch.zeros(len(x)))]
    for steps in (16, 64):
        theirs = names.ann2snn.Converter(names.ann2snn.RateCodingRecipe(loader, mode="max")).convert(net)
        snn, _ = sc.ann2snn(net, loader, steps=steps, quantile=1.0)
        means = (snn(x).mean(0), sum(theirs(x) for _ in range(steps)) / steps)
        ours, others = ((mean - net(x)).abs().mean().item() for mean in means)
        assert ours < others
    assert ours < 0.02 * net(x).abs().mean().item() + 0.005


def checkpoints(names):
    def networks(leaky, plif, klif):
        return nn.ModuleDict({"fc": nn.Linear(C, C), "lif1": leaky, "lif2": plif, "lif3": klif})

    channels = torch.linspace(0.5, 1.5, C)
    leaky = names.snn.Leaky(beta=0.77, threshold=channels)
    theirs = networks(leaky, names.neuron.ParametricLIFNode(init_tau=3.0), names.neuron.KLIFNode())
    theirs["lif3"].k.data.fill_(1.2)
    ours = networks(sc.Leaky(0.5), sc.PLIF(), sc.KLIF())
    result = ours.load_state_dict(theirs.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    x = drive(9, 0, 1.0)
    assert torch.equal(ours["lif1"](x), run_theirs(theirs["lif1"], x)[0])
    assert torch.equal(ours["lif2"](x), run_theirs(theirs["lif2"], x)[0])
    assert torch.equal(ours["lif3"](x), run_theirs(theirs["lif3"], x)[0])
    current = names.snn.Synaptic(alpha=0.7, beta=0.6, threshold=0.8)
    mine = sc.SynapticLeaky()
    mine.load_state_dict(current.state_dict())
    assert torch.equal(mine(x), run_theirs(current, x)[0])
    for peer, neuron in (
        (names.snn.Alpha(alpha=0.85, beta=0.5, threshold=0.3), sc.Alpha()),
        (names.snn.Lapicque(R=2, C=1.5, time_step=0.5, threshold=0.4), sc.Lapicque()),
        (names.snn.Lapicque(beta=0.6, threshold=0.4), sc.Lapicque()),
    ):
        result = neuron.load_state_dict(peer.state_dict())
        assert (result.missing_keys, result.unexpected_keys) == ([], [])
        spikes = neuron(x)
        assert spikes.any()
        assert torch.equal(spikes, run_theirs(peer, x)[0])
    zero = names.snn.Synaptic(alpha=0.7, beta=0.6, reset_mechanism="zero")
    with pytest.raises(RuntimeError, match="reset_mechanism_val is 1, which means reset='hard', not 'soft'"):
        mine.load_state_dict(zero.state_dict())
    with pytest.raises(RuntimeError, match="of snnTorch, which fires above .*; load a Leaky into sc.Leaky, a Synaptic"):
        sc.Synaptic().load_state_dict(current.state_dict())


def modes(names):
    x = drive(9, 0, 2.0)
    assert torch.equal(sc.LIF(step="multi")(x), names.neuron.LIFNode(step_mode="m")(x))
    theirs, ours = names.neuron.LIFNode(step_mode="s"), sc.LIF(step="single")
    assert torch.equal(torch.stack([ours(now) for now in x]), torch.stack([theirs(now) for now in x]))


def resets(names):
    x = drive(9, 0, 1.5)
    theirs, ours = names.neuron.LIFNode(), sc.LIF(step="single")
    for prepare in ("none", "detach", "reset"):
        if prepare == "detach":
            names.functional.detach_net(theirs)
            sc.detach(ours)
        elif prepare == "reset":
            names.functional.reset_net(theirs)
            sc.reset(ours)
        assert torch.equal(torch.stack([ours(now) for now in x]), torch.stack([theirs(now) for now in x]))
    multi = sc.LIF()
    assert torch.equal(multi(x), multi(x))


def batched(names):
    x = torch.rand(5, B, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    ours = sc.layers.TimeBatched(nn.Conv2d(1, 2, 3))
    theirs = names.layer.Conv2d(1, 2, 3, step_mode="m")
    theirs.load_state_dict({name.split(".")[-1]: value for name, value in ours.state_dict().items()})
    assert torch.equal(ours(x), theirs(x))
    plain = nn.Conv2d(1, 2, 3)
    assert torch.equal(sc.layers.TimeBatched(plain)(x), names.functional.seq_to_ann_forward(x, plain))


CHECKS = {
    "`for x_t in x: spk, mem = lif(x_t, mem)`": loop,
    "`mem_rec`": record,
    "`mem = lif.init_leaky()`, `utils.reset(net)`": loop,
    "`lif.mem`, `lif.v`": record,
    "`lif.reset()`": resets,
    "`SF.ce_count_loss()(spk, y)`, `SF.accuracy_rate(spk, y)`": losses,
    "`SF.mse_count_loss(correct_rate=0.8, incorrect_rate=0.2)(spk, y)`": counted,
    "`SF.ce_rate_loss()`, `SF.ce_max_membrane_loss()`, `SF.ce_temporal_loss()`": cross_entropies,
    "`SF.ce_rate_loss(weight=w)`, `SF.ce_count_loss(weight=w)`, `SF.ce_max_membrane_loss(weight=w)`": class_weights,
    "`sum(F.cross_entropy(mem, y) for mem in mem_rec)`": membranes,
    "`net.load_state_dict(...)` of a snnTorch or SpikingJelly network": checkpoints,
    '`step_mode="m"`, `step_mode="s"`': modes,
    "`neuron.PSN(T)`, `neuron.SlidingPSN(k)`": parallel,
    "`functional.reset_net(net)`, `functional.detach_net(net)`": resets,
    "`layer.Dropout(0.5)`, `layer.VotingLayer(10)`": layers,
    '`ann2snn.Converter(ann2snn.RateCodingRecipe(loader, mode="99.9%")).convert(net)`': rates,
    '`layer.Conv2d(1, 2, 3, step_mode="m")`, `functional.seq_to_ann_forward(x, conv)`': batched,
}


#: Their neurons -> what a row has for each, as a neuron without a Recurrent around it.
COUNTERPARTS = {
    "snn": {
        "Leaky": sc.Leaky,
        "RLeaky": sc.Leaky,
        "Synaptic": sc.SynapticLeaky,
        "RSynaptic": sc.SynapticLeaky,
        "Alpha": sc.Alpha,
        "Lapicque": sc.Lapicque,
    },
    "neuron": {
        "IFNode": sc.IF,
        "LIFNode": sc.LIF,
        "ParametricLIFNode": sc.PLIF,
        "KLIFNode": sc.KLIF,
        "QIFNode": sc.QIF,
        "EIFNode": sc.EIF,
        "IzhikevichNode": sc.Izhikevich,
        "CUBALIFNode": sc.Synaptic,
        "ComplementaryLIFNode": sc.CLIF,
        "TernaryLIFNode": sc.TernaryLIF,
        "NonSpikingLIFNode": sc.LI,
    },
}


def arguments(cls):
    """The names of a constructor's arguments, those of its bases included where it passes them on."""
    found = {}
    for base in cls.__mro__:
        signature = inspect.signature(base.__init__).parameters if "__init__" in vars(base) else {}
        kinds = {parameter.kind for parameter in signature.values()}
        found.update(
            {name: None for name, one in signature.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        )
        if signature and not kinds & {inspect.Parameter.VAR_KEYWORD}:
            break
    return [name for name in found if name != "self"]


@pytest.mark.parametrize(("library", "name"), [(lib, name) for lib, names in COUNTERPARTS.items() for name in names])
def test_every_argument_is_one_here_or_says_what_to_write(names, library, name):
    """Of every neuron in a row, by the signature of the installed peer."""
    theirs, ours = arguments(getattr(getattr(names, library), name)), COUNTERPARTS[library][name]
    assert len(theirs) > 1
    mine = {*arguments(ours), *ours.params, *ours.configuration, "learn", "step", "backend", "bounds"}
    for argument in theirs:
        if argument not in mine:
            with pytest.raises(
                TypeError, match=rf"no parameter '{argument}'; (what other libraries call|did you mean) '"
            ):
                ours(**({"beta": 0.9} if ours is sc.Leaky else {}), **{argument: 1})


def test_every_neuron_of_a_row_has_its_arguments_looked_at():
    """No row has a neuron that the test above leaves out."""
    used = {re.match(r"`(\w+)\.(\w+)\(", row[0]).groups() for row in NEURONS}
    assert used == {(library, name) for library, names in COUNTERPARTS.items() for name in names}


def test_every_row_is_run():
    """There is no table and no row of the section that no test here knows."""
    assert [head[0] for head, _ in tables()] == ["default", "SpikingJelly", "snnTorch", "there"]
    assert [row[0] for row in USES] == list(CHECKS)
    assert len(NEURONS) > 20


@pytest.mark.parametrize("row", USES, ids=lambda row: row[0].strip("`"))
def test_use_of_a_row_is_the_peers(names, row):
    """Code of a row for here does what the peer's does."""
    CHECKS[row[0]](names)


def test_the_table_of_defaults():
    """Threshold, reset and surrogate of the table are those that the four classes have without arguments."""
    import snntorch
    from spikingjelly.activation_based import neuron

    (rows,) = [rows for head, rows in tables() if "LIFNode" in " ".join(head)]
    said = {name: cells for name, *cells in rows}
    lif, node, leaky, theirs = sc.LIF(), neuron.LIFNode(), sc.Leaky(0.9), snntorch.Leaky(0.9)
    thresholds = (lif.threshold, node.v_threshold, leaky.threshold, theirs.threshold)
    assert said["threshold"] == [f"{float(value):g}" for value in thresholds]
    assert said["leak"][:2] == [f"`tau={one.tau:g}`, decays the input too" for one in (lif, node)]
    assert lif.decay_input
    assert node.decay_input
    assert (lif.reset, lif.v_reset, node.v_reset) == ("hard", 0.0, 0.0)
    assert (leaky.reset, leaky.reset_delay, theirs.reset_mechanism, theirs.reset_delay) == (
        "soft",
        True,
        "subtract",
        True,
    )
    assert not (lif.detach_reset)
    assert not (node.detach_reset)
    name, alpha = type(node.surrogate_function).__name__, node.surrogate_function.alpha
    atan = dict(zip(theirs.spike_grad.__code__.co_freevars, [c.cell_contents for c in theirs.spike_grad.__closure__]))
    surrogates = [f"{type(one).__name__}({one.alpha:g})" for one in (lif.surrogate, leaky.surrogate)]
    ours, delayed = surrogates
    assert said["surrogate"] == [f"`{s}`" for s in (ours, f"{name}({alpha:g})", delayed, f"atan({atan['alpha']:g})")]
