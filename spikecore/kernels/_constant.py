"""Programs whose inputs are the same at every step: the input as a parameter with one number per neuron.

A kernel reads such a parameter once, before the first step, and adds up its gradient over time in registers: forward
reads 1 / T of a word where it read one, backward writes 1 / T where it wrote one. The arithmetic of a step stays the
same, bit for bit. The program keeps the input, which no line reads, because a launch has its steps, dtype and device
from it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Dict, List, Optional, Sequence, Tuple

from torch import Tensor

from spikecore._shell.repeated import made_step, step_of
from spikecore.backend import BackendError, ParamValue, Runner, Spec, Tensors
from spikecore.kernels._again import Instead
from spikecore.lang import Node, Program
from spikecore.lang._plain import is_compiling
from spikecore.lang.node import substitute


def steps_of(reads: Sequence[bool], inputs: Tensors) -> Tuple[Optional[Tensor], ...]:
    """For each input that is read the one step that it repeats, None for others; empty if none repeats one.

    ``reads``: see :func:`reads_of`.
    """
    # an x that came into a graph of torch.compile has a derivative of its own at every step
    of = made_step if is_compiling() else step_of
    found = tuple([of(x) if read else None for x, read in zip(inputs, reads)])
    return found if [step for step in found if step is not None] else ()


@lru_cache(maxsize=256)
def with_constants(program: Program, spec: Spec, which: Tuple[bool, ...]) -> Tuple[Program, Spec]:
    """The program whose inputs of ``which`` are parameters, the first ones, and the spec of its calls."""
    names: List[str] = []
    nodes: Dict[Node, Node] = {}
    for name, constant in zip(program.inputs, which):
        if constant:
            own = f"{name}_constant"
            while own in (*program.inputs, *program.states, *program.params, *names):
                own += "_"
            names.append(own)
            nodes[Node("input", (), name)] = Node("param", (), own)
    made = Program(
        program.name,
        inputs=program.inputs,
        states=program.states,
        outputs=[substitute(node, nodes) for node in program.outputs],
        next=[substitute(node, nodes) for node in program.next],
        initial=program.initial,
        params=(*names, *program.params),
        labels={substitute(node, nodes): label for node, label in program.labels.items()},
        numbers=program.numbers,
    )
    return made, replace(spec, params=("full",) * len(names) + spec.params, learn=(*names, *spec.learn))


def reads_of(program: Program) -> Tuple[bool, ...]:
    """For each input whether a step is computed from it."""
    read = {node.attr for node in program.nodes if node.op == "input"}
    return tuple([name in read for name in program.inputs])


def instead_of(instead: Instead, which: Tuple[bool, ...], spec: Spec) -> Instead:
    """What stands in for the kernels of a program with constants: the other backend's runner of the program itself."""
    if instead is None:
        return None
    other = instead

    def runner_after(error: BackendError) -> Runner:
        runner = other(error)

        def run(
            inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
        ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
            steps = iter(params)
            given = [
                next(steps).to(spec.dtype).expand(x.shape) if constant else x  # type: ignore[union-attr]  # tensors
                for x, constant in zip(inputs, which)
            ]
            return runner(tuple(given), state, tuple(steps), record)

        return run

    return runner_after
