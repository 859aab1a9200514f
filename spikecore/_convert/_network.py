"""Every module of a network, looked at once."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch import nn

from spikecore._convert import _spikingjelly
from spikecore._convert._report import Conversion, Left
from spikecore._shell.checks import shown

#: How a module becomes one of ours: called, it changes the module and says what computes it now.
Change = Callable[[], str]
#: Packages whose modules are known, and what finds the change for a module: None for one that needs none.
LIBRARIES: Dict[str, Callable[[Any], Optional[Change]]] = {"spikingjelly": _spikingjelly.change}


def convert(net: nn.Module, *, strict: bool = False) -> Conversion:
    """Have spikecore compute the neurons of a SpikingJelly network, in place; gives a :class:`Conversion` back.

    ::

        from spikingjelly.activation_based import functional, layer, neuron

        net = nn.Sequential(layer.Conv2d(1, 8, 3), neuron.LIFNode(), layer.Flatten(), layer.Linear(8 * 26 * 26, 10))
        functional.set_step_mode(net, "m")
        print(sc.convert(net))  # what was replaced by what, and what was left, with the reason
        sc.set_backend(net, "cupy")  # and all else that takes neurons
        y = net(x)  # [T, B, ...], as before
        functional.reset_net(net)  # as before

    ``forward`` of the network, its loop over time, and calls of the other library on it stay as they are: spikes are
    the same, and gradients are those of the same equations. Values are those that the module has now: parameters,
    learnt and fixed, are the same tensors as before, so an optimiser made before goes on; the state that it carries
    stays. ``state_dict()`` has the same keys, and takes checkpoints from before. Buffers for numbers that a neuron of
    SpikingJelly holds as attributes (``v_threshold``, ``tau``) do not appear: reading and setting these reaches the
    neuron. What has another meaning here is left: the module runs as before, and is listed with the reason.

    Each replaced module holds a neuron of spikecore as ``module.neuron``. Steps "s" and "m" give a call of one step and
    one of all steps; what loops over steps one by one gets no faster by this. ``MultiStepContainer`` and a stateful
    ``StepModeContainer`` give all steps at once to the neurons in them.

    net: any module; it is changed. A copy that stays as it is: ``copy.deepcopy(net)`` before.
    strict: raise ValueError with the list if a module would be left, before anything is changed. Otherwise a
        UserWarning has the list.

    Raises TypeError for what is no module, and ValueError for a network without a module of SpikingJelly. Which
    neurons, arguments and surrogates there are is in the guide's page on converting.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.convert: net={shown(net)} must be a network (an nn.Module)")
    changes: List[Tuple[str, nn.Module, Change]] = []
    left: Dict[str, str] = {}
    seen = 0
    for name, module in net.named_modules():
        find = _library(module)
        if find is None:
            continue
        seen += 1
        try:
            change = find(module)
        except Left as reason:
            left[name] = f"{type(module).__name__}: {reason}"
            continue
        if change is not None:
            changes.append((name, module, change))
    if not seen:
        known = " or ".join(sorted(LIBRARIES))
        raise ValueError(f"sc.convert: no module of {known} in this {type(net).__name__}; there is nothing to convert")
    if left and strict:
        raise ValueError(f"sc.convert: with strict=True nothing was changed\n{Conversion({}, left)}")
    replaced = {}
    for name, module, change in changes:
        was = type(module).__name__
        replaced[name] = f"{was} -> {change()}"
    done = Conversion(replaced, left)
    if left:
        warnings.warn(f"sc.convert left modules as they are\n{Conversion({}, left)}", stacklevel=2)
    return done


def _library(module: nn.Module) -> Optional[Callable[[Any], Optional[Change]]]:
    """What knows the classes of a module, if any library does: the first of its bases that is not the user's says."""
    for base in type(module).__mro__:
        library = LIBRARIES.get(base.__module__.partition(".")[0])
        if library is not None:
            return library
    return None
