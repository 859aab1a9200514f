"""Kernels that Triton compiles for AMD's GPUs, one with 64 threads in a warp and one with 32: compiled, never run.

A few kernels of each kind, in a minute; tests/test_compiled.py compiles every neuron for them.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch

from spikecore_triton import compiler

TARGETS = ("gfx942", "gfx1100")
DIRECTIONS = ("forward", "backward")
#: Names in LLVM code that would let a compiler round otherwise than IEEE 754 has it.
LOOSE = re.compile(r"= (?:\w+ )*?f(?:add|sub|mul|div|neg) (?:fast|contract|afn|arcp|nsz|reassoc|nnan|ninf)\b")

Answers = Dict[Tuple[str, str], Dict[str, Any]]


@pytest.fixture(scope="module")
def answers(built: Callable[[List[Dict[str, Any]]], List[Dict[str, Any]]]) -> Answers:
    """The result of each case, by neuron and target."""
    kinds = [
        {"neuron": "LIF", "dtype": "float32", "steps": 16},
        {"neuron": "ALIF", "dtype": "float16", "steps": 2, "kind": "full", "record": True, "final": True},
        {"neuron": "PLIF", "dtype": "bfloat16", "steps": 3, "kind": "channel"},
        {"neuron": "Izhikevich", "dtype": "float32", "steps": 4, "kind": "scalar"},
        {"neuron": "Everything", "dtype": "float32", "steps": 1},
        {"neuron": "Signs", "dtype": "float32", "steps": 2},
        {"neuron": "packing", "dtype": "float16"},
    ]
    cases = [{**kind, "target": target} for target in TARGETS for kind in kinds]
    return {(case["neuron"], case["target"]): answer for case, answer in zip(cases, built(cases))}


def test_no_assembly_of_nvidia(answers: Answers) -> None:
    """Nothing in a text is for NVIDIA's assembler, and each stores what it computed."""
    for case, answer in answers.items():
        for direction in DIRECTIONS:
            assert " asm " not in answer["llvm"][direction], case
            assert "global_store" in answer[direction], case


def test_a_block_has_as_many_threads_as_on_nvidia(answers: Answers) -> None:
    """128, whatever a warp has, and none of their numbers lies in memory for want of registers."""
    for case, answer in answers.items():
        for direction in DIRECTIONS:
            found = dict(
                re.findall(r"\.(max_flat_workgroup_size|vgpr_spill_count|wavefront_size): +(\d+)", answer[direction])
            )
            threads = "64" if case[1] == "gfx942" else "32"
            assert found == {"max_flat_workgroup_size": "128", "vgpr_spill_count": "0", "wavefront_size": threads}, case


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("neuron", ["LIF", "ALIF", "Izhikevich", "Signs"])
def test_products_are_rounded_before_they_are_added(answers: Answers, neuron: str, target: str) -> None:
    """The only fused multiply-adds are the five of an IEEE division, and products with 1 or sums with 0."""
    for direction in DIRECTIONS:
        llvm, text = answers[neuron, target]["llvm"][direction], answers[neuron, target][direction]
        assert not LOOSE.search(llvm)
        assert not re.search(r"llvm\.(fma|fmuladd)", llvm)
        fused = len(re.findall(r"v_(?:dual_)?fma(?:c)?_f32", text)) + 2 * len(re.findall("v_pk_fma_f32", text))
        assert fused == 5 * text.count("v_div_fixup_f32")
        for line in re.findall(r"v_fma_mix\w* .*", text):
            assert re.search(r", 1\.0,|, neg\(0\)| 0 op_sel", line)


@pytest.mark.parametrize("target", TARGETS)
def test_roots_divisions_and_small_numbers_are_ieee(answers: Answers, target: str) -> None:
    """Neither root nor division may be off by a unit, and subnormal numbers are kept."""
    for direction in DIRECTIONS:
        llvm = answers["Everything", target]["llvm"][direction]
        assert re.search(r"call [^\n]*@llvm\.sqrt\.", llvm)
        assert "fdiv" in llvm
        assert "!fpmath" not in llvm
        assert '"denormal-fp-math-f32"="ieee"' in llvm


@pytest.mark.parametrize("target", TARGETS)
def test_a_zero_that_is_negated_has_its_sign(answers: Answers, target: str) -> None:
    """-0.0 where no spike is, as a number of the code: nothing computes it from an integer."""
    llvm = answers["Signs", target]["llvm"]["forward"]
    assert re.search(r"select .*float -1\.0+e\+00\)?, .*float -0\.0+e\+00", llvm)
    assert not re.search(r"[us]itofp", llvm)


def test_options_follow_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch on AMD asks how many threads a warp has, of the device that is the current one."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(warp_size=[64, 32][device]))
    compiler.options_on.cache_clear()
    try:
        assert compiler.options() == {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        assert compiler.options()["num_warps"] == 2
    finally:
        compiler.options_on.cache_clear()
    monkeypatch.undo()
    assert compiler.options()["num_warps"] == 4
