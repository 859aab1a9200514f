"""Whole steps replayed from CUDA graphs, on every backend that computes on a GPU inside PyTorch.

Rules of this package:

- The step that is captured is the eager one. The first calls for a kind of batch are eager steps on a copy of the
  caller's data, which lies as the one that a graph reads; the next one is captured and replayed, so that no step is
  lost or made twice.
- A graph holds for one kind of batch (structure, shapes, strides, dtypes, numbers, carried states) and for everything
  else as it was: settings of modules, hyperparameters, where parameters and the states of the optimiser lie. All of it
  is compared at every call (``facts``); what differs is never replayed.
- Nothing that a step returns is memory of a graph.
- What cannot be captured raises, and leaves the network and the optimiser as they were before the call.
- ``torch.cuda`` is met in ``capture`` alone.
"""

from spikecore.training._cuda_graph.options import CudaOptions

__all__ = ["CudaOptions"]
