"""Several neurons that speak for one class."""

from __future__ import annotations

from torch import Tensor, nn


class Voting(nn.Module):
    """The mean over groups of neighbouring neurons: each group votes for one class.

    ``y[..., c] = 1 / voters * sum over k of x[..., c * voters + k], k = 0 .. voters - 1``;
    ``[..., C * voters] -> [..., C]``, of all steps or of one.

    Raises TypeError or ValueError for ``voters`` that are no whole number from 1 on, ValueError for an input whose last
    dimension is no multiple of it. Source: the voting layer of Fang et al. (ICCV 2021, parametric
    LIF); SpikingJelly's ``VotingLayer``.
    """

    def __init__(self, voters: int = 10) -> None:
        super().__init__()
        if isinstance(voters, bool) or not isinstance(voters, int):
            raise TypeError(f"Voting: voters must be an int, the number of neurons for a class, got {voters!r}")
        if voters < 1:
            raise ValueError(f"Voting: voters must be 1 or more, got {voters}")
        self.voters = voters

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C * voters] -> [..., C]``."""
        if not isinstance(x, Tensor):
            raise TypeError(f"Voting: x must be a tensor, got {type(x).__name__}")
        if x.ndim == 0 or x.shape[-1] % self.voters:
            raise ValueError(
                f"Voting: the last dimension of x must be a multiple of voters={self.voters}, got shape "
                f"{tuple(x.shape)}"
            )
        means: Tensor = x.unflatten(-1, (x.shape[-1] // self.voters, self.voters)).mean(-1)
        return means

    def extra_repr(self) -> str:
        """The number of neurons for a class."""
        return f"voters={self.voters}"
