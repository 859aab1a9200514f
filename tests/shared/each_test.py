"""How each test is run: with the same random numbers every time, and with room for Python's frames.

A conftest imports the hooks by name.
"""

from __future__ import annotations

import random
from functools import partial
from types import FunctionType
from typing import Any, Callable

import pytest
import torch


def _seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before fixtures, those of a whole module among them.

    A test without a seed of its own passed or failed by chance before: the random weights of five neurons made none of
    them fire, in one run of many.
    """
    _seed(0)


def _called(function: Callable[..., Any], /, **arguments: Any) -> Any:
    __tracebackhide__ = True
    return function(**arguments)


#: Calls a function from a frame of 70,000 words. From 3.11 on, Python keeps frames in blocks of 16 KiB, which it maps
#: and unmaps when a call crosses the end of one: a loop at an unlucky depth did so 15,000 times while Numba compiled a
#: kernel, and took a quarter longer. A frame this large gets a block of 1 MiB, and what it calls gets the rest.
_with_room = FunctionType(_called.__code__.replace(co_stacksize=70_000), globals())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Seed again, since only the first test of a module makes that module's fixtures; pytest then calls the function.

    Another seed than that of fixtures, so that a test does not draw their numbers a second time.
    """
    _seed(1)
    pyfuncitem.obj = partial(_with_room, pyfuncitem.obj)
