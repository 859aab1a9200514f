"""What a step of training or inference can do, on every backend."""

from __future__ import annotations

from typing import Any, Callable, Dict, Protocol, Tuple

from torch import Tensor

#: ``loss(outputs, targets)`` gives one number.
Loss = Callable[[Any, Any], Tensor]


class TrainingStep(Protocol):
    """A training step of :func:`spikecore.training_model`: forward, loss, backward and update, as one call.

    A backend may add methods of its own (the IPU's: compiling, detaching from the device, copying weights back).
    """

    def __call__(self, inputs: Any, targets: Any) -> Tuple[Any, Tensor]:
        """Train on one batch.

        ``inputs`` is a tensor, a tuple for ``net(*inputs)``, or a dict for ``net(**inputs)``. The outputs and the loss
        are those from before the update, detached; the loss has one number, or one for each micro batch of a backend
        that makes several updates in a call.
        """

    def state_dict(self) -> Dict[str, Any]:
        """What training goes on from: weights ``"net"``, the state of the optimiser ``"optimizer"``, a scaler's.

        The weights have the names of the network itself, and load into it on every backend.
        """

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, as a whole or not at all.

        Raises ValueError or RuntimeError, naming what is missing, too much or of another kind; nothing has changed
        then.
        """


class InferenceStep(Protocol):
    """A call of :func:`spikecore.inference_model`: the network in eval mode and without gradients."""

    def __call__(self, inputs: Any) -> Any:
        """The outputs for one batch, whose form is that of :meth:`TrainingStep.__call__`."""
