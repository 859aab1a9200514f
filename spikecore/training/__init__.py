"""One training step, the same call on every backend: ``outputs, loss = step(inputs, targets)``.

For users: :func:`training_model`, :func:`inference_model`, :func:`DataLoader`, their options, and checkpoints. For
backends with a training step of their own: the protocols :class:`TrainingStep` and :class:`InferenceStep`, and the
checks and the handling of batches that every step needs.
"""

from spikecore.batches import device_of, flattened, run_network, tree_map
from spikecore.training._capture import Capture
from spikecore.training._checks import check_loss, check_optimizer
from spikecore.training._graphed import gpu_of
from spikecore.training._models import DataLoader, inference_model, step_of, training_model
from spikecore.training._saving import all_or_nothing, check_parts, load_checkpoint, load_optimizer, save_checkpoint
from spikecore.training._steps import CudaOptions, InferenceStep, Loss, TrainingOptions, TrainingStep
from spikecore.training._updates import Updates

__all__ = [
    "Capture",
    "CudaOptions",
    "DataLoader",
    "InferenceStep",
    "Loss",
    "TrainingOptions",
    "TrainingStep",
    "Updates",
    "all_or_nothing",
    "check_loss",
    "check_optimizer",
    "check_parts",
    "device_of",
    "flattened",
    "gpu_of",
    "inference_model",
    "load_checkpoint",
    "load_optimizer",
    "run_network",
    "save_checkpoint",
    "step_of",
    "training_model",
    "tree_map",
]
