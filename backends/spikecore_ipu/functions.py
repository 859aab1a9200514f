"""The operations of the language as PopTorch can compile and differentiate them.

Derivatives that are not an operation's own are written into the forward pass (:data:`spikecore.lang.eager.RECORDED`).
"""

from __future__ import annotations

from spikecore.lang.eager import RECORDED, TORCH, Functions

#: op name -> the function that PopTorch compiles: the reference's, but for those that are written above. The emulator
#: knows which functions of torch have a handler, and how PopART differentiates them.
PLAIN: Functions = {**TORCH, **RECORDED}
