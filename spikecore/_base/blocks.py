"""``with`` blocks that say so where ``with`` was forgotten."""

from __future__ import annotations

import functools
import warnings
from contextlib import ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Any, Callable, ContextManager

if TYPE_CHECKING:
    block = contextmanager
else:

    def block(function):
        """As ``contextlib.contextmanager``; a block that was never entered warns when it is freed."""
        made = contextmanager(function)

        @functools.wraps(function)
        def begin(*args, **kwargs):
            return _Block(f"sc.{function.__name__.strip('_')}", lambda: made(*args, **kwargs))

        return begin


class _Block(ContextDecorator):
    # torch.compile makes one without __init__
    _name = ""
    _is_used = True

    def __init__(self, name: str, make: Callable[[], ContextManager[Any]]) -> None:
        self._name, self._make, self._is_used = name, make, False

    def __enter__(self) -> Any:
        self._is_used = True
        self._block = self._make()
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._block.__exit__(*error)

    def __call__(self, function: Any) -> Any:
        """The function, each call of which is within a block of its own."""
        self._is_used = True
        return super().__call__(function)

    def _recreate_cm(self) -> _Block:
        return _Block(self._name, self._make)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._name}(...) has no attribute {name!r}; {self._way_out()}")

    def __getitem__(self, key: Any) -> None:
        """Raises TypeError, for ``seen = sc.monitor(net); seen["1"]``."""
        raise TypeError(f"{self._name}(...) has no parts; {self._way_out()}")

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(f"{self._name}(...) alone does nothing; {self._way_out()}", UserWarning, stacklevel=2)

    def _way_out(self) -> str:
        return f"it is for a block: with {self._name}(...):"
