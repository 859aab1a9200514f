"""The changes of training images follow from their generator alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from programs import EXAMPLES


@pytest.fixture(autouse=True)
def common(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the programs is where Python looks first, as when one runs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(number: int, channels: int, size: int) -> Tensor:
    return torch.rand(number, channels, size, size, generator=seeded(1))


@pytest.mark.parametrize("name", ["affine", "photographs"])
def test_the_generator_alone_decides(name):
    """The same seed gives the same images, another others; torch's own stream is not touched, nor are the images."""
    from common import augment

    change, images = getattr(augment, name), random_images(6, 3, 16)
    before, copy = torch.get_rng_state(), images.clone()
    changed = change(images, seeded())
    assert (changed.shape, changed.dtype) == (images.shape, images.dtype)
    assert torch.equal(changed, change(images, seeded()))
    assert not torch.equal(changed, change(images, seeded(5)))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, copy)
    assert changed.min() >= 0.0
    assert changed.max() <= 1.0
