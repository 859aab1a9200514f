"""Weights and activations on power-of-two grids, as parametrisations and hooks of a network's layers.

Rules of this module:

- A weight is ``n * 2**-frac`` for an integer n of some bits, with one ``frac`` for each output channel or one for all.
  The layer has a parametrisation, which gives the rounded weight wherever it is read: within ``Recurrent``, ``Delay``
  and convolutions too. Its derivative is 1 within the range and 0 beyond it.
- What a layer reads is on a grid: a neuron's spikes are; anything else is rounded by the layer's ``input_format``.
- Weights of at most 8 bits and inputs of at most 9 are exact in TF32 and in bfloat16. Their products are added in
  float32, where a sum of integers below ``2**24`` is exact in any order.
- ``frac`` is the one with the least squared error on the data, rounding and saturation together.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore_chips.quant._analysis import Format
from spikecore_chips.quant._fixed import packed, unpacked

#: Layers with a weight ``[out, in, ...]``.
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Number of finer grids that are tried beside the one that holds every value.
_FINER = 6
#: Integers of a bias are below 2**this. With products of as many bits, a sum has one bit more.
_BIAS = 22
#: Limit of the grids of a layer's channels, as powers of two finer than the coarsest one, and of any grid. The reader
#: of the layer has one grid for all channels, which is coarser than that.
_SPREAD, FINEST = 12, 30
#: Fractional bits that are tried; below 0 for multiples of 2, 4, 8, ...
_GRIDS = range(-24, 41)


class OnGrid(nn.Module):
    """A tensor rounded to multiples of ``1 / scale`` and clamped: its value, with a straight-through derivative.

    scale: powers of two, a buffer that broadcasts to the tensor. low, high: the integers at the ends. bits: those that
    were asked for, which values of fewer bits need not. ``state_dict`` has all of them; that of other bits is refused.
    """

    #: The argument of :func:`prepare` that asks for such grids of weights.
    ranges = "data"
    scale: Tensor

    def __init__(self, scale: Tensor, low: int, high: int, bits: Optional[int] = None) -> None:
        super().__init__()
        self._hold(scale)
        self.low, self.high = low, high
        self.bits = max(high, -low - 1).bit_length() + (low < 0) if bits is None else bits

    def _hold(self, scale: Tensor) -> None:
        self.register_buffer("scale", scale)

    def get_extra_state(self) -> Tensor:
        """The ends, and the words that must be the same where they are loaded."""
        return packed({**self._words, "low": self.low, "high": self.high})

    def set_extra_state(self, state: Tensor) -> None:
        """Take the ends of another grid of the same words."""
        content = unpacked(state, self._words)
        self.low, self.high = int(content["low"]), int(content["high"])

    @property
    def _words(self) -> Dict[str, Any]:
        return {"ranges": self.ranges, "bits": self.bits, "grids": self.scale.numel()}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        try:
            if f"{prefix}_extra_state" in state_dict:
                unpacked(state_dict[f"{prefix}_extra_state"], self._words)
        except ValueError as error:
            args[-1].append(f"{prefix[:-1]}: {error}")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x: Tensor) -> Tensor:
        """``n / scale`` for the nearest n from ``low`` to ``high``."""
        scale = self.scale.to(x.dtype)
        inside = (x * scale).clamp(self.low, self.high)
        return (torch.round(inside.detach()) + (inside - inside.detach())) / scale

    def integers(self, x: Tensor) -> Tensor:
        """The integers n of values on the grid."""
        return torch.round(x.detach().double() * self.scale.double()).long()

    @property
    def fracs(self) -> List[int]:
        """The fractional bits, one for each channel or one."""
        return [int(math.log2(value)) for value in self.scale.flatten().tolist()]

    @property
    def format(self) -> Format:
        """The format of all values."""
        frac = max(self.fracs)
        return Format(frac, self.low << (frac - min(self.fracs)), self.high << (frac - min(self.fracs)))

    def extra_repr(self) -> str:
        """Range and grid."""
        fracs = self.fracs
        text = f"frac={fracs[0]}" if len(set(fracs)) == 1 else f"frac={min(fracs)}..{max(fracs)}"
        return f"{self.low}..{self.high}, {text}"


class LearntGrid(OnGrid):
    """A grid whose fractional bits ``frac``, one for each channel or one for all, are learnt, and rounded.

    The derivative with respect to ``frac`` is ``log(2) (x - y)`` where x is rounded to y, and ``-log(2) y`` where it
    saturates: that of Jain et al., "Trained quantization thresholds", MLSys 2020.
    """

    ranges = "learnt"

    def _hold(self, scale: Tensor) -> None:
        self.frac = nn.Parameter(torch.log2(scale))

    @property
    def scale(self) -> Tensor:  # type: ignore[override]  # computed, where the other one has a buffer
        """The power of two, by its bits: functions of some devices are not exact."""
        whole = torch.round(self.frac.detach()).clamp(_GRIDS.start, FINEST)
        exact = ((whole.to(torch.int32) + 127) << 23).view(torch.float32).to(self.frac.dtype)
        return exact * (1.0 + math.log(2.0) * (self.frac - self.frac.detach()))


def largest(values: Tensor) -> float:
    """The largest size of values. Raises ValueError where some are not finite, or too large for a grid."""
    most = float(values.detach().abs().max()) if values.numel() else 0.0
    if not most < 2.0**-_GRIDS.start:
        what = f"{most:g} is too large for a grid" if math.isfinite(most) else f"{most} is among the values"
        raise ValueError(f"{what}; scale them, or leave it out")
    return most


def best_frac(values: Tensor, bits: int) -> int:
    """The fractional bits with which integers of so many bits have the least squared error of these values."""
    values = values.detach().double().flatten()
    most = largest(values)
    if not most:
        return bits - 1
    widest = bits - 1 - math.frexp(most)[1]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def error(frac: int) -> float:
        rounded = torch.round(values * 2.0**frac).clamp(low, high) * 2.0**-frac
        return float((values - rounded).square().sum())

    return min(range(widest, widest + _FINER), key=error)


def exact_fracs(rows: Tensor) -> Tensor:
    """The fewest fractional bits with which every value of a row is on a grid; more than there are where none is."""
    rows = rows.detach().double()
    fracs = torch.full(rows.shape[:1], _GRIDS.start, device=rows.device)
    for frac in _GRIDS:
        scaled = rows * 2.0**frac
        fracs[(scaled != scaled.round()).any(1)] = frac + 1
    return fracs


def on_grids(weight: Tensor, bits: int) -> Optional[Tuple[Tensor, List[int]]]:
    """A weight ``[out, ...]`` as integers, with as few fractional bits as each output needs; None where that takes more
    than ``bits`` bits.
    """
    rows = weight.detach().double().flatten(1)
    fracs = exact_fracs(rows)
    integers = rows * (2.0 ** fracs.double()).unsqueeze(1)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if bool((fracs == _GRIDS.stop).any()) or not bool(((low <= integers) & (integers <= high)).all()):
        return None
    # a row of zeros fits every grid
    silent = (rows == 0).all(1)
    fracs[silent] = int(fracs[~silent].max()) if bool((~silent).any()) else 0
    return integers.long().view(weight.shape), fracs.tolist()


def grid_of(values: Tensor, bits: int) -> OnGrid:
    """The grid of activations: the one that they are on, where it has so few bits, else the best one."""
    largest(values)
    low, high = float(values.min()), float(values.max())
    frac, signed_too = max(0, int(exact_fracs(values.reshape(1, -1)))), low < 0
    most = max(-low, high, 1.0) * 2.0**frac
    if frac <= bits and most <= 1 << (bits - signed_too) and (low or high):
        # means of spikes, and sums of them: up to the power of two that holds what was seen
        end = 1 << (math.ceil(most) - 1).bit_length()
        return OnGrid(torch.tensor(2.0**frac, device=values.device), -end * signed_too, end, bits)
    # where all are 0 they may be spikes, or means of them: 1 is on the grid
    frac = best_frac(values, bits + (not signed_too)) if low or high else bits - 1
    lowest, highest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed_too else (0, (1 << bits) - 1)
    return OnGrid(torch.tensor(2.0**frac, device=values.device), lowest, highest, bits)


def best_fracs(weight: Tensor, bias: Optional[Tensor], bits: int, input_frac: int, finest: int) -> List[int]:
    """The fractional bits of each row of a weight: the best ones with which the bias fits its integers twice, and that
    are at most ``finest``, and not much more than those of other rows. A row of zeros has those of the coarsest row.
    """
    best = [best_frac(row, bits) if bool(row.any()) else None for row in weight]
    coarsest = min((frac for frac in best if frac is not None), default=bits - 1)
    biases = torch.zeros(len(weight)) if bias is None else bias.detach().reshape(len(weight), -1).abs().amax(1)
    fracs = []
    for frac, size in zip(best, biases.tolist()):
        frac = min(coarsest if frac is None else frac, finest, FINEST)
        fracs.append(min(frac, _BIAS - 1 - input_frac - math.frexp(size)[1]) if size else frac)
    return [min(frac, min(fracs) + _SPREAD) for frac in fracs]


def quantise_layer(
    layer: nn.Module,
    bits: int,
    per_channel: bool,
    input_frac: int,
    finest: int = FINEST,
    kind: Type[OnGrid] = OnGrid,
) -> None:
    """Give a layer parametrisations of its weight, unless it has a quantiser, and of its bias, on its sums' grid. They
    come behind those that it has. A layer of a copied network is changed without the one that it is a copy of.
    """
    weight, is_computed = weight_of(layer).detach(), parametrize.is_parametrized(layer, "weight")
    is_quantised = has_quantiser(layer) or (is_computed and on_grids(weight, 8) is not None)
    bits = 8 if is_quantised else bits
    rows = weight if per_channel else weight.unsqueeze(0)
    fracs = best_fracs(rows, layer.bias, bits, input_frac, finest)  # type: ignore[arg-type]  # a tensor
    scales = torch.tensor([2.0**frac for frac in fracs], device=weight.device)
    if parametrize.is_parametrized(layer):  # a class that copies share, and to which torch adds properties
        shared, slots = type(layer), ("__dict__", "__weakref__")
        own = {name: value for name, value in vars(shared).items() if name not in slots}
        layer.__class__ = type(shared.__name__, shared.__bases__, own)
    if not is_quantised:
        shape = [-1 if per_channel else 1, *[1] * (weight.ndim - 1)]
        of_weight = kind(scales.reshape(shape), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        parametrize.register_parametrization(layer, "weight", of_weight)
    if layer.bias is not None and not parametrize.is_parametrized(layer, "bias"):
        grid = OnGrid(scales * 2.0**input_frac, -(1 << _BIAS), 1 << _BIAS)
        parametrize.register_parametrization(layer, "bias", grid)


def bits_of(integers: Tensor) -> int:
    """The bits of the smallest two's complement integers that hold these."""
    return max(int(integers.max()), -int(integers.min()) - 1).bit_length() + 1


def quantised_weight(layer: nn.Module) -> Optional[Tensor]:
    """The weight of a layer that has a quantiser already, as it computes with it; None for a plain layer.

    A parametrisation of any kind, torch.ao's ``weight_fake_quant``, and brevitas' ``quant_weight()``.
    """
    weight: Any = layer.weight
    if callable(getattr(layer, "quant_weight", None)):
        quantised = layer.quant_weight()  # type: ignore[operator]  # brevitas
        return getattr(quantised, "value", quantised)  # type: ignore[no-any-return]  # a tensor
    if has_quantiser(layer):
        return layer.weight_fake_quant(weight)  # type: ignore[operator,no-any-return]  # torch.ao
    return weight if parametrize.is_parametrized(layer, "weight") else None


def has_quantiser(layer: nn.Module) -> bool:
    """Tell whether a layer's class quantises its weight, as those of brevitas and torch.ao do."""
    return callable(getattr(layer, "quant_weight", None)) or getattr(layer, "weight_fake_quant", None) is not None


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer as it computes with it, rounded by whatever quantises it."""
    quantised = quantised_weight(layer)
    return layer.weight if quantised is None else quantised  # type: ignore[return-value]  # a tensor


def integers_of(layer: nn.Module, most: int) -> Tuple[Tensor, List[int]]:
    """The weight of a layer as integers, and the fractional bits of each output channel.

    Raises ValueError where it is not on power-of-two grids with integers of at most ``most`` bits.
    """
    on_grid = on_grids(weight_of(layer), most)
    if on_grid is None:
        raise ValueError(
            f"its weight is not on a grid n * 2**-frac with integers of {most} bits; a quantiser needs scales that are "
            "powers of two (torch.ao: a scale of 2**-k and zero point 0; brevitas: a power-of-two scaling)"
        )
    return on_grid


def biases_of(layer: nn.Module) -> List[Tuple[int, int]]:
    """The bias of each output as an integer and its fractional bits; none for a layer without.

    Raises ValueError where one is on no power-of-two grid.
    """
    bias: Any = layer.bias
    if bias is None:
        return []
    grid = layer.parametrizations.bias[-1] if parametrize.is_parametrized(layer, "bias") else None  # type: ignore[union-attr,index]  # it has some
    if isinstance(grid, OnGrid):
        # the grid itself, of which a bias that is trained may need all bits
        integers = grid.integers(bias).tolist()
        return list(zip(integers, grid.fracs * (len(integers) // len(grid.fracs))))
    on_grid = on_grids(bias.unsqueeze(1), 32)
    if on_grid is None:
        raise ValueError("its bias is not on a grid n * 2**-frac with integers of 32 bits; take bias=False")
    return list(zip(on_grid[0].flatten().tolist(), on_grid[1]))


def round_input(layer: nn.Module, args: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """The forward pre-hook of a layer with an ``input_format``."""
    return (layer.input_format(args[0]), *args[1:])  # type: ignore[operator]  # a module


def round_output(layer: nn.Module, args: Tuple[Any, ...], output: Tensor) -> Tensor:
    """The forward hook of a layer with an ``output_format``."""
    return layer.output_format(output)  # type: ignore[operator,no-any-return]  # a module
