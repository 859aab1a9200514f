"""Multiplications and additions of a network's forward pass, counted where torch computes them.

Rules of this module:

- What is counted is what torch is called for: every matrix product, convolution and average pooling, in modules and in
  a ``forward`` of one's own (the products of attention), with the tensors it gets. Nothing is inferred from shapes.
- A product with a factor 0 is not computed, padding included. Weights count as other than 0, whatever they hold.
- A product with a spike is an addition of the other factor, an accumulate; any other is a multiply-accumulate.
- Spikes are 0 and whole multiples, 4 at most, of one number, whose sign may vary: a scale (1/4 of average pooling over
  2 x 2, the threshold, dropout's) is folded into the weights behind it. A multiple of m counts m times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spikecore._shell.modules import observing, time_makers
from spikecore.backend import Unsupported
from spikecore.dtypes import has_float64
from spikecore.layers import Delay
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: Spikes are at most so many times one number.
_MOST = 4
#: Operations that hold products of their own.
_UNSEEN = frozenset(("_trilinear", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_sparse_addmm", "_sparse_mm"))
_POOLS = tuple(getattr(nn, f"AdaptiveAvgPool{n}d") for n in (1, 2, 3))


@dataclass
class Counted:
    """Operations of one layer. ``products``, ``sums``: all that there are, of products and of pooling, whatever the
    numbers are; ``products_once``, ``sums_once``: those among them that were computed once for all steps.
    """

    name: str
    kind: str
    macs: int = 0
    acs: int = 0
    products: int = 0
    sums: int = 0
    products_once: int = 0
    sums_once: int = 0


class _Factor(NamedTuple):
    """One side of products: how often each number counts, and whether the numbers are spikes."""

    counts: Tensor
    spikes: bool


class Counting(TorchDispatchMode):
    """Counts within a block what the modules of ``net`` compute."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.found: Dict[str, Counted] = {}
        self._weights: Set[int] = {_storage(value) for value in (*net.parameters(), *net.buffers())}
        #: What runs, from the outside in: module and name.
        self._stack: List[Tuple[nn.Module, str]] = []
        self._handles: List[Any] = []
        #: What makes time, and whether there is time yet: layers before the first of these compute once for all steps.
        self._makers = time_makers(net)
        self._timed = not self._makers
        self._net = net

    def __enter__(self) -> Counting:
        for name, module in self._net.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._begins(name)))
            self._handles.append(module.register_forward_hook(observing(lambda *_: self._ends())))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._stack.clear()

    def _begins(self, name: str) -> Callable[..., None]:
        def begins(module: nn.Module, args: Any) -> None:
            self._timed = self._timed or module in self._makers
            self._stack.append((module, name))

        return observing(begins)

    def _ends(self) -> None:
        self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else ""
        within = self._stack[-1][0] if self._stack else None
        # what a neuron computes within a step is no synapse
        if isinstance(within, Neuron) or within is None:
            return out
        if name in _UNSEEN or ("attention" in name and not name.endswith("_math")):
            raise Unsupported(
                f"sc.energy: layer {self._stack[-1][1]!r} calls torch's {name}, whose products cannot be seen; write "
                "them out: of attention q @ k.transpose(-2, -1), and its product with v"
            )
        rule = _RULES.get(name)
        if rule is not None and (name != "mean" or isinstance(within, _POOLS) or _pools(args)):
            self._note(rule(self, args, kwargs or {}))
        return out

    def _note(self, counts: Tuple[int, int, int, int]) -> None:
        module, name = self._stack[-1]
        counted = self.found.setdefault(name, Counted(name, type(module).__name__))
        macs, acs, products, sums = counts
        counted.macs += macs
        counted.acs += acs
        counted.products += products
        counted.sums += sums
        if not self._timed:
            counted.products_once += products
            counted.sums_once += sums

    def factors(self, a: Tensor, b: Tensor) -> Tuple[_Factor, _Factor]:
        """The two sides of products. Of two tensors of spikes that of smaller multiples says how often the numbers of
        the other are added.
        """
        one, other = self._factor(a), self._factor(b)
        if one.spikes and other.spikes and one.counts.numel() and other.counts.numel():
            if float(one.counts.max()) > float(other.counts.max()):
                return _Factor(_numbers(a), False), other
            return one, _Factor(_numbers(b), False)
        return one, other

    def lags(self, weight: Tensor) -> int:
        """How many weights a connection has among these: a :class:`spikecore.Delay` may be computed with one for each
        number of steps, of which one is not 0.
        """
        module = self._stack[-1][0]
        if isinstance(module, Recurrent):
            module = module.linear
        if not isinstance(module, Delay):
            return 1
        every, size = weight.numel(), module.linear.weight.numel()
        return module.max_delay + 1 if every == size * (module.max_delay + 1) else 1

    def _factor(self, value: Tensor) -> _Factor:
        """How often the numbers of a tensor count."""
        if _storage(value) in self._weights:
            return _Factor(torch.ones_like(_wide(value)), False)
        spikes = _levels(value)
        return _Factor(_numbers(value), False) if spikes is None else _Factor(spikes, True)


def _levels(x: Tensor) -> Optional[Tensor]:
    """How many spikes each number stands for; None for a tensor of other numbers."""
    size = _wide(x.detach()).abs()
    if not size.numel() or not bool(torch.isfinite(size).all()):
        return size if not size.numel() else None
    most = float(size.max())
    if most == 0.0:
        return size
    least = float(size[size > 0].min())
    if most > (_MOST + 0.5) * least:
        return None
    times = size / least
    whole = times.round()
    # a scale is rounded in the dtype of x
    rounding = 8 * torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
    return whole if bool(((times - whole).abs() <= rounding * times).all()) else None


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout is torch.strided else id(value)


def _sorted(spikes: bool, counted: Tensor, dense: int) -> Tuple[int, int, int, int]:
    number = int(counted.sum().round())
    return (0, number, dense, 0) if spikes else (number, 0, dense, 0)


def _product(a: Tensor, b: Tensor, of: Counting) -> Tuple[int, int, int, int]:
    """``[..., m, k] @ [..., k, n]``."""
    one, other = of.factors(a, b)
    counted = one.counts.sum(-2) * other.counts.sum(-1)
    dense = a.numel() * b.shape[-1]
    return _sorted(one.spikes or other.spikes, counted, dense // of.lags(b) if b.ndim == 2 else dense)


def _matrices(first: int) -> Callable[..., Tuple[int, int, int, int]]:
    return lambda of, args, kwargs: _product(args[first], args[first + 1], of)


def _vector(first: int) -> Callable[..., Tuple[int, int, int, int]]:
    return lambda of, args, kwargs: _product(args[first], args[first + 1].unsqueeze(-1), of)


def _dot(of: Counting, args: Any, kwargs: Any) -> Tuple[int, int, int, int]:
    return _product(args[0].unsqueeze(0), args[1].unsqueeze(-1), of)


def _convolution(of: Counting, args: Any, kwargs: Any) -> Tuple[int, int, int, int]:
    x, weight, _, stride, padding, dilation, transposed, extra, groups = args[:9]
    one, other = of.factors(x, weight)
    # a product for each output channel of a group: one channel of their sums has as many
    if transposed:
        summed = other.counts.sum(1, keepdim=True)
    else:
        summed = other.counts.unflatten(0, (groups, weight.shape[0] // groups)).sum(1)
    how = (None, stride, padding, dilation, transposed, extra, groups)
    counted = torch.convolution(one.counts, summed, *how)
    every = torch.ones_like(summed) * (weight.shape[1] if transposed else weight.shape[0] // groups)
    dense = torch.convolution(torch.ones_like(one.counts[:1]), every, *how).sum()
    return _sorted(one.spikes or other.spikes, counted, int(dense.round()) * x.shape[0] // of.lags(weight))


def _pooled(of: Counting, args: Any, kwargs: Any) -> Tuple[int, int, int, int]:
    x, window = args[:2]
    usual: Tuple[Any, ...] = ([], 0, False)
    stride, padding, up = tuple(args[2:5]) + usual[len(args[2:5]) :]
    pool: Any = F.avg_pool3d if len(window) == 3 else F.avg_pool2d
    counts = _numbers(x)

    def add(value: Tensor) -> int:
        found = pool(value, window, stride or None, padding, up, True, 1)
        return int(found.sum().round())

    return 0, add(counts), 0, add(torch.ones_like(counts))


def _pooled_to_size(of: Counting, args: Any, kwargs: Any) -> Tuple[int, int, int, int]:
    x, sizes = args[:2]
    counts = _numbers(x)
    windows = torch.ones((), dtype=torch.float64, device=counts.device)
    for length, wanted in zip(x.shape[-len(sizes) :], sizes):
        found = torch.zeros(length, dtype=torch.float64, device=counts.device)
        for place in range(wanted):
            found[place * length // wanted : -(-(place + 1) * length // wanted)] += 1
        windows = windows.unsqueeze(-1) * found
    return 0, int((counts * windows).sum()), 0, int((torch.ones_like(counts) * windows).sum())


def _pools(mean: Tuple[Any, ...]) -> bool:
    """Whether arguments of ``mean`` are those that ``F.adaptive_avg_pool2d(x, 1)`` calls it with, or 3d: the last
    dimensions, from the last on, kept. Other means, of time or written otherwise, are not counted as pooling.
    """
    return mean[1:] in (([-1, -2], True), ([-1, -2, -3], True))


def _meant(of: Counting, args: Any, kwargs: Any) -> Tuple[int, int, int, int]:
    """Adaptive pooling to one number, which torch computes as a mean."""
    return 0, int(_numbers(args[0]).sum()), 0, args[0].numel()


def _numbers(x: Tensor) -> Tensor:
    return _wide(x != 0)


def _wide(x: Tensor) -> Tensor:
    """In float64, whose sums of counts are exact: on the CPU if the device has none."""
    return (x if has_float64(x.device.type) else x.cpu()).double()


_RULES: Dict[str, Callable[..., Tuple[int, int, int, int]]] = {
    **dict.fromkeys(("mm", "bmm"), _matrices(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm"), _matrices(1)),
    "linear": lambda of, args, kwargs: _product(args[0], args[1].t(), of),
    "mv": _vector(0),
    "addmv": _vector(1),
    "dot": _dot,
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), _pooled),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _pooled_to_size),
    "mean": _meant,
}
