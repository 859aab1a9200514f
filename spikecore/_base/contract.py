"""The version of the contract between spikecore and a backend, and which plugins it admits.

A version is ``(major, minor)``; an integer N stands for ``(N, 0)``, as plugins stated it before there were minor
numbers.

- A minor version adds what a right plugin may ignore: attributes and methods of :class:`~spikecore.backend.Backend`
  with a default that changes nothing, fields with a default of the dataclasses, capabilities that are off.
- A major version may ask something new of every plugin, or take something away.
- A plugin states the lowest version that has all it uses. One that uses a newer minor version than this spikecore has
  is refused: what it relies on would be ignored in silence.
"""

from __future__ import annotations

from typing import Any, Tuple, Union

Version = Tuple[int, int]
#: A version as a plugin states it.
Api = Union[int, Version]

#: Version of the contract of this spikecore, and the oldest one whose plugins it takes.
BACKEND_API: Version = (1, 4)
OLDEST_API: Version = (1, 0)


def version_of(api: Any) -> Version:
    """The version that a plugin states. Raises ``TypeError`` for what is neither an integer nor two of them."""
    whole = api if isinstance(api, tuple) else (api, 0)
    if len(whole) != 2 or not all(isinstance(number, int) and not isinstance(number, bool) for number in whole):
        raise TypeError(f"BackendInfo.api must be an integer or two, (major, minor), got {api!r}")
    return (whole[0], whole[1])


def shown(api: Api) -> str:
    """A version in words."""
    return ".".join(map(str, api)) if isinstance(api, tuple) else str(api)


def skew(api: Api, distribution: str) -> str:
    """Why a plugin of this version is not taken, and what to upgrade; "" if it is."""
    version = version_of(api)
    if OLDEST_API <= version <= BACKEND_API:
        return ""
    old = distribution if version < OLDEST_API else "spikecore"
    speaks = f"{shown(OLDEST_API)} to {shown(BACKEND_API)}"
    return f"speaks backend API {shown(api)}; this spikecore speaks {speaks}; upgrade {old}"
