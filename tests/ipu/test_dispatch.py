"""Operations for PopTorch: torch 2.0.1 dispatches every neuron and loss as it does for PopTorch's device, and each
operation that arrives has a handler there. Ways and names are those of ``poptorch_emulator.handlers``.
"""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import spikecore as sc
from poptorch_emulator import handlers
from spikecore import surrogate
from spikecore.testing import installed
from spikecore_ipu import backend

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.0."),
    reason="PopTorch 3.4 is for torch 2.0.1; what another torch makes of a function is not what PopTorch gets",
)

#: In torch's order.
KERNELS = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


class Dispatch(TorchDispatchMode):
    """Follows torch's dispatcher to the operations that PopTorch gets, and notes those that it has nothing for."""

    def __init__(self):
        super().__init__()
        self.missing = set()
        self.reached = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().replace("aten::", "")
        base = name.split(".")[0]
        if func.name().startswith("prim::"):
            return func(*args, **kwargs)
        if name not in handlers.WHOLE:
            for key in KERNELS:
                if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
                    with self:
                        return func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)
            if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta"):
                self.missing.add(f"{name}, for whose shape there is no kernel")
        if handlers.handler_name(base) not in handlers.HANDLERS and base not in MEMORY:
            self.missing.add(name)
        self.reached.add(name)
        return func(*args, **kwargs)


#: They make or share memory, and compute nothing.
MEMORY = ("empty", "empty_strided", "alias", "detach")


class OnMeta(backend.IpuBackend):
    """The backend's operations on tensors without memory, of which torch takes nothing apart before its dispatcher."""

    name = "ipu_on_meta"

    def compile(self, program, spec):
        """The interpreter, with the operations of a device."""
        return super().compile(program, spec).interpret


@pytest.fixture(autouse=True, scope="module")
def _on_meta():
    with installed(OnMeta, devices=("meta",)), pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend.PLAIN, "sqrt", torch.sqrt)  # as on a device
        yield


def followed(function, *tensors):
    """The operations of ``function`` that PopTorch gets."""
    mode = Dispatch()
    with torch.inference_mode():  # or autograd takes compositions apart
        inputs = [tensor.to("meta") for tensor in tensors]
        with mode:
            function(*inputs)
    return mode


def dispatched(function, *tensors):
    """Those that have no handler."""
    return followed(function, *tensors).missing


NEURONS = [*sc.neurons.MODELS.values()]
SURROGATES = [
    kind
    for kind in vars(surrogate).values()
    if inspect.isclass(kind) and issubclass(kind, surrogate.Surrogate) and kind is not surrogate.Surrogate
]
RESETS = ("hard", "soft", "none")


def made(neuron, **keywords):
    """A neuron with these keywords; None if it has no such choice."""
    known = inspect.signature(neuron.__init__).parameters
    if any(name in ("reset",) and name not in known for name in keywords):
        return None
    return sc.neurons.example(neuron.__name__, **keywords, backend="ipu_on_meta")


def programs():
    """Every neuron under every surrogate and reset that it has."""
    for neuron, kind, reset in itertools.product(NEURONS, SURROGATES, RESETS):
        one = made(neuron, surrogate=kind(), reset=reset)
        if one is None and reset == "hard":
            one = made(neuron, surrogate=kind())
        if one is not None:
            yield f"{neuron.__name__}-{kind.__name__}-{reset}", one


def test_every_neuron_surrogate_and_reset():
    """Every operation of a neuron has a handler, for each surrogate and reset."""
    x = torch.rand(2, 3, 4)
    count = 0
    for name, one in programs():
        count += 1
        neuron = one.to("meta")
        inputs = [x] * len(neuron.inputs) if isinstance(neuron, sc.CobaLIF) else [x]
        assert dispatched(lambda *x, of=neuron: of.run(*x, record=tuple(of.states))[0], *inputs) == set(), name
    assert count > 400


@pytest.mark.parametrize("keywords", [{"detach_reset": True}, {"learn": ("threshold",)}, {"threshold": torch.rand(4)}])
@pytest.mark.parametrize("neuron", NEURONS)
def test_ways_to_make_a_neuron(neuron, keywords):
    """Detached resets, learnt and per-channel parameters."""
    if "threshold" not in neuron.params and "detach_reset" not in keywords:
        keywords = {"learn": (next(iter(neuron.params)),)}
    if neuron is sc.DHLIF and isinstance(keywords.get("threshold"), torch.Tensor):
        keywords = {"threshold": torch.rand(3)}  # its input is [..., branches]
    one = made(neuron, **keywords).to("meta")
    inputs = [torch.rand(2, 3, 4)] * (2 if neuron is sc.CobaLIF else 1)
    assert dispatched(one, *inputs) == set()


@pytest.mark.parametrize("name", ["ce_count", "ce_rate", "ce_max_membrane", "mse_count", "mse_membrane"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_loss(name, reduction):
    """Every operation of a loss has a handler."""
    loss = getattr(sc.losses, name)
    keywords = {"reduction": reduction} if "reduction" in inspect.signature(loss).parameters else {}
    assert dispatched(lambda x, y: loss(x, y, **keywords), torch.rand(4, 3, 5), torch.tensor([0, 4, 2])) == set()


def test_every_regularizer():
    """So has what a regulariser is made of."""
    x = torch.rand(4, 3, 5)
    assert dispatched(lambda x: sc.losses.rate_regularizer(x, target=(0.1, 0.5)), x) == set()
    assert dispatched(sc.losses.rate_sparsity, x) == set()


@pytest.mark.parametrize("function", [torch.heaviside, torch.xlogy, torch.hypot, torch.logical_xor, torch.nextafter])
def test_what_has_no_handler_is_seen(function):
    """The check tells what PopTorch refuses."""
    assert dispatched(lambda x: function(x, x), torch.rand(2, 3))


def test_what_reaches_the_device():
    """Structured operations arrive as ``out`` variants, after memory for them: torch's own dispatch was followed."""
    reached = followed(sc.LIF(backend="ipu_on_meta"), torch.rand(2, 3, 4)).reached
    assert {"detach", "mul.out", "add.out", "ge.Scalar_out", "empty_strided"} <= reached


class Everything(sc.Neuron):
    """Each operation of the language."""

    states = {"v": 0.0}
    params = {"a": 0.5, "b": 2.0}

    def dynamics(self, x, s, p):
        o = sc.ops
        h = o.exp(-abs(x)) + o.log(o.sqrt(o.abs(s.v) + 1.0)) - o.tanh(x) * o.sigmoid(x) / (o.atan(x) + p.b)
        h = h + o.sign(x) + o.floor(x) + o.round(x) + o.power(o.abs(x) + 1.0, p.a) + o.clamp(x, -p.a, p.a)
        h = o.minimum(h, p.b) + o.maximum(x, p.a) + o.detach(h)
        h = o.where((x > 0) & ~(x >= p.b) | (x != s.v), h, x)
        z = self.spike(h - 1.0, strict=True)
        return z, {"v": o.select(z, p.a, h)}


def test_every_operation_of_the_language():
    """A neuron of one's own may use all of them."""
    assert dispatched(Everything(backend="ipu_on_meta"), torch.rand(2, 3, 4)) == set()
