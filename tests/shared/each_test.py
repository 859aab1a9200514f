"""Run of each test: with the same random numbers every time, from a frame in a large block of memory.

The random numbers are those of torch and of Python's ``random``, in the process of the test. A conftest imports the
hooks by name.
"""

from __future__ import annotations

import random
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any, Callable, Generator

import pytest
import torch


def _seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule() -> None:
    """Seeds before a test file is imported, for what it draws then."""
    _seed(2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seeds before fixtures are made, those of a whole module included.

    Without a seed a test passed or failed by chance: in one run of many, the random weights of five neurons made none
    of them fire.
    """
    _seed(0)


def _called(function: Callable[..., Any], /, **arguments: Any) -> Any:
    __tracebackhide__ = True
    return function(**arguments)


#: Calls a function from a frame of 70,000 words. From 3.11 on, Python keeps frames in blocks of 16 KiB, which it maps
#: and unmaps when a call crosses the end of one: a loop at an unlucky depth did so 15,000 times while Numba compiled a
#: kernel, and took a quarter longer. A frame this large gets a block of 1 MiB, and what it calls gets the rest.
_from_large_frame = FunctionType(_called.__code__.replace(co_stacksize=70_000), globals())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Seeds again, since only the first test of a module makes that module's fixtures; then pytest calls the function.

    The seed is another one than that of fixtures, so that a test does not draw their numbers a second time.
    """
    _seed(1)
    function = pyfuncitem.obj
    pyfuncitem.obj = update_wrapper(partial(_from_large_frame, function), function)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = function
