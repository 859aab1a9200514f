"""Networks that one device does not hold: stages on several devices, and activations that are computed again.

Rules of this package:

- What it computes is what the plain network computes; where numbers can differ, the docstring says in what.
- One process. Several processes are torch's own: DistributedDataParallel, FSDP, torch.distributed.pipelining.
- Names in a ``state_dict`` are those of the plain network.
- What a network does is said, by ``batch_dim`` or by what ``sc.checkpoint`` returns, and not found out.
- Nothing here asks for a kind of device where torch need not be told: a pipeline over ``"cpu"`` runs the same code.
"""

from spikecore.parallel._again import checkpoint_contexts
from spikecore.parallel._checkpoint import Checkpointed, Grouped, checkpoint
from spikecore.parallel._pipeline import Pipeline

__all__ = ["Checkpointed", "Grouped", "Pipeline", "checkpoint", "checkpoint_contexts"]
__dir__ = __all__.copy
