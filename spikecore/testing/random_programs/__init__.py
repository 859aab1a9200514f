"""Random neurons against an oracle that uses nothing of the language.

:mod:`.draw` draws the text of a step and a call of it with Hypothesis. A backend runs the text as a neuron class; the
oracle runs it on NumPy's numbers (:mod:`._program`). :mod:`._check` compares the two as it compares any configuration.

``python -m spikecore.testing.random_programs torch --seed 7 --count 100`` runs a hundred programs; one that differs is
made simpler, and printed whole, with the command that draws it again. A process with the same modules draws the same
programs from a seed. With others it may not: Hypothesis also draws numbers that stand in the modules that are loaded.
"""

from spikecore.testing.random_programs._check import Difference, check, check_many, first_seed

__all__ = ["Difference", "check", "check_many", "first_seed"]
