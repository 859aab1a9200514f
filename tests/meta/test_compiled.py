"""The cases of torch.compile on a backend of registered operators, right and wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Dict, List

import pytest
import torch

from plain_loop import EVERYTHING, Loop, Plain
from spikecore.backend import Unsupported
from spikecore.testing import check_backend, installed

pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6), reason="neurons compile from torch 2.6 on"
)

LOOPS: Dict[str, Loop] = {}
#: What a mutant is to do wrong.
WRONG: List[str] = []


def outputs_of(key: str, x: torch.Tensor, params: List[torch.Tensor]) -> torch.Tensor:
    """Outputs from rest."""
    return LOOPS[key]((x,), None, tuple(params), ())[0][0]


@pytest.fixture(scope="module")
def operators() -> Any:
    """The operators ``spikecore_meta::forward`` and ``backward``."""

    @torch.library.custom_op("spikecore_meta::forward", mutates_args=())
    def forward(x: torch.Tensor, params: List[torch.Tensor], key: str) -> torch.Tensor:
        if "mutates" in WRONG:
            x.mul_(1.0).add_(1e-3)
        return outputs_of(key, x, params).contiguous()

    @forward.register_fake
    def _(x: torch.Tensor, params: List[torch.Tensor], key: str) -> torch.Tensor:
        made = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return made.double() if "fake dtype" in WRONG else made

    @torch.library.custom_op("spikecore_meta::backward", mutates_args=())
    def backward(g: torch.Tensor, x: torch.Tensor, params: List[torch.Tensor], key: str) -> List[torch.Tensor]:
        leaves = [value.detach().requires_grad_() for value in (x, *params)]

        def work() -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(outputs_of(key, leaves[0], leaves[1:]), leaves, g, allow_unused=True)

        # inside an operator autograd is off for this thread
        with ThreadPoolExecutor(1) as pool:
            grads = pool.submit(work).result()
        found = [torch.zeros_like(leaf) if grad is None else grad.clone() for grad, leaf in zip(grads, leaves)]
        return [grad * 2 for grad in found] if "gradient" in WRONG else found

    @backward.register_fake
    def _(g: torch.Tensor, x: torch.Tensor, params: List[torch.Tensor], key: str) -> List[torch.Tensor]:
        return [torch.empty(value.shape, dtype=value.dtype, device=value.device) for value in (x, *params)]

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        x, params, ctx.key = inputs
        ctx.save_for_backward(x, *params)

    def adjoint(ctx: Any, g: torch.Tensor) -> Any:
        x, *params = ctx.saved_tensors
        first, *rest = torch.ops.spikecore_meta.backward(g, x, params, ctx.key)
        return first, rest, None

    forward.register_autograd(adjoint, setup_context=keep)
    return torch.ops.spikecore_meta


class Registered(Plain):
    """A backend whose runner is one operator."""

    name = "registered"
    capabilities = replace(EVERYTHING, torch_compile=True, state_gradients=False, record=False)

    def compile(self, program, spec):
        """From rest only."""
        key = f"{program.key}-{spec}"
        LOOPS[key] = Loop(program, spec)

        def runner(inputs, state, params, record):
            (x,) = inputs
            if state is not None:
                raise Unsupported("from rest only")
            held = [p if isinstance(p, torch.Tensor) else torch.full((), p, device=x.device) for p in params]
            return (torch.ops.spikecore_meta.forward(x, held, key),), None, ()

        return runner


@pytest.mark.parametrize(
    ("wrong", "case", "says"),
    [
        ("fake dtype", "compile/opcheck", "test_faketensor failed"),
        ("mutates", "compile/opcheck", "not defined as mutable but was mutated"),
        ("gradient", "compile/parameters", "2 times what it should be"),
    ],
)
def test_wrong_operators_are_caught(
    operators: Any, monkeypatch: pytest.MonkeyPatch, wrong: str, case: str, says: str
) -> None:
    """A fake kernel that lies, an input written to, a wrong backward formula; the case passes without."""
    with installed(Registered) as name:
        (right,) = check_backend(name, cases=[case])
        monkeypatch.setitem(globals(), "WRONG", [wrong])
        (result,) = check_backend(name, cases=[case])
    assert (right.outcome, result.outcome) == ("passed", "failed"), f"{right.message}\n\n{result.message}"
    assert says in result.message


def test_a_torch_without_opcheck_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is not tried, and says which torch has it."""
    monkeypatch.delattr(torch.library, "opcheck")
    (result,) = check_backend("torch", cases=["compile/opcheck"])
    assert result.outcome == "unsupported"
    assert "torch.library.opcheck comes with torch 2.4" in result.message
