"""Random neurons against an oracle that uses nothing of the language.

A program is drawn as a tree of our own (:mod:`.tree`, :mod:`.draw`), written as the Python source of a neuron class,
and evaluated twice: by a backend from that source, and by NumPy, operation by operation in source order, with reverse
rules of its own (:mod:`spikecore.testing._oracle.rules`, :mod:`.oracle`). :mod:`.case` draws everything around it:
values, layouts, dtypes, parameters, states, cotangents. :mod:`.call` runs it by a call of the neuron, :mod:`.step` in a
network that the backend's ``inference_model`` and ``training_model`` run, and :mod:`.check` compares. :mod:`.edges` is
a table of what holds at NaN, infinities, ties and zeros.

Everything follows from one seed. ``python -m spikecore.testing.random_programs torch --seed 7 --count 100`` runs the
programs 7 to 106; a program that fails says its seed, which ``--seed`` alone repeats.
"""

from spikecore.testing.random_programs._check import Difference, check, check_many, first_seed

__all__ = ["Difference", "check", "check_many", "first_seed"]
