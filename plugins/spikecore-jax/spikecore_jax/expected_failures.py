"""Conformance cases that fail on a device, with the cause: :attr:`spikecore.backend.Backend.expected_failures`.

On a CPU the runtime of XLA turns subnormal numbers into 0, whatever its options say (jaxlib 0.10.2: ``xla_cpu_ftz``
changes nothing). A spike differs only where a potential is that near to a threshold of 0.

A failure is expected only if the suite says that every number that differs is beside a subnormal one; with another
difference in the same case the text says nothing of subnormal numbers, and the case is a failure.
"""

from __future__ import annotations

from typing import Dict

from spikecore.testing import ExpectedFailure

_REASON = "XLA's runtime for CPUs flushes subnormal numbers to zero"
_BESIDE = ExpectedFailure(_REASON, match="each of these is beside a subnormal number", devices=("cpu",))
_AS_ZERO = ExpectedFailure(_REASON, match="every value that differs came as 0 and is subnormal", devices=("cpu",))

#: The cases of operations whose numbers have subnormal ones among them.
_EDGES = """
log log-gradient-zero log-gradient-infinite sqrt sqrt-gradient sqrt-gradient-zero sqrt-gradient-infinite
abs-gradient sign floor relu relu-gradient power-root power-root-gradient spike spike-strict power power-gradient
power-gradient-zero power-gradient-infinite minimum minimum-gradient maximum maximum-gradient add sub mul div
div-gradient div-gradient-zero div-gradient-infinite ge gt le lt eq ne and clamp-below clamp-below-gradient
clamp-above clamp-above-gradient clamp clamp-gradient select select-gradient surrogate-leakykrelu-gradient
surrogate-logtailedrelu-gradient constant-infinite constant-zero constant-subnormal constant-inexact
constant-large constant-beyond-float32 input-gradient-bfloat16 ceil rsqrt rsqrt-gradient-infinite remainder
remainder-gradient
"""
EXPECTED: Dict[str, ExpectedFailure] = {
    **{f"edges/{name}": _BESIDE for name in _EDGES.split()},
    "robust/subnormal": _AS_ZERO,
}
