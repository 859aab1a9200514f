"""Neurons as what NIR can say of them: leak, gain, threshold and reset, and a list of what it cannot.

One function for each class of neuron, in :data:`FORMS`; a class without one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor

from spikecore._shell import parameters
from spikecore.neuron import Neuron
from spikecore.neurons import IF, LI, LIF, PLIF, Leaky, Synaptic, SynapticLeaky
from spikecore.nir._neurons import NIRLI, NIRLIF, NIRCubaLI, NIRCubaLIF
from spikecore.surrogate import ATan


class Unsaid(NamedTuple):
    """What NIR cannot say of a neuron: the name that ``keep`` takes, and a sentence."""

    name: str
    sentence: str


@dataclass
class Form:
    """A neuron as ``v' = v + leak (v_leak - v) + gain x``, which may fire; values are numbers or tensors."""

    leak: Any
    gain: Any
    v_leak: Any = 0.0
    #: None: it does not fire.
    threshold: Any = None
    v_reset: Any = 0.0
    #: Leak and gain of a synaptic current before it.
    synapse: Optional[Tuple[Any, Any]] = None
    unsaid: Sequence[Unsaid] = ()

    def arrays(self, neuron: Neuron, shape: Sequence[int]) -> Dict[str, Any]:
        """Every value in float64, one for each neuron."""
        values = {"leak": self.leak, "gain": self.gain, "v_leak": self.v_leak}
        if self.threshold is not None:
            values.update(threshold=self.threshold, v_reset=self.v_reset)
        if self.synapse is not None:
            values.update(syn_leak=self.synapse[0], syn_gain=self.synapse[1])
        placed, _ = parameters.place(type(neuron).__name__, list(values.items()), (1, *shape), neuron.channel_dim)
        return {name: _spread(value, shape) for name, value in zip(values, placed)}


def _spread(value: Any, shape: Sequence[int]) -> Any:
    array = value.numpy() if isinstance(value, Tensor) else np.float64(value)
    return np.ascontiguousarray(np.broadcast_to(array, (1, *shape))[0])


def _exact(neuron: Neuron, name: str) -> Any:
    """A parameter as it is used, in float64."""
    value = getattr(neuron, name)
    return value.detach().cpu().double() if isinstance(value, Tensor) else value


def _nonzero(value: Any) -> bool:
    return bool((torch.as_tensor(value) != 0).any())


def _fires(neuron: Any, reset_delay: bool = False) -> List[Unsaid]:
    """What NIR cannot say of a neuron that fires."""
    found = []
    if neuron.reset == "soft":
        found.append(Unsaid("soft_reset", "resets by subtraction (reset='soft'), NIR resets to v_reset"))
    elif neuron.reset == "none":
        found.append(Unsaid("no_reset", "is not reset (reset='none'), NIR resets to v_reset"))
    if reset_delay and neuron.reset != "none":
        found.append(
            Unsaid("delayed_reset", "is reset one step after it fired (reset_delay=True), NIR resets it at once")
        )
    if neuron.surrogate != ATan():
        found.append(Unsaid("surrogate", f"has surrogate={neuron.surrogate!r}, which NIR has no word for"))
    if neuron.detach_reset:
        found.append(Unsaid("detach_reset", "has detach_reset=True, a rule for gradients that NIR has no word for"))
    return found


def _if(neuron: Any) -> Form:
    v_reset = _exact(neuron, "v_reset")
    return Form(0.0, 1.0, v_reset, _exact(neuron, "threshold"), v_reset, unsaid=_fires(neuron))


def _lif(neuron: Any) -> Form:
    v_reset, leak = _exact(neuron, "v_reset"), 1.0 / _exact(neuron, "tau")
    gain = leak if neuron.decay_input else 1.0
    return Form(leak, gain, v_reset, _exact(neuron, "threshold"), v_reset, unsaid=_fires(neuron))


def _plif(neuron: Any) -> Form:
    v_reset, leak = (
        _exact(neuron, "v_reset"),
        torch.sigmoid(torch.as_tensor(_exact(neuron, "w"), dtype=torch.float64, device="cpu")),
    )
    gain = leak if neuron.decay_input else 1.0
    return Form(leak, gain, v_reset, _exact(neuron, "threshold"), v_reset, unsaid=_fires(neuron))


def _li(neuron: Any) -> Form:
    leak = 1.0 / _exact(neuron, "tau")
    return Form(leak, leak if neuron.decay_input else 1.0, _exact(neuron, "v_rest"))


def _leak(neuron: Neuron, name: str) -> Tensor:
    """What is lost in a step, of the part that stays, which the equations limit to [0, 1]."""
    return 1.0 - torch.as_tensor(_exact(neuron, name), dtype=torch.float64, device="cpu").clamp(0, 1)


def _leaky(neuron: Any) -> Form:
    unsaid = _fires(neuron, neuron.reset_delay)
    return Form(_leak(neuron, "beta"), 1.0, 0.0, _exact(neuron, "threshold"), 0.0, unsaid=unsaid)


def _synaptic_leaky(neuron: Any) -> Form:
    form = _leaky(neuron)
    form.synapse = _leak(neuron, "alpha"), 1.0
    return form


def _synaptic(neuron: Any) -> Form:
    unsaid, v_reset = _fires(neuron), _exact(neuron, "v_reset")
    if _nonzero(v_reset):
        unsaid.append(Unsaid("initial_state", "starts at v_reset and leaks to 0, in NIR it starts where it leaks to"))
    leak, syn_leak = 1.0 - _exact(neuron, "beta"), 1.0 - _exact(neuron, "alpha")
    return Form(leak, 1.0, 0.0, _exact(neuron, "threshold"), v_reset, (syn_leak, 1.0), unsaid)


def _nir(neuron: Any) -> Form:
    form = Form(1.0 - _exact(neuron, "decay"), _exact(neuron, "gain"), _exact(neuron, "v_leak"))
    if isinstance(neuron, NIRLIF):
        form.threshold, form.v_reset = _exact(neuron, "threshold"), _exact(neuron, "v_reset")
        unsaid = _fires(neuron, neuron.reset_delay)
        if neuron.many:
            unsaid.append(Unsaid("many_spikes", "may fire several spikes in a step (many=True), in NIR one"))
        form.unsaid = unsaid
    if isinstance(neuron, (NIRCubaLI, NIRCubaLIF)):
        form.synapse = 1.0 - _exact(neuron, "syn_decay"), _exact(neuron, "syn_gain")
    return form


#: The neurons that NIR can say, by their exact class.
FORMS: Dict[Type[Neuron], Callable[[Any], Form]] = {
    IF: _if,
    LIF: _lif,
    PLIF: _plif,
    LI: _li,
    Leaky: _leaky,
    Synaptic: _synaptic,
    SynapticLeaky: _synaptic_leaky,
    NIRLI: _nir,
    NIRLIF: _nir,
    NIRCubaLI: _nir,
    NIRCubaLIF: _nir,
}
