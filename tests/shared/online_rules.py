"""Online rules: small networks, their gradients, and the recursions of the papers written out."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc

T, B, I, J, K = 21, 3, 6, 5, 4  # noqa: E741  # the field's names


def weighted(y: Any, weights: Any) -> Tensor:
    """A loss with a number for each output."""
    outputs = y if isinstance(y, tuple) else (y,)
    return sum((out * part).sum() for out, part in zip(outputs, weights))  # type: ignore[return-value]


def step_of(net: nn.Module, loss: Callable[..., Tensor] = weighted, **rule: Any) -> Any:
    """An online step that does not change a weight."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    return sc.training_model(net, loss, optimizer, options=sc.OnlineOptions(**{"time_targets": True, **rule}))


def gradients(
    net: nn.Module, x: Tensor, targets: Any, loss: Callable[..., Tensor] = weighted, **rule: Any
) -> Dict[str, Tensor]:
    """The gradients that a step leaves, which does not change a weight."""
    step_of(net, loss, **rule)(x, targets)
    return gradients_of(net)


def through_time(net: nn.Module, x: Tensor, targets: Any, loss: Callable[..., Tensor] = weighted) -> Dict[str, Tensor]:
    """The gradients of torch's autograd through all steps."""
    net.zero_grad()
    total = loss(net(x), targets)
    if total.requires_grad:
        total.backward()
    return gradients_of(net)


def gradients_of(net: nn.Module) -> Dict[str, Tensor]:
    """The gradients of all parameters; zeros where no path leads to one."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def difference(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    assert got.shape == want.shape
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-300)).item()


def check(got: Dict[str, Tensor], want: Dict[str, Tensor], most: float = 1e-12) -> None:
    """The same gradients of the same parameters."""
    assert got.keys() == want.keys()
    assert all(difference(got[name], value) <= most for name, value in want.items()), {
        name: difference(got[name], value) for name, value in want.items()
    }


def batch(seed: int = 0, scale: float = 2.0) -> Tuple[Tensor, Any]:
    """Spikes ``[T, B, I]`` times a scale, and numbers for outputs ``[T, B, J]``."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(T, B, I, generator=generator) < 0.4).double() * scale
    return x, (torch.randn(T, B, J, generator=generator).double(),)


def layer(neuron: nn.Module, scale: float = 1.0) -> nn.Module:
    """A linear layer for every input of a neuron, and the neuron."""
    torch.manual_seed(1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(I, J) for _ in neuron.inputs)
            self.neuron = neuron

        def forward(self, x: Tensor) -> Any:
            return self.neuron(*(scale * linear(x) for linear in self.linears))

    return Layer().double()


def recurrent(neuron: sc.Neuron, bias: bool = True) -> nn.Module:
    """A recurrent layer whose feedback carries no gradient."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(I, J), sc.Recurrent(neuron, nn.Linear(J, J, bias=bias), detach=True))
    return net.double()


class Saved:
    """A tensor that autograd keeps for backward."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def check_one_chunk_is_held(net: nn.Module, **rule: Any) -> None:
    """Whenever a chunk is asked for, graphs hold as many tensors as at the one before."""
    held: Any = weakref.WeakSet()
    counts: List[int] = []

    def pack(tensor: Tensor) -> Saved:
        saved = Saved(tensor)
        held.add(saved)
        return saved

    def chunks() -> Iterator[Tensor]:
        for k in range(6):
            gc.collect()
            counts.append(len(held))
            yield batch(k)[0][:3]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        step_of(net, lambda y, _: y.square().sum(), time_targets=False, **rule)(chunks())
    assert len(set(counts[2:])) == 1, f"tensors that are held when a chunk is asked for: {counts}"


# -- recursions by hand


def slope(u: Tensor) -> Tensor:
    """The derivative of ATan(2)."""
    return 1.0 / (1 + (torch.pi * u) ** 2)


def squares(y: Tensor, targets: Tensor) -> Tensor:
    """Half the sum of squares."""
    return 0.5 * (y - targets).square().sum()


def alif_by_hand(net: nn.Module, x: Tensor, target: Tensor) -> Dict[str, Tensor]:
    """Real-time recurrent learning of a recurrent layer of ALIF: two states, and feedback that is an input."""
    neuron: Any = net[1].neuron
    W, b, R, c = (p.detach() for p in (net[0].weight, net[0].bias, net[1].linear.weight, net[1].linear.bias))
    alpha, rho, beta = 1 - 1 / neuron.tau, neuron.rho, neuron.beta.item()
    v = a = z = torch.zeros(B, J, dtype=torch.float64)
    ones = torch.ones(B, 1, dtype=torch.float64)
    # ds/dW for each sample: of v and a, by what the weights are multiplied with
    read = {"0.weight": I, "0.bias": 1, "1.linear.weight": J, "1.linear.bias": 1}
    Ev, Ea = ({name: torch.zeros(B, J, size).double() for name, size in read.items()} for _ in range(2))
    Pv = Pa = torch.zeros(B, J, dtype=torch.float64)
    want = {name: torch.zeros(J, size).double() for name, size in read.items()}
    want["1.neuron.beta"] = torch.zeros(()).double()
    for t in range(len(x)):
        inputs = dict(zip(read, (x[t], ones, z, ones)))
        h = alpha * v + x[t] @ W.T + b + z @ R.T + c
        raised = 1.0 + beta * a
        z, surrogate = (h >= raised).double(), slope(h - raised)
        for name in read:
            dh = alpha * Ev[name] + inputs[name][:, None]
            dz = surrogate[..., None] * (dh - beta * Ea[name])
            want[name] += (target[t][..., None] * dz).sum(0)
            Ev[name] = dh - dz * raised[..., None] - z[..., None] * beta * Ea[name]
            Ea[name] = rho * Ea[name] + dz
        dz = surrogate * (alpha * Pv - a - beta * Pa)
        want["1.neuron.beta"] += (target[t] * dz).sum()
        Pv, Pa = alpha * Pv - dz * raised - z * (a + beta * Pa), rho * Pa + dz
        v, a = h - z * raised, rho * a + z
    return {name: value.squeeze(-1) if name.endswith("bias") else value for name, value in want.items()}


def recurrent_alif(backend: str = "torch") -> nn.Module:
    """The network of :func:`alif_by_hand`."""
    return recurrent(sc.ALIF(3.0, rho=0.8, beta=0.3, decay_input=False, reset="soft", learn=("beta",), backend=backend))


def read_out_of_lif(backend: str = "torch") -> nn.Module:
    """The network of :func:`eprop_by_hand`: a recurrent layer of LIF, and a leaky read-out."""
    hidden = recurrent(sc.LIF(3.0, decay_input=False, reset="soft", backend=backend), bias=False)
    return nn.Sequential(*hidden, nn.Linear(J, K, bias=False).double(), sc.LI(4.0, backend=backend))


def eprop_by_hand(net: nn.Module, x: Tensor, targets: Tensor, signals: Any = None) -> Dict[str, Tensor]:
    """Eligibility traces filtered by the leak of the read-out, of input and recurrent weights, times learning signals.

    ``signals`` ``[K, J]``: by default the read-out's own weights (Bellec et al., 2020, equations 2 to 5, 22 to 28).
    """
    W, b, R, V = (p.detach() for p in net.parameters())
    signals = V if signals is None else signals
    alpha, kappa, tau = 1 - 1 / net[1].neuron.tau, 1 - 1 / net[3].tau, net[3].tau
    v = z = zbar = torch.zeros(B, J, dtype=torch.float64)
    y, ones = torch.zeros(B, K, dtype=torch.float64), torch.ones(B, 1, dtype=torch.float64)
    read = {"0.weight": I, "0.bias": 1, "1.linear.weight": J}
    low = {name: torch.zeros(B, size).double() for name, size in read.items()}
    eligibility = {name: torch.zeros(B, J, size).double() for name, size in read.items()}
    want = {name: torch.zeros(J, size).double() for name, size in read.items()}
    want["2.weight"] = torch.zeros_like(V)
    for t in range(len(x)):
        low = {name: alpha * low[name] + pre for name, pre in zip(read, (x[t], ones, z))}
        h = alpha * v + x[t] @ W.T + b + z @ R.T
        z = (h >= 1.0).double()
        v = h - z
        y, zbar = kappa * y + z @ V.T / tau, kappa * zbar + z
        error = (y - targets[t]) / tau
        for name in read:
            eligibility[name] = kappa * eligibility[name] + slope(h - 1.0)[..., None] * low[name][:, None]
            want[name] += ((error @ signals)[..., None] * eligibility[name]).sum(0)
        want["2.weight"] += error.T @ zbar
    return {**want, "0.bias": want["0.bias"].squeeze(-1)}
