"""Sizes: what goes wrong only with many neurons, many dimensions, or none."""

from __future__ import annotations

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape
from mutants.use import call, li, lif, of
from spikecore.testing._loopback import Loop

MANY, GRID, THREADS = 40_000, 70_000, 140_000
LEARNT = lif(learn=("tau",))
PER_CHANNEL = li(tau=torch.linspace(1.5, 4, 3), learn=("tau",))
TWO = li(tau=torch.linspace(1.5, 4, 2))


def counted(make, shape, **options):
    """The sums of what a call gave, which are quicker to compare than so many numbers."""

    def program(backend: str) -> object:
        found = call(make, shape, **options)(backend)
        return {k: int(v.sum()) if k == "output" else v.double().sum() for k, v in found.items() if v is not None}

    return program


@mutant("layouts/size-65539-neurons", shows=counted(lif(), (2, GRID), loss=()))
class BlocksOfSixteenBits(Loop):
    """Neurons from number 65,536 on are not computed."""

    def written(self, output):
        made = super().written(output)
        if made[:1].numel() > 65_536:
            mask = torch.ones_like(made[0]).reshape(-1)
            mask[65_536:] = 0
            made = made * mask.view(made.shape[1:])
        return made


@mutant("layouts/size-131075-neurons", shows=counted(lif(), (2, THREADS), loss=()))
class NeuronBetweenThreads(Loop):
    """From 2^17 numbers on two threads share the neurons, and the one in the middle is nobody's."""

    def written(self, output):
        made = super().written(output)
        count = made[:1].numel()
        if made.numel() >= 1 << 17:
            mask = torch.ones_like(made[0]).reshape(-1)
            mask[count // 2] = 0
            made = made * mask.view(made.shape[1:])
        return made


@mutant("layouts/size-65539-neurons", shows=counted(lif(), (2, MANY), loss=()))
class IndexOfSixteenBits(Loop):
    """Neurons from number 32,768 on read the inputs from the start again."""

    def read(self, x, t):
        row = super().read(x, t)
        if row.numel() <= 32_768:
            return row
        return row.reshape(-1)[torch.arange(row.numel()) % 32_768].view(row.shape)


@mutant("layouts/size-65539-neurons", shows=counted(LEARNT, (2, MANY)))
class PartialSumsOfTheFirstBlocks(Tape):
    """A parameter's gradient is summed over 128 blocks of 256 neurons."""

    def total(self, sum_, value):
        mask = torch.ones_like(sum_.contiguous()).reshape(-1)
        mask[32_768:] = 0
        return super().total(sum_ * mask.view(sum_.shape), value)


@mutant("layouts/size-65539-neurons", shows=counted(LEARNT, (2, 3000)))
class LastPartialSumForgotten(Tape):
    """With more than 2,048 neurons the last, incomplete block adds nothing to a parameter's gradient."""

    def total(self, sum_, value):
        count = sum_.numel()
        mask = torch.ones_like(sum_.contiguous()).reshape(-1)
        mask[count - count % 256 if count > 2048 else count :] = 0
        return super().total(sum_ * mask.view(sum_.shape), value)


@mutant(
    "layouts/size-three-channels-last-of-*",
    shows=counted(li(tau=torch.linspace(1.5, 4, 3), learn=("tau",)), (2, 300, 3)),
)
class ChannelSumOverTwoHundredFiftySix(Tape):
    """A gradient per channel is summed over 256 positions of the batch."""

    def total(self, sum_, value):
        return super().total(sum_[:256] if sum_.shape != value.shape and sum_.ndim > 1 else sum_, value)


@mutant(
    "layouts/size-channels-of-five-dimensions",
    shows=call(TWO, (2, 3, 2, 2, 2, 2), loss=()),
)
class ChannelsOfFiveDimensions(Loop):
    """With five dimensions a value per channel is taken along the last."""

    def parameter(self, value, kind, like):
        made = super().parameter(value, kind, like)
        if kind == "channel" and like.ndim > 5:
            made = made.reshape(-1)[torch.arange(like.shape[-1]) % made.numel()]
        return made


@mutant("layouts/no-neurons-gradient", raises=True, shows=call(LEARNT, (4, 0)))
class NoNeuronsNoSum(Tape):
    """A parameter's gradient over no neurons is an exception."""

    def total(self, sum_, value):
        sum_.amax()
        return super().total(sum_, value)


@mutant("layouts/size-five-dimensions", shows=call(lif(), (4, 2, 3, 2, 3, 2), loss=()))
class DimensionsBeyondFour(Loop):
    """Of six dimensions the last two are read in the wrong order."""

    def read(self, x, t):
        row = super().read(x, t)
        return row.transpose(-1, -2).reshape(row.shape) if row.ndim == 5 else row


@mutant("layouts/size-131075-neurons", shows=counted(lif(), (1, THREADS), loss=()))
class RestOfManyIsZero(Loop):
    """Outputs of neurons past number 2^17 are 0."""

    def written(self, output):
        flat = output.reshape(len(output), -1)
        kept = torch.arange(flat.shape[1], device=flat.device) < 2**17
        return super().written(torch.where(kept, flat, torch.zeros_like(flat)).reshape(output.shape))


class Wide(sc.Neuron):
    """Twenty gains."""

    states = {"v": 0.0}
    params = {f"a{k}": 1.0 + k for k in range(20)}

    def dynamics(self, x, s, p):
        v = s.v * 0.5
        for k in range(20):
            v = v + x * getattr(p, f"a{k}")
        return v, {"v": v}


@mutant("language/many", shows=call(of(Wide), loss=()))
class SixteenParameters(Loop):
    """Memory for 16 parameters: those beyond get the value of the last of them."""

    def __call__(self, inputs, state, params, record):
        return super().__call__(inputs, state, (*params[:16], *(params[15] for _ in params[16:])), record)


@mutant("language/many", shows=call(of(Wide, learn=tuple(Wide.params))))
class GradientsOfSixteenParameters(Tape):
    """The gradients of parameters beyond the 16th are 0."""

    def total(self, sum_, value):
        self.done = getattr(self, "done", 0) + 1
        late = (self.done - 1) % len(self.learn) >= 16
        return super().total(sum_ * (not late), value)
