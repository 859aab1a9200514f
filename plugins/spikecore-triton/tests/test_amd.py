"""Kernels that Triton compiles for AMD's GPUs: compiled, never run.

A few kernels of each kind and every neuron, in two minutes; tests/test_compiled.py has parameters of each kind.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch

from spikecore.neurons import MODELS
from spikecore_triton import compiler

#: Threads of a warp: Instinct MI300 and MI350, Radeon RX 7900, Instinct MI400.
TARGETS = {"gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1250": 32}
DIRECTIONS = ("forward", "backward")
#: Names in LLVM code that would let a compiler round otherwise than IEEE 754 has it.
LOOSE = re.compile(r"= (?:\w+ )*?f(?:add|sub|mul|div|neg) (?:fast|contract|afn|arcp|nsz|reassoc|nnan|ninf)\b")

#: Those of them that LLVM never adds by itself where it knows that a number is finite.
REORDERED = re.compile(r"= (?:\w+ )*?f(?:add|sub|mul|div) (?:\w+ )*?(?:fast|contract|afn|arcp|reassoc)\b")
#: The fixture of conftest.py.
Build = Callable[[List[Dict[str, Any]]], List[Dict[str, Any]]]
Answers = Dict[Tuple[str, str], Dict[str, Any]]


def fused(text: str) -> int:
    """Number of multiply-adds that are rounded once."""
    return len(re.findall(r"v_(?:dual_)?fma(?:c)?_f32", text)) + 2 * len(re.findall("v_pk_fma_f32", text))


@pytest.fixture(scope="module")
def answers(built: Build) -> Answers:
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
            threads = str(TARGETS[case[1]])
            assert found == {"max_flat_workgroup_size": "128", "vgpr_spill_count": "0", "wavefront_size": threads}, case


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("neuron", ["LIF", "ALIF", "Izhikevich", "Signs"])
def test_products_are_rounded_before_they_are_added(answers: Answers, neuron: str, target: str) -> None:
    """The only fused multiply-adds are the five of an IEEE division, and products with 1 or sums with 0."""
    for direction in DIRECTIONS:
        llvm, text = answers[neuron, target]["llvm"][direction], answers[neuron, target][direction]
        assert not LOOSE.search(llvm)
        assert not re.search(r"llvm\.(fma|fmuladd)", llvm)
        assert fused(text) == 5 * text.count("v_div_fixup_f32")
        for line in re.findall(r"v_fma_mix\w* .*", text):
            assert re.search(r", -?1\.0,|, neg\(0\)|, 0( op_sel|$)", line)


@pytest.mark.parametrize("target", TARGETS)
def test_every_neuron(built: Build, arithmetic: List[str], target: str) -> None:
    """Each compiles, rounds products before they are added, and divides as IEEE has it."""
    cases = [{"neuron": name, "dtype": "float32", "steps": 4, "target": target} for name in MODELS]
    for case, answer in zip(cases, built(cases)):
        for direction in DIRECTIONS:
            llvm, text = answer["llvm"][direction], answer[direction]
            assert not REORDERED.search(llvm), case
            assert "!fpmath" not in llvm, case
            assert ("fdiv" in llvm) == ("v_div_fixup_f32" in text), case
            if case["neuron"] in arithmetic:
                assert fused(text) == 5 * text.count("v_div_fixup_f32"), case


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
    """-0.0 where no spike is, as a number of the code or by a change of sign: nothing computes it from an integer."""
    llvm = answers["Signs", target]["llvm"]["forward"]
    assert re.search(r"select .*float -1\.0+e\+00\)?, .*float -0\.0+e\+00|= fneg ", llvm)
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
