"""Batch normalisation and a neuron as one layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from torch import Tensor, nn

from spikecore._base.bits import Whole
from spikecore._shell.in_turn import calls_as
from spikecore._shell.norms import check_norm
from spikecore._shell.prologue import Prologue
from spikecore._shell.prologued import prologue_of, set_prologue
from spikecore.neuron import Neuron

if TYPE_CHECKING:
    from spikecore.layers._packed import Follow

_SHORTCUTS = ("before", "after")


class NormNeuron(nn.Module):
    """Batch normalisation in front of a neuron, with a shortcut if there is one, as one layer.

    ::

        y = neuron(norm(x))                 NormNeuron(norm, neuron)(x)
        y = neuron(norm(x) + skip)          NormNeuron(norm, neuron, shortcut="before")(x, skip)
        y = neuron(norm(x)) + skip          NormNeuron(norm, neuron, shortcut="after")(x, skip), as in SEW-ResNet

    ``x`` and ``skip`` are ``[T, B, C, ...]``, or ``[B, C, ...]`` of a single-step neuron; ``y`` has their shape.
    ``norm`` is ``nn.BatchNorm1d``, ``nn.BatchNorm2d`` or ``nn.BatchNorm3d`` for one time step. It normalises as within
    :class:`spikecore.layers.TimeBatched`: in training with mean and variance over time, batch and space, one update of
    the running ones per call (Zheng et al., 2021, normalise in this way and scale by the threshold); ``momentum=None``,
    ``affine=False``, ``track_running_stats=False`` and ``eval()`` mean what they mean in torch.

    A backend with ``Capabilities.normalisation`` computes normalisation, shortcut and all steps in one kernel: forward
    reads x once beside its statistics, backward reads x and the cotangent twice, and nothing normalised is stored. With
    another backend, on the reference, and where something else stands in the way, normalisation and neuron are computed
    one after the other. ``fused=True`` raises :class:`spikecore.Unsupported` instead; ``fused=False`` always computes
    them so. A shortcut behind a neuron is added by torch, whatever ``fused`` is, where the output is no spikes, or the
    shortcut has another dtype than x or another order of memory.

    ``norm`` and ``neuron`` are modules of this one: ``state_dict`` has ``norm.weight``, ``neuron.tau`` and so on. The
    neuron normalises from then on, wherever it is called. ``norm`` itself is not called: hooks that it gets afterwards
    are not, either; a forward pre-hook that ``neuron`` gets afterwards sees what is not normalised yet. ``shortcut``
    and ``fused`` may be set later, and count from the next call on.

    Raises TypeError for a ``norm`` of another kind, ``nn.SyncBatchNorm`` for one, and for a ``neuron`` that is none;
    ValueError for a ``norm`` with hooks (``nn.utils.weight_norm``), for a neuron with several inputs, for one with a
    ``forward`` of its own or a forward pre-hook, for one that normalises already, and for an unknown ``shortcut``.
    """

    def __init__(
        self, norm: nn.Module, neuron: Neuron, *, shortcut: Optional[str] = None, fused: Optional[bool] = None
    ) -> None:
        super().__init__()
        check_norm("NormNeuron", norm)
        _check_neuron(neuron)
        if prologue_of(neuron) is not None:
            raise ValueError(
                f"NormNeuron: this {type(neuron).__name__} normalises its input already (NormNeuron or sc.fuse); make "
                "a neuron for each place"
            )
        self.norm, self.neuron = norm, neuron
        self._shortcut, self._fused = _checked_shortcut(shortcut), _checked_fused(fused)
        set_prologue(neuron, self._made())

    @property
    def shortcut(self) -> Optional[str]:
        """Where the shortcut is added, ``"before"`` or ``"after"`` the neuron; None without one."""
        return self._shortcut

    @shortcut.setter
    def shortcut(self, value: Optional[str]) -> None:
        self._shortcut = _checked_shortcut(value)
        self._tell()

    @property
    def fused(self) -> Optional[bool]:
        """Whether normalisation and neuron must be one program (True), or must not (False); None for where they can."""
        return self._fused

    @fused.setter
    def fused(self, value: Optional[bool]) -> None:
        self._fused = _checked_fused(value)
        self._tell()

    def _tell(self) -> None:
        """Have the neuron compute with the settings of now."""
        prologue = prologue_of(self.neuron)
        # another norm than the neuron's is one that forward has to check
        if prologue is not None and prologue.norm is self.norm:
            set_prologue(self.neuron, self._made())

    def _made(self) -> Prologue:
        return Prologue(self.norm, self._shortcut or "", self._fused)

    def forward(self, x: Tensor, *skip: Tensor) -> Any:
        """``[T, B, C, ...] -> [T, B, C, ...]``; with a shortcut also ``skip`` of that shape."""
        prologue = prologue_of(self.neuron)
        if prologue is None or prologue.norm is not self.norm:
            # a module was put in the place of one of them, as SyncBatchNorm.convert_sync_batchnorm does
            check_norm("NormNeuron", self.norm)
            _check_neuron(self.neuron)
            set_prologue(self.neuron, self._made())
        return self.neuron(x, *skip)

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        return follow(self.neuron, None) if self._shortcut != "after" else None

    def extra_repr(self) -> str:
        """The shortcut, if there is one."""
        return f"shortcut={self._shortcut!r}" if self._shortcut else ""


def _check_neuron(neuron: Any) -> None:
    if not isinstance(neuron, Neuron):
        raise TypeError(f"NormNeuron: neuron={neuron!r} must be a spikecore neuron")
    if len(neuron.inputs) != 1:
        raise ValueError(
            f"NormNeuron: {type(neuron).__name__} has the inputs {', '.join(neuron.inputs)}; which of them to "
            "normalise is not known: normalise it before the call"
        )
    if not calls_as(neuron, Neuron) or "forward" in vars(neuron) or neuron._forward_pre_hooks:
        # what they do to the input would come before the normalisation: a factor, for one, would be divided out
        raise ValueError(
            f"NormNeuron: this {type(neuron).__name__} has a forward of its own or a forward pre-hook, which would "
            "see the input before it is normalised; leave norm in front of the neuron: "
            "nn.Sequential(sc.layers.TimeBatched(conv, norm), neuron)"
        )


def _checked_shortcut(value: Any) -> Optional[str]:
    if value is not None and value not in _SHORTCUTS:
        raise ValueError(
            f"NormNeuron: shortcut={value!r} must be None, 'before' (neuron(norm(x) + skip)) or 'after' "
            "(neuron(norm(x)) + skip)"
        )
    return None if value is None else str(value)


def _checked_fused(value: Any) -> Optional[bool]:
    if not (value is None or isinstance(value, bool)):
        raise TypeError(f"NormNeuron: fused={value!r} must be True, False or None (where the backend can)")
    return value
