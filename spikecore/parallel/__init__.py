"""Networks that one device does not hold: stages on several devices, and activations that are computed again.

Rules of this package:

- What it computes is what the plain network computes; where numbers can differ, the docstring says in what.
- One process. Several processes are torch's own: DistributedDataParallel, FSDP, torch.distributed.pipelining.
- No layer is wrapped, so names in a ``state_dict`` are those of the plain network.
- Nothing here asks for a kind of device where torch need not be told: a pipeline over ``"cpu"`` runs the same code.
"""

from spikecore.parallel._pipeline import Pipeline
from spikecore.parallel._regions import checkpoint

__all__ = ["Pipeline", "checkpoint"]
