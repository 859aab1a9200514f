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
    value_of,
    values,
)
from spikecore.graph._folding import computed, feature_axis, folded, norm_source
from spikecore.graph._in_place import Parts, Rewritten, function_of, read_block, read_parts
from spikecore.graph._read import NotFollowed, layers_in_turn, read

__all__ = [
    "CONVOLUTIONS",
    "DROPOUTS",
    "NORMS",
    "NOTHING",
    "Call",
    "Graph",
    "NotFollowed",
    "Parts",
    "Refused",
    "Rewritten",
    "check_outputs",
    "computed",
    "computed_by",
    "feature_axis",
    "folded",
    "function_of",
    "is_parametrised",
    "layer_of",
    "layers_in_turn",
    "norm_source",
    "read",
    "read_block",
    "read_parts",
    "readers_of",
    "run",
    "value_of",
    "values",
]
