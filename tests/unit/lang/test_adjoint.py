"""The adjoint of one step: which cotangents its expressions have, and what cannot be asked for."""

from __future__ import annotations

import refusals
import spikecore as sc
from spikecore.lang import topological


class TestStructure:
    def test_a_cotangent_that_does_not_arrive_is_in_no_expression(self):
        """A cotangent that does not arrive has no leaf, and a state that no cotangent leads to has none."""
        program = sc.LIF().program
        for asked, ops in (
            ({"final": False}, {"out_grad", "next_grad"}),
            ({"outputs": [False]}, {"next_grad"}),
            ({"outputs": [False], "final": False}, set()),
        ):
            found = program.adjoint(**asked)
            used = {node.op for node in topological([*found.inputs, *found.states]) if node.op.endswith("_grad")}
            assert used == ops, asked

    def test_the_final_states_that_are_asked_for(self):
        """Those that are named have a leaf, and those that a named one is computed from; others have none."""
        program = sc.Synaptic().program  # the potential is computed from the current, and not the other way round
        for final, names in (((), set()), (("v",), {"i", "v"}), (True, {"i", "v"}), (["i"], {"i"})):
            found = program.adjoint(outputs=[False], final=final)
            leaves = topological([*found.inputs, *found.states])
            assert {node.attr for node in leaves if node.op == "next_grad"} == names, final


test_refused = refusals.table(__file__, globals())
