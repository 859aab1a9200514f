"""One definition of a spiking neuron, written as equations; every accelerator runs it, trains it, and agrees on it.

A name of ``sc`` is imported when it is first used, with what its module needs: ``import spikecore`` imports not even
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Dict, List, Mapping

from spikecore._version import __version__ as __version__

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from spikecore import encode, functional, layers, losses, metrics, models, nir, plot, stochastic, surrogate
    from spikecore._convert import Conversion, convert, load_state
    from spikecore._plugins.registry import BackendStatus, hookimpl
    from spikecore._plugins.selection import backends, use_backend
    from spikecore._transforms import fuse, hoist, unfuse
    from spikecore.backend import (
        Backend,
        BackendError,
        BackendInfo,
        BackendLoadError,
        BackendUnavailable,
        Capabilities,
        UnknownBackend,
        Unsupported,
    )
    from spikecore.functional import (
        carry_state,
        detach,
        load_state_dict_of_state,
        project,
        reset,
        set_backend,
        set_step,
        state_dict_of_state,
    )
    from spikecore.inspect import Energy, Explanation, Seen, energy, explain, kernel_source, monitor
    from spikecore.lang import Program, TraceError, ops
    from spikecore.layers._delay import Delay
    from spikecore.layers._packed import pack, unpack
    from spikecore.neuron import Neuron
    from spikecore.neurons import (
        ALIF,
        BRF,
        CLIF,
        EIF,
        GLIF,
        IF,
        KLIF,
        LI,
        LIF,
        PLIF,
        QIF,
        TCLIF,
        Alpha,
        Izhikevich,
        Lapicque,
        Leaky,
        Recurrent,
        SEAdLIF,
        Synaptic,
        SynapticLeaky,
        TernaryLIF,
    )
    from spikecore.parallel import Pipeline, checkpoint
    from spikecore.stochastic import EscapeNoise, Stochastic
    from spikecore.surrogate import Surrogate
    from spikecore.training import (
        CudaOptions,
        DataLoader,
        InferenceStep,
        TrainingOptions,
        TrainingStep,
        inference_model,
        load_checkpoint,
        save_checkpoint,
        training_model,
    )

__all__ = [
    "ALIF",
    "BRF",
    "CLIF",
    "EIF",
    "GLIF",
    "IF",
    "KLIF",
    "LI",
    "LIF",
    "PLIF",
    "QIF",
    "TCLIF",
    "Alpha",
    "Backend",
    "BackendError",
    "BackendInfo",
    "BackendLoadError",
    "BackendStatus",
    "BackendUnavailable",
    "Capabilities",
    "Conversion",
    "CudaOptions",
    "DataLoader",
    "Delay",
    "Energy",
    "EscapeNoise",
    "Explanation",
    "InferenceStep",
    "Izhikevich",
    "Lapicque",
    "Leaky",
    "Neuron",
    "Pipeline",
    "Program",
    "Recurrent",
    "SEAdLIF",
    "Seen",
    "Stochastic",
    "Surrogate",
    "Synaptic",
    "SynapticLeaky",
    "TernaryLIF",
    "TraceError",
    "TrainingOptions",
    "TrainingStep",
    "UnknownBackend",
    "Unsupported",
    "backends",
    "carry_state",
    "checkpoint",
    "convert",
    "detach",
    "encode",
    "energy",
    "explain",
    "functional",
    "fuse",
    "hoist",
    "hookimpl",
    "inference_model",
    "kernel_source",
    "layers",
    "load_checkpoint",
    "load_state",
    "load_state_dict_of_state",
    "losses",
    "metrics",
    "models",
    "monitor",
    "nir",
    "ops",
    "pack",
    "plot",
    "project",
    "reset",
    "save_checkpoint",
    "set_backend",
    "set_step",
    "state_dict_of_state",
    "stochastic",
    "surrogate",
    "training_model",
    "unfuse",
    "unpack",
    "use_backend",
]

#: Module -> names of ``sc`` that it has.
_NAMES: Mapping[str, str] = {
    "spikecore._convert": "Conversion convert load_state",
    "spikecore.layers._delay": "Delay",
    "spikecore._transforms": "fuse hoist unfuse",
    "spikecore.inspect": "Energy Explanation Seen energy explain kernel_source monitor",
    "spikecore.layers._packed": "pack unpack",
    "spikecore._plugins.registry": "BackendStatus hookimpl",
    "spikecore._plugins.selection": "backends use_backend",
    "spikecore.backend": (
        "Backend BackendError BackendInfo BackendLoadError BackendUnavailable Capabilities UnknownBackend Unsupported"
    ),
    "spikecore.functional": (
        "carry_state detach load_state_dict_of_state project reset set_backend set_step state_dict_of_state"
    ),
    "spikecore.lang": "Program TraceError ops",
    "spikecore.neuron": "Neuron",
    "spikecore.neurons": (
        "ALIF BRF CLIF EIF GLIF IF KLIF LI LIF PLIF QIF TCLIF Alpha Izhikevich Lapicque Leaky Recurrent "
        "SEAdLIF Synaptic SynapticLeaky TernaryLIF"
    ),
    "spikecore.parallel": "Pipeline checkpoint",
    "spikecore.stochastic": "EscapeNoise Stochastic",
    "spikecore.surrogate": "Surrogate",
    "spikecore.training": (
        "CudaOptions DataLoader InferenceStep TrainingOptions TrainingStep inference_model load_checkpoint "
        "save_checkpoint training_model"
    ),
}
_MODULES: Dict[str, str] = {name: module for module, names in _NAMES.items() for name in names.split()}
#: Public modules, which are attributes without an import of their own.
_PUBLIC = frozenset(
    "backend bench dtypes encode functional interpreter kernels lang layers losses metrics models neuron neurons nir "
    "parallel plot stochastic surrogate testing training".split()
)

#: Names that are gone, and what to write now.
_GONE = {
    "packed_spikes": "sc.packed_spikes() is gone: sc.pack(net) puts in layers that keep spikes as bits",
    "unhoist": "sc.unhoist is gone: to keep the network as it was, hoist a copy, sc.hoist(copy.deepcopy(net))",
}


if not TYPE_CHECKING:  # a checker would take every name for one of these

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return import_module(f"{__name__}.{name}")
        if name == "ops":  # a module of its package
            import_module(f"{__name__}.lang.ops")
        if name not in _MODULES:
            raise AttributeError(_GONE.get(name, f"module {__name__!r} has no attribute {name!r}"))
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> List[str]:
    return sorted({*globals(), *_MODULES, *_PUBLIC})
