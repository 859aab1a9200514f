"""The forms in which a network is trained: layout, fusing, packing, compilation, a captured graph.

``eager`` is the network as one writes it first, with contiguous images. What only spikecore has (``fused``,
``packed``) is not tried with ReLU or another library; everything else is tried with all.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Mapping, Sequence, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.network import Network


@dataclass(frozen=True)
class Form:
    """One way to train the same network."""

    channels_last: bool = False
    #: Batch normalisation within the neurons: ``sc.fuse``.
    fused: bool = False
    #: Spikes kept for backward as bits: ``TrainingOptions(pack_spikes=True)``.
    packed: bool = False
    #: ``TrainingOptions(compile=True)``; see ``apart``.
    compiled: bool = False
    #: A captured step: ``CudaOptions(graph=True)``.
    graph: bool = False
    #: The optimiser's step by ``torch.compile``.
    compiled_adam: bool = False
    #: True if the network is compiled by ``torch.compile`` alone, and not by ``TrainingOptions(compile=True)``, which
    #: refuses networks that do not compile as a whole: those of other libraries.
    apart: bool = False

    @property
    def name(self) -> str:
        """For rows and for ``--form``."""
        words = {
            "channels-last": self.channels_last,
            "fused": self.fused,
            "packed": self.packed,
            "compiled": self.compiled,
            "CUDA graph": self.graph,
            "compiled Adam": self.compiled_adam,
        }
        return " ".join(word for word, there in words.items() if there) or "eager"

    @property
    def ours(self) -> bool:
        """True if only networks of spikecore have it."""
        return self.fused or self.packed

    def row(self, implementation: str) -> str:
        """Name of an implementation in this form; the eager form has the plain name."""
        return implementation if self == EAGER else f"{implementation}, {self.name}"

    def network(self, net: nn.Module) -> nn.Module:
        """The network in this form."""
        if self.channels_last and self.apart:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the stub lacks it alone
        if self.fused:
            sc.fuse(net)
        return _Compiled(net) if self.compiled and self.apart else net

    def optimizer(self, parameters: Iterable[Tensor], device: torch.device) -> torch.optim.Optimizer:
        """Adam: fused on a GPU, or its step compiled."""
        gpu = device.type == "cuda"
        if not self.compiled_adam:
            return torch.optim.Adam(parameters, 1e-3, fused=gpu)
        made = torch.optim.Adam(parameters, 1e-3, foreach=True, capturable=gpu)
        made.step = torch.compile(made.step)  # type: ignore[method-assign]
        return made

    def loss(self) -> Callable[..., Any]:
        """Cross entropy of spike counts; compiled where a captured step is, as ``fast=True`` has it."""
        by_itself = self.compiled and self.graph and self.apart
        made: Callable[..., Any] = torch.compile(sc.losses.ce_count) if by_itself else sc.losses.ce_count
        return made

    def images(self, images: Tensor) -> Tensor:
        """Images ``[B, C, H, W]`` in its layout; what has no height and width stays, and what the step lays out."""
        as_it_is = not (self.channels_last and self.apart) or images.ndim != 4
        return images if as_it_is else images.contiguous(memory_format=torch.channels_last)

    def options(self, network: Network) -> Any:
        """Options of the training step."""
        keywords: Dict[str, Any] = {"autocast": network.autocast}
        if self.channels_last and not self.apart and len(network.image) > 1:
            keywords.update(channels_last=True)
        if self.packed:
            keywords.update(pack_spikes=True)
        if self.compiled and not self.apart:
            keywords.update(compile=True)
        return sc.CudaOptions(graph=True, **keywords) if self.graph else sc.TrainingOptions(**keywords)


class _Compiled(nn.Module):
    """A network compiled by itself. Its result is kept with the code of ``run``, which all networks share:
    :func:`forget_compiled` stands between two of them.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

        def run(x: Tensor) -> Any:
            return net(x)

        self.run: Callable[..., Any] = torch.compile(run)

    def forward(self, x: Tensor) -> Any:
        """The outputs of the network."""
        return self.run(x)


def forget_compiled() -> None:
    """Drop what torch.compile made, if it ran."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


EAGER = Form()
#: Forms by name: every mixture.
FORMS: Mapping[str, Form] = {
    form.name: form for form in (Form(*choice) for choice in itertools.product((False, True), repeat=6))
}
#: Forms that are measured on a GPU by default: of convolutional networks, and of others.
IMAGES = (
    "eager",
    "channels-last",
    "channels-last CUDA graph",
    "channels-last compiled",
    "channels-last compiled CUDA graph",
    "channels-last packed",
    "channels-last packed compiled CUDA graph",
    "channels-last fused",
    "channels-last fused CUDA graph",
    "channels-last fused compiled",
    "channels-last fused compiled CUDA graph",
    "channels-last fused packed",
    "channels-last fused packed compiled",
    "channels-last fused packed compiled CUDA graph",
)
VECTORS = (
    "eager",
    "CUDA graph",
    "CUDA graph compiled Adam",
    "compiled",
    "compiled CUDA graph",
    "compiled CUDA graph compiled Adam",
)


def forms(network: Network, wanted: Sequence[str], device_type: str) -> Tuple[Form, ...]:
    """The forms to train a network in, the eager one first: those wanted, else those that suit the device."""
    usual: Sequence[str] = ("eager",)
    if device_type == "cuda":
        usual = network.forms or (IMAGES if len(network.image) == 3 else VECTORS)
    return tuple(FORMS[name] for name in FORMS if name in (wanted or usual))
