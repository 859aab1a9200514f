"""``spikecore bench``: how fast the backends are here, beside a copy of the data and other libraries.

Rules of this package:

- Everything is chosen at run time. Who cannot take part is listed with the reason; an implementation that fails is a
  row that says why, and loses nothing else.
- Spikes and gradients are checked before anything is timed. A backend that is wrong has no time; another library that
  computes something else has one, and the difference beside it.
- What is compared is measured in one run, in turns.
- ``spikecore`` declares the options of the command, and imports :mod:`spikecore_bench.command` when it runs.

Entry points: :func:`spikecore_bench.run.prepare` and :func:`~spikecore_bench.run.measure`, which fill a
:class:`~spikecore_bench.report.Report` under a :class:`~spikecore_bench.settings.Settings`.
"""

__version__ = "0.1.0"
