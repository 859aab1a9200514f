"""Names that a neuron or ``sc`` does not have: which one is meant.

The tables have the names of other libraries. They are read where a keyword is unknown, and where ``sc`` has no such
name.
"""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from typing import Any, Dict, Iterable

_STATE = "a state: see neuron.state, or out, state = neuron.run(x, state=state)"
_FEEDBACK = "sc.Recurrent(neuron, linear)"
_SURROGATE = "surrogate, such as sc.surrogate.FastSigmoid(slope=25.0)"
#: Names of snnTorch and SpikingJelly -> what they are here.
PEERS: Dict[str, str] = {
    "spike_grad": _SURROGATE,
    "surrogate_function": _SURROGATE,
    "surrogate_disable": _SURROGATE,
    "reset_mechanism": "reset, 'soft' (by subtraction), 'hard' or 'none'",
    "graded_spikes_factor": "a product: factor * neuron(x)",
    "init_hidden": "step='single', which carries state until sc.reset(net)",
    "learn_alpha": "learn=('alpha',)",
    "learn_beta": "learn=('beta',)",
    "learn_threshold": "learn=('threshold',)",
    "mem": _STATE,
    "syn": _STATE,
    "output": "what out, state = neuron.run(x) returns",
    "all_to_all": _FEEDBACK,
    "linear_features": _FEEDBACK,
    "learn_recurrent": _FEEDBACK,
    "v_threshold": "threshold",
    "v_th": "threshold",
    "step_mode": "step, 'multi' or 'single'",
    "store_v_seq": "record: out, state, trace = neuron.run(x, record=('v',))",
    "v_seq": "record: out, state, trace = neuron.run(x, record=('v',))",
    "decay_input": "an option of LIF, PLIF and KLIF",
    "beta": "beta of sc.Leaky, or tau = 1 / (1 - beta) of sc.LIF(tau, decay_input=False)",
    "init_tau": "tau",
    "tau_mem": "tau",
    "c_decay": "alpha of sc.Synaptic",
    "v_decay": "beta of sc.Synaptic",
    "inhibition": "no option here: among the spikes keep that of the neuron with the highest potential",
    "state_quant": "no option here: round the states in a dynamics of your own, with sc.ops.round",
    "learn_graded_spikes_factor": "an nn.Parameter that the spikes are multiplied by",
    "store_state_seqs": "record: out, state, trace = neuron.run(x, record=('v',))",
}
_RESET = "sc.reset(net); a multi-step call begins at rest, and needs none"
_DETACH = "sc.detach(net); a multi-step call keeps no graph, and needs none"
_REST = (
    "not needed: a call takes all steps, [T, *N], and begins at rest; spk, state = neuron.run(x) gives the last state, "
    "and neuron.run(x, state=state) goes on from it"
)
_NONE = "in no class here: write its equations as dynamics of a subclass of sc.Neuron"
_SIGMOID = "surrogate=sc.surrogate.Sigmoid(4.0)"
_IN_TIME = "a layer of torch in sc.layers.TimeBatched(layer, ...)"
#: Their states, methods, classes and functions, which are read or called, and neither set nor given as keywords.
NAMES: Dict[str, str] = {
    "mem": "the state v: spk, state, trace = neuron.run(x, record=('v',)), then trace['v']",
    "syn": "the state i: spk, state, trace = neuron.run(x, record=('i',)), then trace['i']",
    "reset": _RESET,
    **dict.fromkeys(("reset_mem", "reset_hidden", "reset_net"), _RESET),
    **dict.fromkeys(("detach_hidden", "detach_net"), _DETACH),
    **dict.fromkeys(("init_leaky", "init_synaptic", "init_alpha", "init_lapicque"), _REST),
    **dict.fromkeys(("init_rleaky", "init_rsynaptic"), _REST),
    "single_step_forward": "a call of a neuron with step='single'",
    "multi_step_forward": "a call of a neuron with step='multi', the default",
    "set_step_mode": "sc.set_step(net, 'multi'), or 'single'",
    "spk": "what a call gives: spk = neuron(x)",
    "utils": "in sc itself: sc.reset(net), sc.detach(net)",
    "backprop": "sc.training_model(net, loss, optimizer); through time in parts within sc.carry_state(net)",
    "activation_based": "sc itself: sc.LIF, sc.layers, sc.reset, sc.set_step",
    "layer": "sc.layers",
    **dict.fromkeys(("LeakyParallel", "StateLeaky", "GatedLIFNode", "SimpleLIFNode"), _NONE),
    "SLSTM": "sc.layers.SLSTM(input_size, hidden_size)",
    "SConv2dLSTM": "sc.layers.SConv2dLSTM(in_channels, out_channels, kernel_size)",
    "SpikingLSTM": "sc.layers.SpikingLSTM(input_size, hidden_size)",
    "SpikingGRU": "sc.layers.SpikingGRU(input_size, hidden_size)",
    "RLeaky": "sc.Recurrent(sc.Leaky(beta), nn.Linear(C, C))",
    "RSynaptic": "sc.Recurrent(sc.SynapticLeaky(alpha, beta), nn.Linear(C, C))",
    "IFNode": f"sc.IF({_SIGMOID})",
    "LIFNode": f"sc.LIF({_SIGMOID})",
    "ParametricLIFNode": f"sc.PLIF({_SIGMOID})",
    "KLIFNode": f"sc.KLIF({_SIGMOID})",
    "QIFNode": f"sc.QIF({_SIGMOID})",
    "EIFNode": f"sc.EIF({_SIGMOID})",
    "IzhikevichNode": f"sc.Izhikevich({_SIGMOID})",
    "TernaryLIFNode": f"sc.TernaryLIF({_SIGMOID})",
    "CUBALIFNode": "sc.Synaptic(threshold=0.5, surrogate=sc.surrogate.Rectangular(1.0))",
    "ComplementaryLIFNode": "sc.CLIF(surrogate=sc.surrogate.Rectangular(1.0))",
    "NonSpikingLIFNode": "sc.LI()",
    "MultiStepIFNode": f"sc.IF({_SIGMOID})",
    "MultiStepLIFNode": f"sc.LIF({_SIGMOID})",
    "MultiStepParametricLIFNode": f"sc.PLIF({_SIGMOID})",
    **dict.fromkeys(("LIFCell", "LICell"), "sc.LIF(step='single'), or sc.LI(step='single')"),
    **dict.fromkeys(("LIFRecurrent", "LIFRecurrentCell"), "sc.Recurrent(sc.LIF(), nn.Linear(C, C))"),
    "CobaLIFCell": "sc.CobaLIF(), and sc.Recurrent around it",
    "MPBNLIFNode": "sc.layers.Between(sc.LI(tau), norm, fire)",
    "LIFParameters": "the arguments of a neuron, such as sc.LIF(tau=2.0, threshold=1.0)",
    "SequentialState": "nn.Sequential: neurons take all steps, and begin at rest",
    "PoissonEncoder": "sc.encode.Poisson(T)",
    **dict.fromkeys(("Linear", "Dense"), "nn.Linear of torch, which takes [T, B, C] as it is"),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "Flatten", "MaxPool2d", "AvgPool2d"), _IN_TIME),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), _IN_TIME),
    "SeqToANNContainer": "sc.layers.TimeBatched(layer, ...)",
    "MultiStepContainer": "sc.layers.TimeBatched(layer, ...), or the neuron alone, which takes all steps",
    "seq_to_ann_forward": "sc.layers.TimeBatched(layer, ...)",
    "Dropout": "sc.layers.SequenceDropout(p), with one mask for all steps",
    "VotingLayer": "sc.layers.Voting(voters)",
    "ce_count_loss": "sc.losses.ce_count",
    "cross_entropy": "sc.losses.ce_count of spikes and sc.losses.ce_max_membrane of potentials, over time",
    "ce_rate_loss": "sc.losses.ce_rate",
    "ce_max_membrane_loss": "sc.losses.ce_max_membrane",
    "ce_temporal_loss": "sc.losses.ce_temporal",
    "mse_count_loss": "sc.losses.mse_count",
    "mse_membrane_loss": "sc.losses.mse_membrane",
    "mse_temporal_loss": "sc.losses.mse_temporal",
    "l1_rate_sparsity": "sc.losses.rate_sparsity",
    "accuracy_rate": "sc.metrics.accuracy(spikes, targets)",
    "accuracy_temporal": "sc.metrics.accuracy(spikes, targets, by='first_spike')",
    "atan": "sc.surrogate.ATan(alpha)",
    "fast_sigmoid": "sc.surrogate.FastSigmoid(slope)",
    "sigmoid": "sc.surrogate.Sigmoid(alpha)",
    "Rect": "sc.surrogate.Rectangular(alpha)",
    "DeterministicPass": "sc.surrogate.StraightThrough()",
    "SquarewaveFourierSeries": "sc.surrogate.SquarewaveFourier(n, T_period)",
    "straight_through_estimator": "sc.surrogate.StraightThrough()",
    "spikegen": "sc.encode",
    **dict.fromkeys(("train", "fit"), "sc.training_model(net, loss, optimizer), which makes one step a call"),
    "summary": "sc.explain(net, x)",
    "save": "torch.save(net.state_dict(), path), or sc.save_checkpoint(path, settings, step=step.state_dict())",
    "load": "net.load_state_dict(torch.load(path)), or sc.load_checkpoint(path, settings)",
    "to_snn": "sc.ann2snn(net, data, steps=16)",
    "rate": "sc.encode.Poisson(T)",
}
#: Arguments of these libraries, which are no attributes that anybody would set.
_ARGUMENTS: Dict[str, str] = {
    "V": _FEEDBACK,
    "conv2d_channels": _FEEDBACK,
    "kernel_size": _FEEDBACK,
    "R": "the resistance of sc.Lapicque",
    "C": "the capacity of sc.Lapicque",
    "time_step": "of sc.Lapicque alone; other neurons have their time constants in time steps",
    "decode": "a function of what sc.LI gives, such as out[-1] or out.mean(0)",
}
#: Options of layers of torch that a neuron does not take -> what holds instead.
_OF_TORCH: Dict[str, str] = {
    "device": "a neuron computes where its input is, and net.to(device) moves its parameters",
    "dtype": "the output has the dtype of the input, and net.to(dtype) converts parameters",
    "compile": "use torch.compile(net), or compile=True in sc.TrainingOptions or sc.CudaOptions",
}
#: States of snnTorch -> ours.
_STATES: Dict[str, str] = {"mem": "v", "syn": "i"}
#: Name -> values of these libraries -> ours.
_VALUES: Dict[str, Dict[Any, str]] = {
    "reset": {"subtract": "'soft'", "zero": "'hard'"},
    "step": {"m": "'multi'", "s": "'single'"},
}


def hint(name: str, names: Iterable[str]) -> str:
    """A sentence on what an unknown name may mean, with a space after it; empty if nothing is close."""
    meant = PEERS.get(name, _ARGUMENTS.get(name))
    if meant is not None:
        return f"what other libraries call {name!r} is {meant}. "
    if name in _OF_TORCH:
        return f"{_OF_TORCH[name]}. "
    lowered = {each.lower(): each for each in names}  # LIF is near to Lif
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean {lowered[close[0]]!r}? " if close else ""


def missing_in(module: str, name: str) -> str:
    """Message for a module of Python without such a name."""
    text = f"module {module!r} has no attribute {name!r}"
    if name in NAMES:
        return f"{text}; what other libraries call {name!r} is {NAMES[name]}"
    if module == "spikecore" and name in dir(import_module("spikecore.functional")):
        return f"{text}; it is sc.functional.{name}"
    meant = hint(name, sorted(each for each in dir(sys.modules[module]) if not each.startswith("_")))
    return f"{text}; {meant.rstrip('. ')}" if meant else text


def hint_of_state(names: Iterable[str]) -> str:
    """The end of a sentence on names that are no states of a neuron: those of snnTorch; empty for others."""
    meant = [f"{name!r} is {_STATES[name]!r}" for name in names if name in _STATES]
    return f"; what other libraries call {', '.join(meant)}" if meant else ""


def hint_of_surrogate(value: Any) -> str:
    """The end of a sentence on what is no surrogate here: an object or a function of another library, or a name."""
    name = value if isinstance(value, str) else getattr(value, "__qualname__", type(value).__name__)
    name = name.partition(".")[0]  # snnTorch's are functions within functions
    ours = NAMES.get(name, "")
    if not ours and hasattr(sys.modules["spikecore.surrogate"], name):
        ours = f"sc.surrogate.{name}"
    return f"; what other libraries call {name!r} is {ours}" if ours.startswith("sc.surrogate.") else ""


def hint_of_value(name: str, value: Any) -> str:
    """The end of an error's sentence: what a value of another library is here; empty if it is none."""
    if name == "v_reset" and value is None:
        return "; for a reset by subtraction write reset='soft'"
    ours = _VALUES.get(name, {}).get(value) if isinstance(value, str) else None
    return f"; what other libraries call {value!r} is {name}={ours}" if ours else ""
