"""What a case may find on a device, with the cause: :attr:`spikecore.backend.Backend.expected_failures`.

On a CPU the runtime of XLA turns subnormal numbers into 0, whatever its options say (jaxlib 0.10.2: ``xla_cpu_ftz``
changes nothing). A spike differs only where a potential is that near to a threshold of 0.
"""

from __future__ import annotations

from typing import Dict

from spikecore.testing import ExpectedFailure

#: The cases whose numbers have subnormal ones among them.
_EDGES = """
log log-gradient-zero log-gradient-infinite sqrt sqrt-gradient sqrt-gradient-zero sqrt-gradient-infinite
abs-gradient sign floor power-root power-root-gradient spike spike-strict power power-gradient
power-gradient-zero power-gradient-infinite minimum minimum-gradient maximum maximum-gradient add sub mul div
div-gradient div-gradient-zero div-gradient-infinite ge gt le lt eq ne and clamp-below clamp-below-gradient
clamp-above clamp-above-gradient clamp clamp-gradient select select-gradient surrogate-leakykrelu-gradient
surrogate-logtailedrelu-gradient constant-infinite constant-zero constant-subnormal constant-inexact
constant-large constant-beyond-float32 input-gradient-bfloat16
"""
_OTHERS = ("robust/subnormal", "generated/pairs-047")

_FLUSHED = ExpectedFailure(
    "XLA's runtime for CPUs flushes subnormal numbers to zero", match=r"e-39|e-4\d|subnormal", devices=("cpu",)
)
EXPECTED: Dict[str, ExpectedFailure] = dict.fromkeys(
    [*(f"edges/{name}" for name in _EDGES.split()), *_OTHERS], _FLUSHED
)
