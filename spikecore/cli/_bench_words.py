"""What the tables of ``spikecore bench`` say around their figures: only of what is in them, and of this device."""

from __future__ import annotations

from typing import AbstractSet, List, Mapping, NamedTuple, Set, Tuple

from spikecore.bench._report import Report


class Said(NamedTuple):
    """A part of a title or a caption. ``{time}`` is what the clock of the device reads."""

    words: str
    #: A figure that the table must have, ``network`` for a row of one, or a status of a row.
    of: str = ""
    #: Where it is said: on a GPU, on the CPU, or both.
    device: str = ""


_TIME = Said("{time}")
_FRACTION = "fraction of a copy's speed"
_BATCH = Said("a batch of calls with one synchronisation at the end")
_COPY = "of copy: what must be moved at least, over the time, over the copy's bandwidth"
_NAMES = {
    "neurons": "Neurons",
    "layouts": "Neurons in several layouts",
    "steps": "Neurons at many numbers of steps",
    "calls": "Calls of small layers",
    "norms": "Batch normalisation and a neuron in one layer",
    "recurrent": "Layers with feedback beside nn.LSTM",
    "small": "Small layers",
    "beside": "Beside other libraries",
    "documents": "The tables of published tutorials",
    "networks": "Networks",
    "pipeline": "A network over several GPUs",
}
_TITLES: Mapping[str, Tuple[Said, ...]] = {
    "neurons": (_TIME, Said(_FRACTION, "training_fraction"), Said("peak extra memory", "memory_inputs")),
    "layouts": (_TIME, Said(_FRACTION, "training_fraction"), Said("peak extra memory", "memory_inputs")),
    "steps": (_TIME, Said(_FRACTION, "training_fraction")),
    "calls": (Said("wall time"), Said("beside a function that only allocates", "training_over_allocating")),
    "norms": (_TIME, Said("forward and backward")),
    "recurrent": (Said("forward and backward", "wall_ms"), Said("whole training steps", "step_ms")),
    "small": (Said("wall time per call"),),
    "beside": (Said("wall time per call"),),
    "documents": (Said("wall time per call"),),
    "networks": (Said("one training step with Adam"),),
    "pipeline": (Said("one training step with Adam"),),
}
_CAPTIONS: Mapping[str, Tuple[Said, ...]] = {
    "neurons": (Said(f"{_COPY}, so that 1.00 is the roofline", "training_fraction"),),
    "layouts": (Said(f"{_COPY}; inputs and outputs count, and no parameter", "training_fraction"),),
    "steps": (Said(f"{_COPY}; parameters of each channel are learnt, and do not count", "training_fraction"),),
    "calls": (_BATCH, Said("eager: the same layer, not compiled", "training_over_eager")),
    "norms": (
        Said("of copy: 8 words over the time, over the copy's bandwidth", "fraction"),
        Said("ReLU: compiled, behind batch normalisation", "time_over_relu"),
    ),
    "recurrent": (
        Said("device: its kernels", "device_ms", "cuda"),
        Said("few calls: wall time, in turns of a few calls", "device_ms", "cpu"),
        Said("wall: eager", "wall_ms"),
        Said("graph: captured", "graph_ms"),
        Said("kept: float32 for each number of the output", "held_words"),
    ),
    "small": (_BATCH, Said("waiting: one after every call", "training_waiting_ms")),
    "beside": (
        Said("/ SpikingJelly: its module is 1.00", "training_ratio"),
        Said("of a network, inference and a training step with Adam", "network"),
    ),
    "documents": (
        Said("a loop over time steps in plain torch is 1.00, forward and backward", "training_speedup"),
        Said("printed: by the document", "printed"),
    ),
    "networks": (
        Said("best ReLU: the network with ReLU in its fastest form", "time_over_best_relu"),
        Said("eager ReLU: in its first one", "time_over_relu"),
    ),
    "pipeline": (
        Said("the network's name has the input, and the images in a part of the batch"),
        Said("printed: by the document", "printed"),
    ),
}


def title(report: Report, suite: str) -> str:
    """What a table is of."""
    return f"{_NAMES[suite]}: {', '.join(_parts(report, suite, _TITLES[suite]))}"


def caption(report: Report, suite: str) -> str:
    """What the headings of its columns mean."""
    return "; ".join(_parts(report, suite, _CAPTIONS[suite]))


def nothing(report: Report, suite: str) -> str:
    """A line for a suite of which all was skipped."""
    reasons = dict.fromkeys(row.detail for row in report.of(suite))
    return f"{_NAMES[suite]}: nothing measured: {'; '.join(reasons)}"


def on_cpu(report: Report) -> bool:
    """Whether times are those of the host's clock."""
    return str(report.machine["device"]).startswith("cpu")


def _parts(report: Report, suite: str, said: Tuple[Said, ...]) -> List[str]:
    there, device = _there(report, suite), "cpu" if on_cpu(report) else "cuda"
    time = "wall time on the CPU" if device == "cpu" else "device time"
    return [
        one.words.format(time=time) for one in said if (not one.of or one.of in there) and one.device in ("", device)
    ]


def _there(report: Report, suite: str) -> AbstractSet[str]:
    """Figures and statuses of the rows, and whether there is a network."""
    found: Set[str] = set()
    for row in report.of(suite):
        found.update(row.figures, (row.status,), {"network"}.intersection(row.case))
    return found
