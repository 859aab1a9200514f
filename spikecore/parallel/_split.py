"""How a batch is split into parts: what ``chunks`` and ``split_sizes`` say, checked, and the sizes for one batch."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple, Union

#: So many numbers that would work are listed.
_LISTED = 16


class Split(NamedTuple):
    """A split as its user gave it; with neither, a batch is one part."""

    chunks: Union[int, None] = None
    split_sizes: Union[int, Tuple[int, ...], None] = None

    def sizes(self, batch: int, where: str) -> Tuple[int, ...]:
        """The sizes of the parts of a batch. Raises ValueError for one that is not split so; ``where`` names the batch.

        ``where``: words such as "dimension batch_dim=1 of the input, shape (8, 64, 10)".
        """
        if isinstance(self.split_sizes, tuple):
            total = sum(self.split_sizes)
            if total != batch:
                raise ValueError(
                    f"split_sizes={list(self.split_sizes)} are {total} together, and the batch is {batch} ({where}); "
                    f"give sizes whose sum is {batch}, or one that divides it: {_divisors(batch, batch)}"
                )
            return self.split_sizes
        if batch == 0:
            raise ValueError(f"the batch is empty ({where}); there is nothing to split")
        if self.split_sizes is not None:
            if batch % self.split_sizes:
                raise ValueError(
                    f"split_sizes={self.split_sizes} does not divide the batch of {batch} ({where}); sizes that do: "
                    f"{_divisors(batch, self.split_sizes)}; or give a list of sizes whose sum is {batch}, or let the "
                    "loader drop a short last batch (drop_last=True)"
                )
            return (self.split_sizes,) * (batch // self.split_sizes)
        chunks = 1 if self.chunks is None else self.chunks
        if batch % chunks:
            raise ValueError(
                f"chunks={chunks} does not divide the batch of {batch} ({where}); numbers of equal parts that do: "
                f"{_divisors(batch, chunks)}; or give split_sizes, a list whose sum is {batch}, or let the loader drop "
                "a short last batch (drop_last=True)"
            )
        return (batch // chunks,) * chunks

    def words(self) -> str:
        """The split for a ``repr``."""
        if self.split_sizes is not None:
            return f"split_sizes={list(self.split_sizes) if isinstance(self.split_sizes, tuple) else self.split_sizes}"
        return f"chunks={self.chunks}"


def checked(chunks: Any, split_sizes: Any) -> Split:
    """The split that both arguments say. Raises TypeError or ValueError for what says none, or two."""
    if chunks is not None and split_sizes is not None:
        raise ValueError(
            f"chunks={chunks!r} and split_sizes={split_sizes!r} each say how a batch is split; give one of them"
        )
    if chunks is not None:
        return Split(chunks=_count("chunks", chunks, "a number of equal parts"))
    if split_sizes is None:
        return Split()
    if isinstance(split_sizes, Sequence) and not isinstance(split_sizes, str):
        if not split_sizes:
            raise ValueError("split_sizes=[] has no part; give the size of each part, or None for one part")
        return Split(split_sizes=tuple(_count(f"split_sizes[{k}]", n, "a size") for k, n in enumerate(split_sizes)))
    return Split(split_sizes=_count("split_sizes", split_sizes, "the size of a part, or a list of sizes"))


def _count(name: str, value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be {what}, a whole number, or None")
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1, or None")
    return value


def _divisors(batch: int, wanted: int) -> str:
    """The divisors of a batch in words, or those nearest to the one that was wanted."""
    every: List[int] = [n for n in range(1, batch + 1) if batch % n == 0]
    near = sorted(sorted(every, key=lambda n: abs(n - wanted))[:_LISTED])
    return ", ".join(map(str, near)) + ("" if len(near) == len(every) else " and others")
