"""Groups of neighbouring neurons: a thread may have several, far from one another, one after the other.

It then reads parameters per channel once for all of them, and adds up its parts of a gradient.
"""

from __future__ import annotations

from typing import List, Sequence

from spikecore.kernels.writing import indented
from spikecore_cupy.writer import Writer


class GroupWriter(Writer):
    """Writes the loop over the groups of a thread."""

    def takes_groups(self, learnt: Sequence[str]) -> bool:
        """Whether a thread has several groups of neighbouring neurons: where it adds up gradients of the ``learnt``
        parameters, and where it reads parameters per channel, which then are read once for all of them.
        """
        # A gradient for each neuron is no sum over groups, be it that of a parameter that no formula here reads.
        if any(self.kinds[name] == "full" for name in learnt):
            return False
        if any(leaf in self.used for leaf in self.params_of("full")):
            return False
        if learnt or any(leaf in self.used for leaf in self.params_of("channel")):
            self.first = self.unique("first")
            return True
        return False

    def over_groups(self, lines: Sequence[str]) -> List[str]:
        """The lines for each group of neurons of a thread."""
        span = self.argument("span", "span")
        if self.form.down:
            # the last neurons first
            begin = f"{self.first} + (neurons - 1 - {self.first}) / {span} * {span}"
            return [f"for (long long i = {begin}; i >= 0; i -= {span}) {{", *indented(lines), "}"]
        return [f"for (long long i = {self.first}; i < neurons; i += {span}) {{", *indented(lines), "}"]

    def block_sum(self, total: str, number: int) -> List[str]:
        """Lines that add up, over the threads of a block, what each has of a sum per channel, and store it."""
        tensor = self.argument(f"{total}s", "sum", "grad_params", number)
        lanes, period = self.argument("lanes", "lanes"), self.argument("period", "period")
        parts = self.unique("parts")
        return [
            f"block_totals({parts}, {total}, {lanes}, {period});",
            f"block_store({tensor}, {total}, {lanes}, {period});",
        ]
