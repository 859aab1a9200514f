"""One update of one weight, for each optimiser: PopART's equations, from the headers of its sources.

``g`` is the gradient, ``w`` the weight, everything of one shape. For half-precision weights PopTorch keeps moments in
float32, and so do these; the caller passes a weight in the precision of its state.

| state                  | of                                                                                      |
|------------------------|-----------------------------------------------------------------------------------------|
| ``Accl``               | SGD: the velocity; none without momentum                                                |
| ``Accl1``, ``Accl2``   | Adam, AdamW, LAMB: first and second moment. RMSprop: mean square, and mean, if centred   |
| ``Accl3``              | RMSprop: the velocity; none without momentum                                            |
| ``Step``               | Adam, AdamW, LAMB: the number of updates                                                |

The equations are those of ``torch.optim``, except for the dampening of :func:`sgd`.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Mapping, Tuple

from torch import Tensor

State = Dict[str, Tensor]
#: ``(weight, gradient, state, hyper-parameters)``; changes weight and state in place.
Formula = Callable[[Tensor, Tensor, State, Mapping[str, Any]], None]


def sgd(w: Tensor, g: Tensor, state: State, h: Mapping[str, Any]) -> None:
    """``g += weight_decay w``, ``v = momentum v + (1 - dampening) g``, ``w -= lr v``.

    With Nesterov's momentum, ``w -= lr (g + momentum v)``. The velocity begins at 0. torch lets it begin at g, and so
    does not dampen the first step, nor any without momentum.
    """
    g = _decayed(g, w, h)
    dampened = (1 - h["dampening"]) * g if h["dampening"] else g
    v = state["Accl"].mul_(h["momentum"]).add_(dampened) if "Accl" in state else dampened
    w.add_(g.add(v, alpha=h["momentum"]) if h["nesterov"] else v, alpha=-h["lr"])


def adam(w: Tensor, g: Tensor, state: State, h: Mapping[str, Any]) -> None:
    """``g += weight_decay w``, then ``w -= lr m̂ / (sqrt(v̂) + eps)`` with bias-corrected moments (Kingma & Ba, 2015)."""
    mean, deviation, correction = _moments(_decayed(g, w, h), state, h)
    w.addcdiv_(mean, deviation, value=-h["lr"] / correction)


def adamw(w: Tensor, g: Tensor, state: State, h: Mapping[str, Any]) -> None:
    """``w -= lr (m̂ / (sqrt(v̂) + eps) + weight_decay w)`` (Loshchilov & Hutter, 2018)."""
    mean, deviation, correction = _moments(g, state, h)
    w.mul_(1 - h["lr"] * h["weight_decay"]).addcdiv_(mean, deviation, value=-h["lr"] / correction)


def lamb(w: Tensor, g: Tensor, state: State, h: Mapping[str, Any]) -> None:
    """``w -= lr min(|w|, max_weight_norm) / |x| x``, ``x = m̂ / (sqrt(v̂) + eps) + weight_decay w`` (You et al., 2020).

    The trust ratio is 1 where either norm is 0. Without ``bias_correction`` the moments are not corrected.
    """
    mean, deviation, correction = _moments(g, state, h)
    direction = (mean / correction).div_(deviation).add_(w, alpha=h["weight_decay"])
    weight_norm, norm = min(float(w.norm()), h["max_weight_norm"]), float(direction.norm())
    w.sub_(direction, alpha=h["lr"] * (weight_norm / norm if weight_norm and norm else 1.0))


def rmsprop(w: Tensor, g: Tensor, state: State, h: Mapping[str, Any]) -> None:
    """``g += weight_decay w``, ``v = momentum v + g / (sqrt(s) + eps)``, ``w -= lr v``, s being the mean square of g.

    If centred, s is its variance.
    """
    g = _decayed(g, w, h)
    alpha = h["alpha"]
    square = state["Accl1"].mul_(alpha).addcmul_(g, g, value=1 - alpha)
    if "Accl2" in state:
        mean = state["Accl2"].mul_(alpha).add_(g, alpha=1 - alpha)
        square = square.addcmul(mean, mean, value=-1)
    deviation = square.sqrt().add_(h["eps"])
    if "Accl3" in state:
        w.add_(state["Accl3"].mul_(h["momentum"]).addcdiv_(g, deviation), alpha=-h["lr"])
    else:
        w.addcdiv_(g, deviation, value=-h["lr"])


def _decayed(g: Tensor, w: Tensor, h: Mapping[str, Any]) -> Tensor:
    return g.add(w, alpha=h["weight_decay"]) if h["weight_decay"] else g


def _moments(g: Tensor, state: State, h: Mapping[str, Any]) -> Tuple[Tensor, Tensor, float]:
    """Update the moments with ``g``; returns the first, ``sqrt(v̂) + eps``, and the divisor for ``m̂``."""
    first, second = h["betas"]
    step = float(state["Step"].add_(1))
    mean = state["Accl1"].mul_(first).add_(g, alpha=1 - first)
    square = state["Accl2"].mul_(second).addcmul_(g, g, value=1 - second)
    corrected = h.get("bias_correction", True)
    first, second = (1 - first**step, 1 - second**step) if corrected else (1.0, 1.0)
    return mean, (square.sqrt() / math.sqrt(second)).add_(h["eps"]), first
