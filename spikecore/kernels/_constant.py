"""Programs whose inputs are the same at every step: the input as a parameter with one number per neuron.

A kernel reads such a parameter once, before the first step, and adds up its gradient over time in registers: forward
reads 1 / T of a word where it read one, backward writes 1 / T where it wrote one. The arithmetic of a step stays the
same, bit for bit. The program keeps the input, which no line reads, because a launch has its steps, dtype and device
from it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Dict, FrozenSet, List, Optional, Tuple

from torch import Tensor

from spikecore._shell.repeated import step_of
from spikecore.backend import BackendError, ParamValue, Runner, Spec, Tensors
from spikecore.kernels._again import Instead
from spikecore.lang import Node, Program
from spikecore.lang.node import substitute


def steps_of(program: Program, inputs: Tensors) -> Tuple[Optional[Tensor], ...]:
    """For each input the one step that it repeats, None for others; empty if no input that is read repeats one."""
    found = tuple([step_of(x) for x in inputs])
    if not any(step is not None for step in found):
        return ()
    read = _read(program)
    found = tuple([step if name in read else None for name, step in zip(program.inputs, found)])
    return found if any(step is not None for step in found) else ()


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


@lru_cache(maxsize=256)
def _read(program: Program) -> FrozenSet[str]:
    """The inputs that a step is computed from."""
    return frozenset(str(node.attr) for node in program.nodes if node.op == "input")


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
