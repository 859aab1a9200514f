"""Parameters: how a value lies over the neurons, and values that are read once."""

from __future__ import annotations

from dataclasses import replace

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape, Taped
from mutants.use import call, drawn, li, lif, of, train, two_calls
from spikecore.testing._loopback import Loop

CHANNELS = torch.linspace(1.5, 4.0, 5)
PER_CHANNEL = li(tau=CHANNELS, learn=("tau",))
FULL = torch.linspace(1.5, 4.0, 15).view(3, 5)


def turned(backend: str) -> object:
    """A number that is changed between calls."""
    neuron = sc.LI(2.0, backend=backend)
    x = drawn((4, 3))
    first = neuron(x)
    neuron.tau = 4.0
    return first, neuron(x)


def annealed(backend: str) -> object:
    """A surrogate that becomes steeper."""
    found = []
    for alpha in (1.0, 4.0):
        x = drawn((4, 3)).requires_grad_()
        sc.LIF(surrogate=sc.surrogate.Sigmoid(alpha=alpha), backend=backend)(x).sum().backward()
        found.append(x.grad)
    return found


def refilled(backend: str) -> object:
    """A tensor parameter that is changed in place between calls."""
    neuron = sc.LI(torch.tensor(2.0), backend=backend)
    x = drawn((4, 3, 5))
    first = neuron(x)
    neuron.tau.fill_(9.0)
    return first, neuron(x)


def started(backend: str) -> object:
    """Where a run starts is changed between calls."""
    neuron = sc.LIF(v_reset=torch.tensor(-0.5), reset="hard", backend=backend)
    x = drawn((4, 3))
    first = neuron.run(x)[1]["v"]
    neuron.v_reset.fill_(0.25)
    return first, neuron.run(x)[1]["v"]


@mutant(
    "parameters/channel-lif",
    "parameters/channel-dim1",
    says=("spikes, with a gradient wanted, of LIF",),
    shows=call(li(tau=CHANNELS), loss=()),
)
class ChannelsAlongTheWrongDimension(Loop):
    """A per-channel value is taken by the position in the batch."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if kind == "channel":
            rows = like.shape[1]
            flat = made.reshape(-1)
            made = flat[torch.arange(rows) % len(flat)].view(rows, *[1] * (like.ndim - 2))
        return made


@mutant("parameters/channel-forward", "parameters/full-forward", shows=call(li(tau=CHANNELS), loss=()))
class OneValueForAll(Loop):
    """A tensor parameter's option is ignored: its mean is used."""

    def parameter(self, value, kind, like):
        return super().parameter(value, kind, like).mean()


@mutant("parameters/full-forward", shows=call(li(tau=FULL), loss=()))
class OneRowForAll(Loop):
    """A value per neuron is read along the last dimension alone."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        return made[:1] if kind == "full" and made.ndim > 1 else made


@mutant("parameters/channel-lif", "sequences/optimiser-channel", shows=call(PER_CHANNEL))
class ChannelGradientIsTheMean(Tape):
    """The gradient of a value per channel is the mean over all channels."""

    def total(self, sum_, value):
        return super().total(sum_, value).mean().expand(value.shape)


@mutant("parameters/changed", says=("in place",), shows=refilled)
class ParameterRemembered(Loop):
    """A tensor parameter's value is read once."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if isinstance(value, torch.Tensor):
            self.kept = getattr(self, "kept", {})
            made = self.kept.setdefault(id(value), made.detach().clone())
        return made


class Once(Loop):
    """Keeps what a parameter was when it was first seen; its gradient goes on."""

    def which(self, value, kind):
        """Whether this one is kept."""
        return False

    def parameter(self, value, kind, like):
        """The first value of its memory."""
        made = super().parameter(value, kind, like)
        if not self.which(value, kind):
            return made
        self.kept = getattr(self, "kept", {})
        first = self.kept.setdefault((value.data_ptr(), made.shape), made.detach().clone())
        return first + (made - made.detach())


@mutant("sequences/optimiser-scalar", shows=train(lif(learn=("tau",))))
class LearntValueReadOnce(Once):
    """An optimiser's steps change nothing."""

    def which(self, value, kind):
        return isinstance(value, torch.Tensor) and value.requires_grad and kind == "scalar"


@mutant("sequences/optimiser-channel", shows=train(PER_CHANNEL))
class ChannelValueReadOnce(Once):
    """Values per channel are copied once, as to constant memory."""

    def which(self, value, kind):
        return kind == "channel"


@mutant("sequences/optimiser-full", shows=train(li(tau=FULL, learn=("tau",))))
class FullValueReadOnce(Once):
    """Values per neuron are copied once."""

    def which(self, value, kind):
        return kind == "full"


@mutant("sequences/changed-threshold", shows=turned)
class NumberReadOnce(Loop):
    """Numbers are built into the runner by its first call."""

    def __call__(self, inputs, state, params, record):
        self.first = getattr(self, "first", params)
        params = tuple(a if isinstance(a, float) else b for a, b in zip(self.first, params))
        return super().__call__(inputs, state, params, record)


@mutant("surrogate/sigmoid", shows=annealed)
class SurrogateNumberReadOnce(Tape):
    """Backward has the surrogate's numbers of the first call."""

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        count = len(self.program.numbers)
        self.first = getattr(self, "first", tensors[len(tensors) - count :])
        return (*tensors[: len(tensors) - count], *self.first), states


@mutant("sequences/optimiser-scalar", shows=train(lif(learn=("tau",)), rate=2.0))
class ValueOfBackwardReadOnce(Tape):
    """Forward reads learnt values every time, backward once."""

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        count = len(self.program.params)
        shape = tensors[0].shape
        self.first = getattr(self, "first", {})
        params = self.first.setdefault((shape, count), [p.clone() for p in tensors[len(tensors) - count :]])
        return (*tensors[: len(tensors) - count], *params), states


@mutant("sequences/deepcopy-between", shows=two_calls(lif(tau=2.0), lif(tau=4.0)))
class ParametersOfTheLastCall(Tape):
    """Backward takes the parameters of the runner's last call, and two neurons have one runner."""

    def keep(self, ctx, tensors, states):
        super().keep(ctx, tensors, states)
        self.last = self.split(tensors)[2]

    def kept(self, ctx):
        tensors, states = super().kept(ctx)
        return (*tensors[: len(tensors) - len(self.last)], *self.last), states


@mutant("sequences/changed-v_reset", shows=started)
class StartReadOnce(Loop):
    """The states at rest are computed once."""

    def start(self, state, known, like):
        made = super().start(state, known, like)
        if state is None:
            self.rest = getattr(self, "rest", {})
            made = self.rest.setdefault(like.shape[1:], [value.clone() for value in made])
        return made


def unfrozen(backend: str) -> object:
    """A parameter is frozen at first, then learnt."""
    neuron, found = lif(learn=("tau", "threshold"))(backend), []
    for learnt in ((False, False), (False, True), (True, False)):
        for parameter, needs in zip((neuron.tau, neuron.threshold), learnt):
            parameter.requires_grad_(needs)
            parameter.grad = None
        neuron(drawn((6, 3, 5)).requires_grad_()).sum().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in (neuron.tau, neuron.threshold)])
    return found


def moved(backend: str) -> object:
    """A parameter's data is replaced, as torch.nn.utils.vector_to_parameters does."""
    neuron = li(tau=torch.tensor(2.0), learn=("tau",))(backend)
    x = drawn((4, 3, 5))
    first = neuron(x).detach()
    torch.nn.utils.vector_to_parameters(torch.tensor([4.0]), neuron.parameters())
    return first, neuron(x).detach()


@mutant("parameters/channel-batch-of-one", shows=call(PER_CHANNEL, (6, 1, 5)))
class BatchOfOneHasOneChannel(Tape):
    """In a batch of one the gradient of a value per channel is that of the first channel alone."""

    def total(self, sum_, value):
        made = super().total(sum_, value)
        if sum_.ndim < 2 or len(sum_) != 1 or made.numel() < 2:
            return made
        only = torch.zeros_like(made).reshape(-1)
        only[0] = made.reshape(-1)[0]
        return only.view(made.shape)


@mutant("sequences/learnt-in-turn", shows=unfrozen)
class RunnersWithoutLearn(Taped):
    """A runner is kept for its program and the rest of its spec, whatever is learnt."""

    def compile(self, program, spec):
        self.runners = getattr(self, "runners", {})
        key = (program, replace(spec, learn=()))
        return self.runners.setdefault(key, super().compile(program, spec))


@mutant("sequences/parameter-data", shows=moved)
class ParameterByVersion(Loop):
    """A parameter is converted again when torch's version of it has changed, and not otherwise."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if not isinstance(value, torch.Tensor) or value.is_inference():
            return made
        version, first = getattr(value, "packed", (None, None))
        if version != value._version or first.shape != made.shape or first.dtype != made.dtype:
            first = made.detach().clone()
            value.packed = value._version, first
        return first + (made - made.detach())


@mutant("parameters/channel-dim2", shows=call(of(sc.LI, tau=torch.linspace(1.5, 4, 3), channel_dim=2), (6, 3, 2, 3)))
class ChannelsFoundBySize(Loop):
    """Values per channel lie along the first dimension of their number."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if kind != "channel" or made.numel() < 2:
            return made
        sizes = list(like.shape[1:])
        return made.reshape([made.numel() if k == sizes.index(made.numel()) else 1 for k in range(len(sizes))])


def resting_at_infinity(backend: str) -> object:
    """Integrators, one of which has no finite resting value."""
    return li(v_rest=torch.tensor([0.0, 0.5, float("inf")]))(backend)(drawn((6, 2, 3)))


@mutant("robust/non-finite-parameters", shows=resting_at_infinity)
class ParametersAreFinite(Loop):
    """Infinite parameters become the largest numbers, and NaN becomes 0."""

    def parameter(self, value, kind, like):
        return torch.nan_to_num(super().parameter(value, kind, like))
