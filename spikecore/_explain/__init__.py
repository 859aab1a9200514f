"""``sc.explain``: what a network does with its tensors, layer by layer, and what would make it faster.

Rules of this package:

- The network runs once, as it is: nothing of it is replaced, and everything is as before afterwards.
- What is said was seen in that run: by hooks of modules, by hooks of saved tensors, and by torch's profiler, which sees
  every operation of torch in it. Only the words that a compiled kernel moves are computed, as the bench computes them.
- Advice names what was seen, what to write, and comes in the order of what it is worth. What is wrong comes first.
- A setting is advised for the rate of a layer only with the rate that it gave when it was tried on the layer's input.
"""

from spikecore._explain._layers import Copy, Explanation, Layer
from spikecore._explain._run import explain

__all__ = ["Copy", "Explanation", "Layer", "explain"]
