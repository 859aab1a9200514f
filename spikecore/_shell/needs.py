"""What a call needs of a backend, against what the backend declares."""

from __future__ import annotations

from typing import Sequence, Tuple

from spikecore.backend import Capabilities, Spec
from spikecore.dtypes import NAMES
from spikecore.lang._program import Program


def lacking(
    capabilities: Capabilities,
    program: Program,
    spec: Spec,
    *,
    gradients: bool = False,
    state_gradients: bool = False,
    record: bool = False,
) -> Tuple[str, ...]:
    """Names of the capabilities that running ``program`` under ``spec`` takes and these do not have."""
    wanted: Sequence[Tuple[str, bool]] = (
        (NAMES[spec.dtype], True),
        ("gradients", gradients),
        ("parameter_gradients", bool(spec.learn)),
        ("state_gradients", state_gradients),
        ("channel_parameters", "channel" in spec.params),
        ("full_parameters", "full" in spec.params),
        ("record", record),
        ("normalisation", bool(program.statistics)),
        ("recurrent", spec.feedback is not None),
        ("several_inputs", len(program.inputs) > 1),
        ("several_outputs", len(program.outputs) > 1),
    )
    return tuple(name for name, wants in wanted if wants and not getattr(capabilities, name))
