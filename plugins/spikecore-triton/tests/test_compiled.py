"""Results of compilers for the kernels, for GPUs that need not be there: the arithmetic meant, and wide accesses."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Callable, Dict, List

import pytest

from spikecore.neurons import MODELS

NEURONS = [{"neuron": name} for name in MODELS]
#: The fixture of conftest.py.
Build = Callable[[List[Dict[str, Any]]], List[Dict[str, Any]]]


def instructions(text: str) -> Counter[str]:
    """The instructions of a text, counted."""
    return Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]+)\s", text, re.MULTILINE))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_neuron_compiles_to_the_arithmetic_that_is_meant(built: Build, arithmetic: List[str], dtype: str) -> None:
    """Neither fused multiply-adds nor flushed subnormals; approximate division in the surrogate derivative alone."""
    cases = [{"neuron": name, "dtype": dtype, "steps": 3} for name in arithmetic]
    for case, answer in zip(cases, built(cases)):
        for direction in ("forward", "backward"):
            found = instructions(answer[direction])
            assert found, case
            assert not [name for name in found if re.search(r"^(fma|mad)\S*\.f\d|ftz|approx", name)], (case, direction)
            divisions = {name for name in found if name.startswith("div")}
            assert divisions <= ({"div.rn.f32"} if direction == "forward" else {"div.rn.f32", "div.full.f32"})


@pytest.mark.parametrize("neuron", [*NEURONS, {"neuron": "Everything"}], ids=lambda n: n["neuron"])
def test_every_kernel_compiles(built: Build, neuron: Dict[str, Any]) -> None:
    """Parameters of every kind, recorded states and states with gradients, few steps and many, for NVIDIA and AMD."""
    kinds = [{"kind": kind, "record": True, "final": True} for kind in ("scalar", "channel", "full")]
    cases = [{**neuron, **rest, "dtype": "float16", "steps": 2} for rest in ({}, *kinds)]
    cases += [{**cases[-1], "target": target} for target in ("sm_80", "gfx942", "gfx950", "gfx1100", "gfx1250")]
    if neuron["neuron"] != "Everything":  # which takes minutes of compilation, sixteen times over
        cases.append({**neuron, "dtype": "bfloat16", "steps": None, "left": 2, "record": True, "kind": "scalar"})
    for case, answer in zip(cases, built(cases)):
        for direction in ("forward", "backward"):
            assert re.search(r"st\.global|global_store", answer[direction]), case


def test_functions_are_those_of_the_language(built: Build) -> None:
    """Minimum and maximum are choices, at ties, too; subnormal numbers go through floor and the library's functions."""
    (answer,) = built([{"neuron": "Everything", "dtype": "float32", "steps": 1}])
    found = instructions(answer["forward"])
    assert {"setp.lt.f32", "setp.gt.f32", "cvt.rmi.f32.f32", "sqrt.rn.f32", "cvt.rni.f32.f32"} <= set(found)
    assert not [name for name in found if re.match(r"(min|max)\S*\.f32", name)]
    assert "cvt.rmi.ftz.f32.f32" not in found


def test_every_surrogate_compiles(built: Build) -> None:
    """With its derivative inside LIF."""
    import spikecore as sc

    every = sc.Surrogate.__subclasses__()
    names = [surrogate.__name__ for surrogate in every if surrogate.__name__ in sc.surrogate.__all__]
    cases = [{"neuron": "LIF", "surrogate": name, "dtype": "float32", "steps": 2} for name in names]
    assert len(built(cases)) == len(names) > 15


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("steps", [4, 16])
def test_a_thread_moves_eight_bytes_at_a_time(built: Build, dtype: str, steps: int) -> None:
    """All of x and the cotangent in, all of the output or gradient out, nothing else, nothing through shared memory."""
    (answer,) = built([{"neuron": "LIF", "dtype": dtype, "steps": steps}])
    for direction, reads in (("forward", 1), ("backward", 2)):
        found = instructions(answer[direction])
        moved = {name: count for name, count in found.items() if re.match(r"(ld|st)\.(global|shared|local)", name)}
        # what backward keeps of 16 steps for four neurons is too much
        narrow = dtype != "float32" and steps == 16 and direction == "backward"
        wide = "b32" if narrow else "v2.b32"
        assert moved == {f"ld.global.{wide}": reads * steps, f"st.global.{wide}": steps}
        assert answer["block"][direction] == (256 if dtype == "float32" or narrow else 512)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 96), ("float16", 80), ("bfloat16", 80)])
def test_registers_leave_room_for_many_threads(built: Build, dtype: str, most: int) -> None:
    """Backward keeps of a step what it must, and computes the adjoint of a step when it is its turn."""
    cases = [{"neuron": "LIF", "dtype": dtype, "steps": steps} for steps in (4, 16, None)]
    for answer in built(cases):
        assert not any(answer["spilled"].values())
        assert answer["registers"]["forward"] <= 64
        assert answer["registers"]["backward"] <= most
