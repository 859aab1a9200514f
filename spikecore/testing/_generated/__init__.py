"""Cases of the conformance suite that nobody wrote: rows of a covering array, and random programs.

:mod:`.factors` has what a case is made of, :mod:`.row` writes one as text and reads it, :mod:`.covering` chooses rows
so that every pair of levels occurs, :mod:`.make` draws the numbers of a row, which
:mod:`spikecore.testing.random_programs` runs and compares, and :mod:`.shrink` finds, for a row that fails, the factors
that it takes. :mod:`.cases` makes cases of them: those of the seed of this release, those of another seed, and any row
by its text.
"""
