"""Drawn networks as classes with a ``forward`` of their own, in Python text as a user writes it.

A forward is a few blocks, one after the other. Values have 4 features, so that layers can be shared and sums written
anywhere. A block is a template, in which ``A1``, ``B1``, ``N1`` stand for modules: a layer, a normalisation, a neuron.
Each tool has blocks, layers and neurons that it takes, which are drawn more often, and all others: at most two of these
are in a network. Numbers are multiples of 1/8 where they can be, so that sums, and 8 bits, are exact.
"""

from __future__ import annotations

import linecache
import random  # noqa: F401  # drawn forwards use it
import re
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrizations, parametrize  # noqa: F401  # drawn forwards use it

import spikecore as sc

T, B = 4, 3
#: A draw: one of some values.
Choose = Callable[[Sequence[Any]], Any]

# -- layers as users write them


class Plain(nn.Linear):
    """A subclass with torch's forward."""


class Masked(nn.Linear):
    """Half of the connections."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(self.weight)
        mask[:, ::2] = 0
        return F.linear(x, self.weight * mask, self.bias)


class Tripled(nn.Linear):
    """A gain."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * F.linear(x, self.weight, self.bias)


class Dale(nn.Linear):
    """Weights of one sign."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.abs(), self.bias)


class Standardised(nn.Linear):
    """Weight standardisation."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, weight / (weight.std(1, keepdim=True) + 1e-3), self.bias)


class PlainNorm(nn.BatchNorm1d):
    """A subclass with torch's forward."""


class HalvedNorm(nn.BatchNorm1d):
    """A gain."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


class DaleConv(nn.Conv2d):
    """Weights of one sign."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.abs(), self.bias, self.stride, self.padding)


class Twice(nn.Module):
    """A parametrisation."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class OwnLIF(sc.LIF):
    """A neuron with a forward of its own."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(2 * x)


class Two(sc.Neuron):
    """Spikes and the potential."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 0.53)
        return (z, h), {"v": sc.ops.select(z, 0.0, h)}


def hooked(module: nn.Module) -> nn.Module:
    """The module, whose output a hook doubles."""
    module.register_forward_hook(lambda module, args, output: 2 * output)
    return module


def pre_hooked(module: nn.Module) -> nn.Module:
    """The module, whose input a hook doubles."""
    module.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    return module


def replaced(module: nn.Module) -> nn.Module:
    """The module with a forward set on the object, which doubles what it computes."""
    forward = type(module).forward
    module.forward = lambda x: 2 * forward(module, x)  # type: ignore[method-assign]
    return module


def parametrised(module: nn.Module, name: str = "weight") -> nn.Module:
    """The module with a parameter that is twice what is learnt."""
    return parametrize.register_parametrization(module, name, Twice())


def tied(module: Any, other: Any) -> nn.Module:
    """The module with the weight of another one, where that is no computed one."""
    if isinstance(other.weight, nn.Parameter):
        module.weight = other.weight
    return module  # type: ignore[no-any-return]  # the module


# -- what forwards are made of

_LINEAR = "nn.Linear({n}, 4)"
_BIASED = "nn.Linear({n}, 4, bias=False)"
_DELAYED = ("nn.Linear(4, 4)", "nn.Linear(4, 4)", "parametrised(nn.Linear(4, 4, bias=False))")
#: Layers that tools may refuse, by a name for counts.
LAYERS = {
    "a plain subclass": "Plain({n}, 4)",
    "a masked subclass": "Masked({n}, 4)",
    "a subclass with a gain": "Tripled({n}, 4)",
    "a subclass of one sign": "Dale({n}, 4)",
    "weight standardisation": "Standardised({n}, 4)",
    "a hook": "hooked(nn.Linear({n}, 4))",
    "a pre-hook": "pre_hooked(nn.Linear({n}, 4))",
    "a forward on the object": "replaced(nn.Linear({n}, 4))",
    "a parametrisation": "parametrised(nn.Linear({n}, 4, bias=False))",
    "weight_norm": "parametrizations.weight_norm(nn.Linear({n}, 4))",
    "spectral_norm": "parametrizations.spectral_norm(nn.Linear({n}, 4))",
}
NORMS = {
    "a plain subclass of a norm": "PlainNorm(4)",
    "a subclass of a norm": "HalvedNorm(4)",
    "a hooked norm": "hooked(nn.BatchNorm1d(4))",
    "a norm without statistics": "nn.BatchNorm1d(4, track_running_stats=False)",
    "a norm without parameters": "nn.BatchNorm1d(4, affine=False)",
}
SPIKING = (
    "sc.LIF(tau=2.0, threshold=0.53{more})",
    "sc.LIF(tau=2.0, threshold=0.53, reset='soft'{more})",
    "sc.IF(threshold=0.53{more})",
    "sc.LIF(tau=4.0, threshold=0.53, decay_input=False{more})",
    "sc.LIF(tau=2.0, threshold=torch.tensor([0.53, 0.41, 0.67, 0.29]){more})",
)
GRADED = ("sc.LI(tau=2.0)", "sc.LI(tau=torch.tensor([2.0, 4.0, 8.0, 3.0]))")
NEURONS = {
    "a neuron with a forward": "OwnLIF(tau=2.0, threshold=0.53)",
    "a hooked neuron": "hooked(sc.LIF(tau=2.0, threshold=0.53))",
    "a learnt tau": "sc.LIF(tau=2.0, threshold=0.53, learn=('tau',))",
    "a parametrised tau": "parametrised(sc.LIF(tau=2.0, threshold=0.53, learn=('tau',)), 'tau')",
    "a neuron of two states": "sc.ALIF(tau=2.0, threshold=0.53)",
}
#: Blocks: ``h`` is what came and what goes on.
BLOCKS: Dict[str, Sequence[str]] = {
    "dense": ["h = N1(A1(h))"],
    "norm": ["h = N1(B1(A1(h)))"],
    "norm by flatten": ["v = A1(h)", "h = N1(R1(v.flatten(0, 1)).view_as(v))"],
    "norm by unflatten": ["h = N1(R1(A1(h).flatten(0, 1)).unflatten(0, (T, B)))"],
    "sequential": ["h = Z1(h)"],
    "loop": ["for layer in L1:", "    h = layer(h)"],
    "residual": ["h = N1(A1(h))", "h = h + N2(A2(h))"],
    "residual of what came": ["h = h + N1(A1(h))"],
    "norm and residual": ["v = N1(B1(A1(h)))", "h = N2(B2(A2(v))) + v"],
    "shortcut with a layer": ["h = N1(B1(A1(h)) + A2(h))"],
    "two layers summed": ["h = N1(A1(h) + A2(h))"],
    "concatenation": ["h = torch.cat([N1(A1(h)), N2(A2(h))], -1)", "h = N3(W1(h))"],
    "product": ["h = N1(A1(h)) * N2(A2(h))", "h = N3(A3(h))"],
    "recurrent": ["h = J1(A1(h))"],
    "delay": ["h = N1(E1(h))"],
    "delay and norm": ["h = N1(B1(E1(h)))"],
    "graded": ["h = N1(A1(G1(A2(h))))"],
    "layer behind layer": ["h = N1(A1(A2(h)))"],
    # who reads what
    "two norms read a layer": ["v = A1(h)", "h = N1(B1(v)) + N2(B2(v))"],
    "a norm and a neuron read a layer": ["v = A1(h)", "h = N1(B1(v)) + N2(v)"],
    "a norm and a sum read a layer": ["v = A1(h)", "h = N1(B1(v) + v)"],
    "pre-activation": ["v = A1(h)", "h = v + A2(N1(B1(v)))"],
    "a neuron and a sum read a layer": ["v = A1(h)", "h = A2(N1(v)) + v"],
    "a neuron and a layer read a layer": ["v = A1(h)", "h = N1(v) + N2(A2(v))"],
    "a neuron's output read twice": ["v = N1(A1(h))", "h = N2(A2(v)) + N3(A3(v))"],
    "two layers read": ["h = N1(A1(h)) + N2(A2(h))"],
    "a layer and a neuron read": ["h = N1(A1(h)) + N2(h)"],
    "returned and read": ["v = A1(h)", "h = torch.stack([N1(v), v]).sum(0)"],
    # how often, and whose
    "a norm behind two layers": ["h = N1(B1(A1(h)) + B1(A2(h)))"],
    "a layer with two norms": ["h = N1(B1(A1(h))) + N2(B2(A1(h)))"],
    "a layer with a norm and without": ["h = N1(B1(A1(h))) + N2(A1(h))"],
    "a layer called twice": ["h = N2(A1(N1(A1(h))))"],
    "a layer called twice on one value": ["h = N1(A1(h)) + N2(A1(h))"],
    "a neuron called twice": ["h = N1(A2(N1(A1(h))))"],
    "a shared module": ["self.other = A1", "h = N1(B1(A1(h))) + N2(self.other(h))"],
    "a tied weight": ["self.other = tied(nn.Linear(4, 4), A1)", "h = N1(B1(A1(h))) + N2(self.other(h))"],
    "tied weights": ["self.other = tied(nn.Linear(4, 4), A1)", "h = N2(self.other(N1(A1(h))))"],
    # functions
    "a functional layer": ["h = N1(F.linear(h, A1.weight, A1.bias))"],
    "a functional layer with a norm": ["h = N1(B1(F.linear(h, A1.weight, A1.bias)))"],
    "a layer, and its weight": ["h = N1(B1(A1(h)) + F.linear(h, A1.weight))"],
    "a penalty": ["h = N1(A1(h)) + 0.25 * A1.weight.abs().sum()", "h = N2(A2(h))"],
    "a function before a norm": ["h = N1(B1(F.relu(A1(h))))"],
    "a gain before a norm": ["h = N1(B1(2 * A1(h)))"],
    "a negation before a norm": ["h = N1(B1(-A1(h)))"],
    "a gain before a neuron": ["h = N1(2 * A1(h))"],
    "a sum before a norm": ["h = N1(B1(A1(h) + A2(h)))"],
    "a norm before a layer": ["h = N1(A1(B1(N2(A2(h)))))"],
    "dropout": ["h = N1(U1(A1(h)))"],
    # shapes
    "a norm of a slice": ["v = A1(h)", "h = N1(H1(Q1(v[..., :3])))"],
    "a slice": ["h = N1(H1(A1(h)[..., 1:]))"],
    "a stride": ["v = N1(A1(h))", "h = N2(S1(v[:, :, ::2]))"],
    "a slice of what came": ["h = N1(H1(h[..., :3]))"],
    "a norm over groups": ["v = A1(h).unflatten(-1, (2, 2)).flatten(0, 1)", "h = N1(M1(v).view(T, B, 4))"],
    "a norm over the batch": ["h = N1(O1(A1(h)))"],
    "a norm over steps": ["h = N1(R1(A1(h).transpose(0, 1)).transpose(0, 1))"],
    "features reversed": ["h = N1(B1(A1(h).flip(-1)))"],
    "a mean of pairs": ["v = N1(A1(h)).unflatten(-1, (2, 2)).mean(-1)", "h = N2(S1(v))"],
    "a maximum of pairs": ["v = N1(A1(h)).unflatten(-1, (2, 2)).amax(-1)", "h = N2(S1(v))"],
    "a mean behind a norm": ["v = B1(A1(h)).unflatten(-1, (2, 2)).mean(-1)", "h = N1(S1(v))"],
    "a permutation": ["v = A1(h).permute(2, 0, 1)", "h = N1(v.permute(1, 2, 0))"],
    "a view": ["v = A1(h).view(T, B, 2, 2)", "h = N1(v.view(T, B, 4))"],
    "chunks": ["u, v = W2(torch.cat([h, h], -1)).unflatten(-1, (2, 2)).unbind(-1)", "h = N1(S1(u)) + N2(S2(v))"],
    # in place
    "a sum in place": ["v = A1(h)", "v += A2(h)", "h = N1(B1(v))"],
    "what came, in place": ["v = A1(h)", "u = v", "u += h", "h = N1(B1(v))"],
    "a neuron's sum in place": ["v = N1(A1(h))", "v += N2(A2(h))", "h = N3(A3(v))"],
    "in place behind a norm": ["v = B1(A1(h))", "v *= 0.5", "h = N1(v)"],
    "a layer changed behind its norm": ["v = A1(h)", "u = B1(v)", "v *= 0.5", "h = N1(u)"],
    "a shortcut changed behind its sum": ["v = h * 1.0", "u = B1(A1(h)) + v", "v += 1.0", "h = N1(u)"],
    # the rest
    "a mode that is read": ["v = N1(A1(h))", "h = v + h if torch.is_grad_enabled() else v - h"],
    "a mode that is set": ["with torch.no_grad():", "    v = A1(h)", "h = N1(B1(A2(h)) + v)"],
    "an exception": ["try:", "    h = N1(B1(A1(h)) + h)", "except RuntimeError:", "    h = N1(A1(h))"],
    "several outputs": ["z, v = V1(A1(h))", "h = N1(A2(z) + v)"],
    "one of several outputs": ["h = V1(A1(h))[1]", "h = N1(A2(h))"],
    "a name with a slash": ["h = Y1(A1(h))"],
    "a record": ["h = N1(A1(h))", "self.seen.append(h.detach())"],
    "an attribute": ["v = A1(h)", "self.last = v.detach()", "h = N1(v)"],
    "a buffer": ["h = N1(A1(h) * self.gain)"],
    "a condition": ["h = N1(A1(h))", "if h.sum() > 1000.0:", "    h = -h"],
}
#: Modules of one's own: arguments, first lines, what is returned, and the lines that call it.
OWN: Dict[str, Tuple[str, Sequence[str], str, Sequence[str]]] = {
    "own module": ("x", [], "h", ["h = own(h)"]),
    "own module called twice": ("x", [], "h", ["h = own(own(h))"]),
    "a tuple": ("x", [], "h, x", ["h, v = own(h)", "h = h + v"]),
    "a dict": ("x", [], "{'h': h, 'x': x}", ["v = own(h)", "h = v['h'] + v['x']"]),
    "an optional argument": ("x, gain=None", ["if gain is not None:", "    x = x * gain"], "h", ["h = own(h)"]),
    "a default": ("x, gain=2.0", ["x = x * gain"], "h", ["h = own(h)"]),
    "a keyword": ("x", [], "h", ["h = own(x=h)"]),
    "a branch of training": ("x", ["if self.training:", "    x = x * 2.0"], "h", ["h = own(h)"]),
    "drop-path": ("x", ["if self.training and random.random() < 0.5:", "    return x"], "h", ["h = own(h)"]),
    "a hooked module of one's own": ("x", [], "h", ["h = own(h)"]),
}
#: What comes first: the shape of a sample, and lines that make 4 features of it.
BEGINNINGS: Dict[str, Tuple[Tuple[int, ...], Sequence[str]]] = {
    "features": ((4,), []),
    "an image": ((1, 4, 4), ["h = C1(h)", "h = N1(W1(P1(h).flatten(-3)))"]),
    "a convolution with a norm": ((1, 4, 4), ["h = F1(K1(C1(h)))", "h = N1(W1(P1(h).flatten(-3)))"]),
    "tokens": ((4, 4), ["h = F1(A1(h))", "h = N1(X1(h.flatten(-2)))"]),
    "a norm over tokens": ((4, 4), ["h = F1(B1(A1(h)))", "h = N1(X1(h.flatten(-2)))"]),
    "a norm of tokens": (
        (4, 4),
        [
            "v = R1(A1(h).flatten(0, 1).transpose(1, 2)).transpose(1, 2)",
            "h = N1(X1(F1(v.unflatten(0, (T, B))).flatten(-2)))",
        ],
    ),
    "a norm over a mean": ((4, 4), ["h = N1(B1(A1(h).mean(-2)))"]),
    "a pool before a neuron": ((1, 4, 4), ["h = F1(P1(C1(h)))", "h = N1(W1(h.flatten(-3)))"]),
    "a pool before a norm": ((1, 4, 4), ["h = F1(K1(P1(C1(h))))", "h = N1(W1(h.flatten(-3)))"]),
    "a convolution of one sign": ((1, 4, 4), ["h = F1(D1(h))", "h = N1(W1(P1(h).flatten(-3)))"]),
    "one convolution, two norms": (
        (1, 4, 4),
        ["v = C1(h)", "h = F1(K1(v)) + F2(K2(v))", "h = N1(W1(P1(h).flatten(-3)))"],
    ),
}
#: What tools may refuse, the first ones more often.
_TABLES: Sequence[Dict[str, Any]] = (BLOCKS, BLOCKS, BLOCKS, LAYERS, LAYERS, OWN, NORMS, NEURONS, BEGINNINGS)


class Takes(NamedTuple):
    """Networks that a tool takes, by its page: drawn more often than the rest."""

    blocks: Sequence[str]
    beginnings: Sequence[str] = ("features",)
    neurons: Sequence[str] = SPIKING
    #: Blocks, layers, neurons and beginnings that are not drawn at all.
    never: FrozenSet[str] = frozenset()
    #: ReLUs for neurons, and no time.
    relu: bool = False
    #: Whether a network may have a second input.
    inputs: int = 1
    pools: Sequence[str] = ("nn.AvgPool2d(2)", "nn.MaxPool2d(2)")
    delays: Sequence[str] = ("input", "connection")
    #: Further arguments of neurons.
    more: str = ""
    #: How many things that it may refuse.
    odd: Sequence[int] = (0, 1, 1, 2)
    #: How many blocks.
    counts: Sequence[int] = (1, 2, 3)
    #: How it may end; "" for a neuron.
    ends: Sequence[str] = ("h = G1(A1(h))", "h = A1(h)", "")


class Forward(NamedTuple):
    """A network as text, its numbers as a seed, and the shape of a sample."""

    text: str
    seed: int
    shape: Tuple[int, ...]
    #: What of it a tool may refuse.
    odd: FrozenSet[str]
    #: Its blocks, and how it ends.
    blocks: Tuple[str, ...]
    inputs: int = 1
    timed: bool = True

    def __repr__(self) -> str:
        about = f"# seed {self.seed}, a sample is {list(self.shape)}; {', '.join(sorted(self.odd)) or 'nothing odd'}"
        return f"\n{about}\n{self.text}"

    def net(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The network, always with the same numbers."""
        file = f"<forward {hash(self.text)}>"
        # torch.fx, and tools, may read the text of a class
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(True), file)
        names: Dict[str, Any] = {**globals(), "__name__": __name__}
        exec(compile(self.text, file, "exec"), names)
        torch.manual_seed(self.seed)
        net: nn.Module = names["Drawn"]()
        _fill(net, torch.Generator().manual_seed(self.seed))
        return net.to(dtype).eval()

    def x(self, dtype: torch.dtype = torch.float64) -> Tuple[Tensor, ...]:
        """Inputs: multiples of 1/2."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = ((T, B) if self.timed else (8,)) + self.shape
        return tuple([torch.randint(-2, 5, shape, generator=generator).to(dtype) / 2 for _ in range(self.inputs)])


def _fill(net: nn.Module, generator: torch.Generator) -> None:
    """Numbers that 8 bits hold; folding a normalisation multiplies by 1/2, 3/2, 2 or -1."""

    def drawn(value: Tensor, most: int) -> Tensor:
        return torch.randint(-most, most + 1, value.shape, generator=generator).to(value.dtype) / 8

    with torch.no_grad():
        for module in net.modules():
            norm: Any = module
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                for p in module.parameters(recurse=False):
                    p.copy_(drawn(p, 7 if p.ndim > 1 else 3))
            elif isinstance(module, _BatchNorm):
                norm.double()
                if norm.running_var is not None:
                    norm.running_mean.copy_(drawn(norm.running_mean, 4))
                    norm.running_var.uniform_(0.25, 2.0, generator=generator)
                if norm.weight is not None:
                    gains = torch.tensor([0.5, 1.5, 2.0, -1.0]).double()
                    gain = gains[torch.randint(4, norm.weight.shape, generator=generator)]
                    var = 1.0 if norm.running_var is None else norm.running_var
                    norm.weight.copy_(gain * (var + norm.eps) ** 0.5)
                    norm.bias.copy_(drawn(norm.bias, 3))


class _Writer:
    """The text of one class, from draws."""

    def __init__(self, choose: Choose, takes: Takes, odd: List[str], coming: List[str]) -> None:
        #: What a tool may refuse: what is in the text, and what is to come.
        self.odd, self.coming = odd, coming
        self.choose, self.takes = choose, takes
        self.made: List[str] = []
        self.lines: List[str] = []
        self.names: List[str] = []
        self.classes: List[str] = []
        self._names: Dict[str, str] = {}

    def pick(self, of: Dict[str, Any], plain: Sequence[str]) -> str:
        """One of what the tool takes, or of those in a table that are to come."""
        waiting = [name for name in self.coming if name in of]
        if waiting and self.choose((False, True, True, True)):
            self.coming.remove(waiting[0])
            self.odd.append(waiting[0])
            return waiting[0]
        return str(self.choose(plain))

    def block(self, lines: Sequence[str]) -> None:
        """A template's lines, with new modules in their places."""
        self._names = {}
        for line in lines:
            # from the inside out, as a user makes them in the order of their calls
            for letter, number in reversed(re.findall(r"\b([A-Z])([1-9])\b", line)):
                self._module(letter, number)
            text = re.sub(r"\b[A-Z][1-9]\b", lambda token: self._names[token[0]], line)
            (self.made if re.match(r"self\.\w+ = (tied|self)", text) else self.lines).append(text)

    def _module(self, letter: str, number: str) -> None:
        token = letter + number
        if token not in self._names:
            at = len(self.made)
            name = f"exc/inh{at}" if letter == "Y" else f"{letter.lower()}{at}"
            text = self._expression(letter)
            self.made.append(f"self.add_module({name!r}, {text})" if letter == "Y" else f"self.{name} = {text}")
            self._names[token] = f"getattr(self, {name!r})" if letter == "Y" else f"self.{name}"

    def _expression(self, letter: str) -> str:
        wide = {"A": 4, "S": 2, "H": 3, "W": 8, "X": 16}
        if letter in wide:
            return self._layer(wide[letter])
        if letter in "BR":
            norm = self.pick(NORMS, ["nn.BatchNorm1d(4)"])
            norm = NORMS.get(norm, norm)
            return norm if letter == "R" else self._over_time(norm)
        if letter in "NYF":
            return self._neuron(letter == "F")
        conv = "nn.Conv2d(1, 2, 3, padding=1)"
        neuron = self._neuron
        make: Dict[str, Callable[[], str]] = {
            "Q": lambda: self._over_time("nn.BatchNorm1d(3)"),
            "M": lambda: "nn.BatchNorm1d(2)",
            "O": lambda: f"nn.BatchNorm1d({B})",
            "C": lambda: self._over_time(conv),
            "D": lambda: self._over_time(conv.replace("nn.Conv2d", "DaleConv")),
            "K": lambda: self._over_time("nn.BatchNorm2d(2)"),
            "P": lambda: self._over_time(self.choose(self.takes.pools)),
            "G": lambda: self.choose(GRADED) if not self.takes.relu else "nn.ReLU()",
            "V": lambda: "Two()",
            "U": lambda: "nn.Dropout(0.0)",
            "E": self._delay,
            "J": lambda: f"sc.Recurrent({neuron(plain=True)}, {self._layer(4)}, detach=True)",
            "Z": lambda: f"nn.Sequential({self._layer(4)}, {self._maybe_norm()}{neuron()})",
            "L": lambda: (
                f"nn.ModuleList([{self._layer(4)}, {neuron()}, {self._layer(4)}, {self._maybe_norm()}{neuron()}])"
            ),
        }
        return make[letter]()

    def _layer(self, n: int) -> str:
        layer = self.pick(LAYERS, [_LINEAR, _BIASED])
        return LAYERS.get(layer, layer).format(n=n)

    def _neuron(self, wide: bool = False, plain: bool = False) -> str:
        if self.takes.relu:
            return "nn.ReLU()"
        known = [text for text in self.takes.neurons if not (wide and "tensor" in text)]
        neuron = self.choose(known) if plain else self.pick(NEURONS, known)
        return str(NEURONS.get(neuron, neuron)).format(more=self.takes.more)

    def _delay(self) -> str:
        layer, steps = self.choose(_DELAYED), self.choose((1.0, 2.0))
        return f"sc.Delay({layer}, 2, delay={steps}, per={self.choose(self.takes.delays)!r}, learn=())"

    def _maybe_norm(self) -> str:
        has = "norm" in self.takes.blocks and self.choose((False, True))
        return f"{self._over_time('nn.BatchNorm1d(4)')}, " if has else ""

    def _over_time(self, text: str) -> str:
        return text if self.takes.relu else f"sc.layers.TimeBatched({text})"

    def blocks(self, count: int, own: Dict[str, Any]) -> None:
        """Blocks, one after the other."""
        of = {**BLOCKS, **own}
        for _ in range(count):
            name = self.pick(of, [plain for plain in self.takes.blocks if plain in of])
            self.names.append(name)
            if name in OWN:
                self._own(name)
            else:
                self.block(BLOCKS[name])

    def _own(self, name: str) -> None:
        arguments, first, returned, calls = OWN[name]
        inner = _Writer(self.choose, self.takes, self.odd, self.coming)
        inner.blocks(1, own={})
        kind, made = f"Part{len(self.made)}", f"self.part{len(self.made)}"
        self.names += inner.names
        self.classes.append(inner.text(kind, arguments, [*first, "h = x"], returned))
        self.made.append(f"{made} = hooked({kind}())" if "hooked" in name else f"{made} = {kind}()")
        self.lines += [re.sub(r"\bown\b", made, line) for line in calls]

    def text(self, kind: str, arguments: str, first: Sequence[str], returned: str) -> str:
        """The class."""
        lines = [*first, *self.lines, f"return {returned}"]
        made = [*self.made]
        made += ["self.seen = []"] if any("self.seen" in line for line in lines) else []
        made += (
            ["self.register_buffer('gain', torch.tensor(0.5))"] if any("self.gain" in line for line in lines) else []
        )
        init = "".join(f"        {line}\n" for line in ["super().__init__()", *made])
        body = "".join(f"        {line}\n" for line in lines)
        return f"class {kind}(nn.Module):\n    def __init__(self):\n{init}\n    def forward(self, {arguments}):\n{body}"


def compose(choose: Choose, takes: Takes) -> Forward:
    """A network for a tool, which takes some half of them."""
    known = {*takes.blocks, *takes.beginnings, *takes.never}
    tables = [[name for name in of if name not in known] for of in _TABLES]
    coming = [choose(choose([names for names in tables if names])) for _ in range(choose(takes.odd))]
    odd: List[str] = []
    writer = _Writer(choose, takes, odd, coming)
    shape, lines = BEGINNINGS[writer.pick(BEGINNINGS, takes.beginnings)]
    writer.block(lines)
    two = takes.inputs > 1 and shape == (4,) and choose(range(8)) == 7
    if two:
        writer.block(["h = A1(h) + A2(u)"])
    writer.blocks(choose(takes.counts), own=OWN)
    end = choose(takes.ends)
    writer.block([end] if end else [])
    main = writer.text("Drawn", "x, u" if two else "x", ["h = x"], "h")
    text = "\n\n".join([*writer.classes, main])
    return Forward(
        text, choose(range(1000)), shape, frozenset(odd), (*writer.names, end), 2 if two else 1, not takes.relu
    )
