"""The IPU backend: programs interpreted in plain operations while PopTorch traces, with time unrolled.

State is local to a call. Derivatives that are not an operation's own are written into the forward pass
(:mod:`spikecore_ipu.recorded`).
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, Set, Tuple

import torch
from torch import Tensor, nn

from spikecore.backend import Backend, ParamValue, Runner, Spec, Tensors, Unsupported
from spikecore.interpreter import Interpreter
from spikecore.lang import Program, topological
from spikecore.lang.eager import TORCH, Functions
from spikecore.lang.node import LEAVES, SpikeRule
from spikecore.training import InferenceStep, Loss, TrainingStep
from spikecore_ipu import CAPABILITIES
from spikecore_ipu.recorded import RECORDED

#: op name -> the function that PopTorch compiles: the reference's, but for those written for a recorder.
#: The emulator knows which functions of torch have a handler, and how PopART differentiates them.
PLAIN: Functions = {**TORCH, **RECORDED}


class IpuBackend(Backend):
    """Compiles models, losses included, through PopTorch; on CPU tensors the same operations run eagerly."""

    name = "ipu"
    capabilities = CAPABILITIES

    def compile(self, program: Program, spec: Spec) -> Runner:
        """An interpreter of the program that emits operations PopTorch has handlers for, and ``detach``."""
        return IpuInterpreter(program, spec)

    def training_model(self, net: nn.Module, loss: Loss, optimizer: Any, options: Any) -> TrainingStep:
        """The step of :class:`~spikecore_ipu.training.IpuTraining`."""
        from spikecore_ipu.training import IpuTraining

        return IpuTraining(net, loss, optimizer, options)

    def inference_model(self, net: nn.Module, options: Any) -> InferenceStep:
        """The call of :class:`~spikecore_ipu.training.IpuInference`."""
        from spikecore_ipu.training import IpuInference

        return IpuInference(net, options)

    def data_loader(self, dataset: Any, options: Any, **kwargs: Any) -> Iterable[Any]:
        """A ``poptorch.DataLoader``: a batch holds all micro batches of a call."""
        from spikecore_ipu.executor import data_loader

        loader: Iterable[Any] = data_loader(dataset, options, **kwargs)
        return loader


class IpuInterpreter(Interpreter):
    """The interpreter in operations that PopTorch compiles."""

    def __init__(self, program: Program, spec: Spec) -> None:
        for op in sorted(_operations(program)):
            if op not in PLAIN and op not in LEAVES:
                raise Unsupported(
                    f"backend 'ipu' cannot lower {program.name}: PopTorch has no handler for the operation {op!r}"
                )
        super().__init__(program, spec, PLAIN)
        self.owner = program.name

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        if inputs[0].device.type == "ipu":
            shape = list(inputs[0].shape)
            if 0 in shape:
                raise Unsupported(f"{self.owner}: input of shape {shape} is empty, which PopTorch cannot compile")
            # there the backward of an autograd.Function never runs
            return self.interpret(inputs, state, params, record)
        outputs, final, trace = self.interpret(inputs, state, params, record)
        first_only = OnceDifferentiable.apply
        outputs, trace = tuple(map(first_only, outputs)), tuple(map(first_only, trace))
        return outputs, None if final is None else tuple(map(first_only, final)), trace


class OnceDifferentiable(torch.autograd.Function):
    """The value itself, for eager calls only: a second derivative, which ``detach`` would make 0, is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor) -> Tensor:
        # no view: torch refuses in-place changes of views that a Function made, and results may be changed in place
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise Unsupported("backend 'ipu' has no second derivatives; call without create_graph=True")
        return grad


def _operations(program: Program) -> Set[str]:
    nodes = topological([*program.outputs, *program.next, *program.initial])
    rules = [node.attr.derivative for node in nodes if isinstance(node.attr, SpikeRule)]
    return {node.op for node in (*nodes, *topological(rules))}
