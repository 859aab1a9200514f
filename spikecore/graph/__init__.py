"""One reader of networks: the calls of a network in order, who reads each value, and what each layer is used for."""

from __future__ import annotations

from spikecore.graph._calls import (
    CONVOLUTIONS,
    DROPOUTS,
    NORMS,
    NOTHING,
    Call,
    Graph,
    Refused,
    check_outputs,
    computed_by,
    is_parametrised,
    layer_of,
    readers_of,
    run,
    values,
)
from spikecore.graph._folding import computed, feature_axis, folded, norm_source
from spikecore.graph._read import NotFollowed, read

__all__ = [
    "CONVOLUTIONS",
    "DROPOUTS",
    "NORMS",
    "NOTHING",
    "Call",
    "Graph",
    "NotFollowed",
    "Refused",
    "check_outputs",
    "computed",
    "computed_by",
    "feature_axis",
    "folded",
    "is_parametrised",
    "layer_of",
    "norm_source",
    "read",
    "readers_of",
    "run",
    "values",
]
