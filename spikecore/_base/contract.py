"""Contract of backends without torch, so that they are listed at once: its version, capabilities, descriptions, states
and exceptions. :mod:`spikecore.backend` names them for users.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Callable, Optional, Tuple, Union

#: A version of this contract as a plugin states it: ``(major, minor)``, or an integer N for ``(N, 0)``.
Api = Union[int, Tuple[int, int]]
#: Version of the contract of this spikecore, and the oldest one whose plugins it takes. A minor version adds what a
#: right plugin may ignore: attributes, methods and fields with a default that changes nothing, capabilities that are
#: off. A major version may ask something new of every plugin, or take something away. A plugin of a newer version is
#: refused: what it relies on would be ignored.
BACKEND_API: Tuple[int, int] = (1, 7)
OLDEST_API: Tuple[int, int] = (1, 0)

#: A device entry that stands for every device PyTorch has.
ANY_DEVICE = "*"


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a backend. All are off until declared; dispatch, the conformance suite and the docs read this
    object.

    The first flags are those of the inputs' dtypes (:mod:`spikecore.dtypes`); state and arithmetic are float32, or
    float64 for float64 inputs.
    """

    float16: bool = False
    bfloat16: bool = False
    float32: bool = False
    float64: bool = False
    #: Backward pass to the inputs.
    gradients: bool = False
    #: Backward pass to learnable parameters.
    parameter_gradients: bool = False
    #: Backward pass to the initial state and from the final one.
    state_gradients: bool = False
    #: Parameters with one value per channel.
    channel_parameters: bool = False
    #: Parameters with one value per neuron.
    full_parameters: bool = False
    #: ``run(record=...)``.
    record: bool = False
    #: Programs with more than one input, or more than one output.
    several_inputs: bool = False
    several_outputs: bool = False
    #: Batch normalisation in front of a program: the gradient of the first input through its own statistics
    #: (``program.normalised``). It takes ``channel_parameters`` and, for gradients, ``parameter_gradients``, too.
    normalisation: bool = False
    #: The same of a shortcut, which is a second input: any row of ``program.normalised``.
    normalised_shortcut: bool = False
    #: Outputs that come back through a matrix, within one call over all steps (:attr:`Spec.feedback`).
    recurrent: bool = False
    #: A feedback with ``detach``, with delays, or between other ends than the first input and output.
    feedback_options: bool = False
    #: Feedback of several matrices, or of one into several inputs.
    feedback_gates: bool = False
    #: ``torch.compile(fullgraph=True)``.
    torch_compile: bool = False

    def names(self) -> Tuple[str, ...]:
        """The declared capabilities, in the order of this class."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name))


@dataclass(frozen=True)
class BackendInfo:
    """Description of a backend, given by its plugin. Cheap: no heavy import, no device access."""

    #: The backend's name: lower-case identifier, equal to the entry point's name.
    name: str
    #: ``"package.module:Class"``, imported on first use; called without arguments.
    factory: str
    #: torch device types whose tensors it takes, or ``("*",)`` for all but those in ``never``.
    devices: Tuple[str, ...]
    capabilities: Capabilities
    #: None when usable here, else the reason in words. May touch the driver; must not raise.
    probe: Callable[[], Optional[str]]
    #: Lowest version of this contract that has all the plugin uses. State it.
    api: Api = BACKEND_API
    #: Command or advice that installs what ``probe`` misses, for example ``"pip install 'spikecore[cuda12]'"``.
    install_hint: str = ""
    #: Device types that ``"*"`` does not stand for.
    never: Tuple[str, ...] = ()
    #: Name of the substitute that computes here, such as an emulator; "" if the backend itself does. Asked after the
    #: probe.
    note: Optional[Callable[[], str]] = None

    def takes(self, device_type: str) -> bool:
        """True if the backend takes tensors of this device type."""
        return device_type in self.devices or (ANY_DEVICE in self.devices and device_type not in self.never)


@dataclass(frozen=True)
class BackendStatus:
    """One line of what :func:`spikecore.backends` gives. A field is empty (``api``: None) while it is not known."""

    name: str
    #: ``ready``, ``unavailable``, ``failed``, ``blocked``, ``shadowed``, or of what nobody has tried yet ``installed``,
    #: and ``not installed`` where the library of a built-in backend is not here.
    state: str
    distribution: str
    version: str
    api: Optional[Api]
    devices: Tuple[str, ...]
    #: Names of the declared capabilities.
    capabilities: Tuple[str, ...]
    #: Reason for the state, and the way out; for a ready backend the substitute that computes, if any.
    detail: str
    #: Device types whose tensors automatic choice may give to it.
    automatic: Tuple[str, ...] = ()


for _kind in (Capabilities, BackendInfo, BackendStatus):  # the names that users have
    _kind.__module__ = "spikecore.backend"


# -- exceptions


class BackendError(RuntimeError):
    """Something is wrong with the backend that was asked for; the message says what and the way out."""

    __module__ = "spikecore.backend"


class UnknownBackend(BackendError):
    """No backend has this name."""

    __module__ = "spikecore.backend"


class BackendUnavailable(BackendError):
    """The backend exists but cannot be used here, for example because there is no such device."""

    __module__ = "spikecore.backend"


class BackendLoadError(BackendError):
    """The backend is installed but broken: import error, wrong API version, name conflict. See ``__cause__``."""

    __module__ = "spikecore.backend"


class Unsupported(BackendError, NotImplementedError):
    """The backend works here but does not do what this call needs."""

    __module__ = "spikecore.backend"
