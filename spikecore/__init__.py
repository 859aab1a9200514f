"""One definition of a spiking neuron, written as equations; every accelerator runs it, trains it, and agrees on it."""

from spikecore import encode, functional, layers, losses, metrics, models, nir, plot, stochastic, surrogate
from spikecore._carried import load_state_dict_of_state, state_dict_of_state
from spikecore._convert import Conversion, convert, load_state
from spikecore._delay import Delay
from spikecore._packed import pack, unpack
from spikecore._plugins.hookspecs import hookimpl
from spikecore._plugins.registry import BackendStatus
from spikecore._plugins.selection import backends, use_backend
from spikecore._streaming import set_step
from spikecore._transforms import fuse, hoist, unfuse
from spikecore._version import __version__ as __version__
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
from spikecore.functional import carry_state, detach, project, reset, set_backend
from spikecore.inspect import Energy, Explanation, Seen, energy, explain, kernel_source, monitor
from spikecore.lang import Program, TraceError, ops
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


#: Names that are gone, and what to write now.
_GONE = {
    "packed_spikes": "sc.packed_spikes() is gone: sc.pack(net) puts in layers that keep spikes as bits",
    "unhoist": "sc.unhoist is gone: to keep the network as it was, hoist a copy, sc.hoist(copy.deepcopy(net))",
}


def __getattr__(name: str) -> object:
    raise AttributeError(_GONE.get(name, f"module {__name__!r} has no attribute {name!r}"))
