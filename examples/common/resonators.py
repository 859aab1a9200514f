"""The network of ``examples/ecg.py`` in plain PyTorch, and its weights with the names of its authors.

In the authors' files (``torch.save`` of a training) the resonators have one matrix for inputs and feedback together.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from common.files import DataError


class Spike(torch.autograd.Function):
    """The spike of the resonators for :func:`loop`."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:  # noqa: D102
        (u,) = ctx.saved_tensors
        near, far = (torch.exp(-(u * u) / (2 * s * s)) / (s * math.sqrt(2 * math.pi)) for s in (0.5, 3.0))
        return cotangent * (0.5 * (1.15 * near - 0.3 * far))


def loop(net: Any, x: Tensor) -> Tensor:
    """Spikes ``[T, B, 4]`` to ``[T, B, 6]`` as the network computes them, one step after the other."""
    cell, dt = net.hidden.neuron, 0.01
    both = torch.cat((net.front.weight, net.hidden.linear.weight), 1)
    omega = cell.omega.abs()
    most = (-1 + torch.sqrt(1 - torch.square(dt * omega))) / dt - cell.b.abs()
    a = torch.exp(-1 / net.leak.tau.abs())
    u = v = q = z = x.new_zeros(x.shape[1], len(omega))
    y, outputs = x.new_zeros(x.shape[1], len(a)), []
    for now in x:
        drive = nn.functional.linear(torch.cat((now, z), 1), both)
        b = most - q
        u, v = u + b * u * dt - omega * v * dt + drive * dt, v + omega * u * dt + b * v * dt
        z = Spike.apply(u - 1 - q)
        q = 0.9 * q + z
        y = a * y + (1 - a) * net.out(z)
        outputs.append(y)
    return torch.stack(outputs)


def timed(net: Any, x: Tensor, rounds: int = 5) -> Dict[str, float]:
    """Seconds of forward and backward, the least of some rounds in turn: the network, and :func:`loop`."""
    runs: Dict[str, Callable[[Tensor], Tensor]] = {"network": net, "loop": lambda x: loop(net, x)}
    least = dict.fromkeys(runs, math.inf)
    for place in range(rounds + 1):
        for name, run in runs.items():
            net.zero_grad()
            start = time.perf_counter()
            run(x).square().sum().backward()
            if x.device.type == "cuda":
                torch.cuda.synchronize()
            if place:  # the first round compiles
                least[name] = min(least[name], time.perf_counter() - start)
    return least


#: Inputs, then feedback: ``[36, 4 + 36]``.
DRIVE = "hidden.linear.weight"
#: What the authors multiply it with, where a file has that.
MASK = "hidden.linear.mask"
#: The authors' names for the others.
NAMES = {
    "hidden.omega": "hidden.neuron.omega",
    "hidden.b_offset": "hidden.neuron.b",
    "out.linear.weight": "out.weight",
    "out.tau_mem": "leak.tau",
}


def named(net: nn.Module) -> Dict[str, Tensor]:
    """The weights of a network by the authors' names."""
    own = {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}
    drive = torch.cat((own["front.weight"], own["hidden.linear.weight"]), 1)
    return {DRIVE: drive, **{theirs: own[ours] for theirs, ours in NAMES.items()}}


def put(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a network such weights. Raises KeyError or RuntimeError, as torch does, for those of another network."""
    inputs = net.state_dict()["front.weight"].shape[1]
    drive = weights[DRIVE] * weights[MASK] if MASK in weights else weights[DRIVE]
    own = {"front.weight": drive[:, :inputs], "hidden.linear.weight": drive[:, inputs:]}
    net.load_state_dict({**own, **{ours: weights[theirs] for theirs, ours in NAMES.items()}})


def save(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights; the file is replaced as a whole."""
    content = io.BytesIO()
    np.savez(content, **{name: value.numpy() for name, value in weights.items()})
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(content.getvalue())
    os.replace(str(beside), str(path))


def load(net: nn.Module, path: Path) -> None:
    """Give a network the weights of ``best.npz`` or of the authors' ``.pt``. Raises DataError."""
    try:
        put(net, _read(path))
    except FileNotFoundError:
        raise DataError(f"--weights {path} is not there") from None
    except (KeyError, RuntimeError, ValueError, OSError, EOFError, pickle.UnpicklingError) as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DataError(
            f"--weights {path} has not the weights of this network ({cause}); give best.npz of a run, or the authors' "
            "file"
        ) from error


def _read(path: Path) -> Dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(str(path)) as arrays:  # no pickles: these could run code
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    saved = torch.load(str(path), map_location="cpu", weights_only=True)
    return dict(saved["model_state_dict"])
