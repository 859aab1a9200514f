"""``sc.convert``: neurons of snnTorch and SpikingJelly, in a network as it is, computed by neurons of spikecore; and
their checkpoints, ``sc.load_weights``; and networks of ReLUs as spiking ones, ``sc.ann2snn``.

Rules of ``sc.convert``:

- A module becomes another one in its place: the object stays, its class changes. So whatever refers to it goes on: the
  network's ``forward``, lists in plain attributes, hooks, optimisers, caches and registries of the other library.
- The new class is a subclass of the old one, with a neuron of spikecore as its child ``neuron``. It has the signature,
  the states and the attributes of the old one, and hands every step to the neuron.
- Keys of ``state_dict`` stay.
- What has another meaning here, or none, is left as it is, and named with the reason.
- The other library is imported by nothing here: a network that holds its modules has imported it.
"""

from spikecore_convert._ann2snn import ann2snn
from spikecore_convert._load import load_weights
from spikecore_convert._network import convert
from spikecore_convert._swapped import Conversion

__all__ = ["Conversion", "ann2snn", "convert", "load_weights"]
