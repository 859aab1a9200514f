"""Compile kernels for GPUs that need not be there, and write what the compiler made of each, as JSON.

python compile_kernels.py '[{"neuron": "LIF", "dtype": "float32", "steps": 4, "target": "sm_90"}, ...]'

Besides: "options" of the neuron, "surrogate", "kind" of all parameters, which are learnt then, "record" of all states,
"final" states with gradients, and "left" steps after the last whole chunk. Sizes and addresses are multiples of 16.
Each answer has "block", the neurons of one, the text of "forward" and "backward", the LLVM code that it was made of as
"llvm", and for NVIDIA the "registers" of a thread and the "spilled" bytes.

"neuron" may be "packing": then "forward" packs numbers of this dtype as bits, and "backward" unpacks them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any, Dict, Tuple, Union

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang.operations import ROWS
from spikecore_triton import packing
from spikecore_triton.compiler import compiled, options_for
from spikecore_triton.source import print_kernel
from spikecore_triton.writer import Source

NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
#: GPUs of AMD, and threads of a warp: Instinct MI300 and MI350, Radeon RX 7900, Instinct MI400.
AMD = {"gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1250": 32}
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "ptx"),
    "sm_90": (GPUTarget("cuda", 90, 32), "ptx"),
    **{name: (GPUTarget("hip", name, warp), "amdgcn") for name, warp in AMD.items()},
}
STORED = ("inputs", "outputs", "grad_outputs", "grad_inputs")


class Everything(sc.Neuron):
    """Every operation of the language, numbers that meet only numbers, and such as float32 has no normal ones of."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        ops, two = sc.ops, x * 0.0 + 2.0
        v = sum(getattr(ops, row.name)(x + s.v) for row in ROWS if row.is_function and row.arity == 1)
        v = v - ops.sign(v) * ops.floor(x) / ops.round(v) + ops.power(x, p.a) + ops.power(two, 3.0)
        v = v + ops.minimum(x, p.a) + ops.maximum(v, 1e-42) + ops.clamp(x, -1.0, 1e300) + ops.minimum(1e-40, x)
        v = v + ops.remainder(x, p.a)
        v = ops.where(((x > 1.0) | ~(v <= p.a)) & (p.a != 0.25), v, ops.where(p.a < 1e-41, 1e-40, 2.5))
        return self.spike(v - 1.0, strict=True), {"v": ops.select(self.spike(v), -1e-45, ops.detach(v) * p.a)}


def plan_of(case: Dict[str, Any], direction: str) -> Union[ForwardPlan, BackwardPlan]:
    """The plan that a case names."""
    chosen = {"surrogate": getattr(sc.surrogate, case["surrogate"])()} if "surrogate" in case else {}
    own = {"Everything": Everything, "Signs": Signs}
    make = own.get(case["neuron"]) or partial(sc.neurons.example, case["neuron"])
    neuron = make(**case.get("options", {}), **chosen)
    program, kind, final = neuron.program, case.get("kind", "number"), case.get("final", False)
    learn = () if kind == "number" else program.params
    spec = Spec(getattr(torch, case["dtype"]), case["steps"], (kind,) * len(program.params), learn, final=final)
    record = program.states if case.get("record") else ()
    if direction == "forward":
        return ForwardPlan(program, spec, record, final, final, case["steps"] is None)
    outputs, inputs = (True,) * len(program.outputs), (True,) * len(program.inputs)
    return BackwardPlan(program, spec, final, outputs, record, final, inputs, final, learn)


class Signs(sc.Neuron):
    """Zeros that are negated."""

    states = {"v": 0.0}
    params: Any = {}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return -self.spike(x - 1.0), {"v": s.v - sc.ops.where(x > 0.5, 1.0, 0.0) * -1.0}


def made(source: Source, case: Dict[str, Any]) -> Tuple[str, str, Tuple[int, int]]:
    """Results of the compiler for a printed kernel: its text, the LLVM code before, registers and bytes spilled."""
    kinds = {"pointer": "*", "number": "fp32"}
    signature = {a.name: kinds.get(a.kind, "i64") for a in source.arguments}
    for a in source.arguments:
        if a.kind == "pointer":
            signature[a.name] += NAMES[case["dtype"]] if a.group in STORED else "fp32"
    special = [i for i, a in enumerate(source.arguments) if a.kind in ("pointer", "neurons", "stride")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in special}
    ast = ASTSource(compiled(source), {**signature, "BLOCK": "constexpr"}, {"BLOCK": source.block}, attributes)
    return compiled_for(ast, case)


def packing_of(case: Dict[str, Any], direction: str) -> ASTSource:
    """The kernel that packs, or the one that unpacks."""
    kernel = packing.pack_bits if direction == "forward" else packing.unpack_bits
    kinds = {"numbers": f"*{NAMES[case['dtype']]}", "data": "*u8", "right": "*fp32", "count": "i64"}
    chosen = {"BITS": 2, "BYTES": packing.BLOCK * 2 // 8}
    signature = {name: kinds.get(name, "constexpr" if name in chosen else "fp32") for name in kernel.arg_names}
    return ASTSource(kernel, signature, chosen)


def compiled_for(ast: ASTSource, case: Dict[str, Any]) -> Tuple[str, str, Tuple[int, int]]:
    """The same, with the options of a launch."""
    target, result = TARGETS[case.get("target", "sm_90")]
    found = compile(ast, target=target, options=options_for(target.backend, target.warp_size)).asm
    return found[result], found["llir"], resources(found["cubin"]) if result == "ptx" else (0, 0)


def resources(binary: bytes) -> Tuple[int, int]:
    """Registers of a thread, and bytes of its memory that stand in for registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack, local = (int(re.findall(rf"{word}:(\d+)", said)[0]) for word in ("REG", "STACK", "LOCAL"))
    return registers, stack + local


def main() -> None:
    """Compile all, answer in their order."""
    answers = []
    for case in json.loads(sys.argv[1]):
        answer: Dict[str, Any] = {"block": {}, "llvm": {}, "registers": {}, "spilled": {}}
        for direction in ("forward", "backward"):
            if case["neuron"] == "packing":
                text, llvm, (registers, spilled) = compiled_for(packing_of(case, direction), case)
            else:
                source = print_kernel(plan_of(case, direction), case.get("left", 0))
                answer["block"][direction] = source.block
                text, llvm, (registers, spilled) = made(source, case)
            answer[direction], answer["llvm"][direction] = text, llvm
            answer["registers"][direction], answer["spilled"][direction] = registers, spilled
        answers.append(answer)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
