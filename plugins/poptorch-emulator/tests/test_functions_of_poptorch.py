"""The functions and classes of ``poptorch`` beside the wrappers: what they compute, print, call and refuse."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import refusals
from emulated_nets import Apply
from poptorch_emulator import traced

MODE = poptorch.OverlapMode.OverlapAccumulationLoop


def x_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestPrinting:
    """``ipu_print_tensor`` writes to standard error, in Poplar's form."""

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ((), "x: (\n (1.25, -2)\n (3, 40000)\n)\n"),
            (("t", True, 1000, 3, 75, 8, "fixed", ";", "[", "]"), "t: [\n [ 1.2500000;-2.0000000]\n"),
            (("t", True, 1000, 3, 15, 3, "scientific", ",", "{", "}"), "t: {\n { 1.25e+00,\n   -2.00e+00}\n"),
            (("t", True, 3, 1), "t: (\n (1.25, -2)\n (3, 4e+04)\n)\n"),
        ],
    )
    def test_values(self, arguments, text, capfd):
        x = torch.tensor([[1.25, -2.0], [3.0, 40000.0]])
        arguments = arguments or ("x", True, 1000, 3, 80, 5)
        graph = traced(lambda x: poptorch.ipu_print_tensor(x, *arguments), x)
        capfd.readouterr()
        assert torch.equal(graph(x), x)
        assert text.replace(" ", "") in capfd.readouterr().err.replace(" ", "")

    def test_gradient(self, capfd):
        """At every run; the gradient unless it is asked not to."""
        for wanted in (True, False):
            model = Apply(lambda x, model=None: None)
            model.weight = nn.Parameter(torch.ones(2))
            model.function = lambda x, model=model, wanted=wanted: poptorch.identity_loss(
                poptorch.ipu_print_tensor(x * model.weight, "y", wanted).sum(), "none"
            )
            executor = poptorch.trainingModel(model)
            for _ in range(2):
                executor(torch.tensor([0.5, 2.0]))
            printed = capfd.readouterr().err
            assert printed.count("y: (") == 2
            assert printed.count("y_gradient: (1, 1)") == 2 * wanted
            executor.destroy()


class TestComputed:
    """Functions that are one operation for PopTorch."""

    def test_dynamic_slices(self):
        x, start = x_of(8), torch.tensor([3])
        assert torch.equal(traced(lambda x, i: poptorch.dynamic_slice(x, 0, i, 4, 2), x, start)(x, start), x[3:7:2])
        zeros = torch.zeros(3)  # not a factor of 8, which an update need not be
        graph = traced(lambda x, y, i: poptorch.dynamic_update(x, y, 0, i, 3), x, zeros, start)
        assert torch.equal(graph(x, zeros, start), torch.cat([x[:3], zeros, x[6:]]))

    def test_nearest(self):
        x, y = x_of(5, 2), x_of(4, 2, seed=1)
        assert traced(poptorch.nearest, x, y)(x, y).tolist() == torch.cdist(x, y).argmin(1).tolist()
        apart = traced(lambda x, y: poptorch.nearest(x, y, [0, 0, 0, 1, 1], [0, 0, 1, 1]), x, y)(x, y)
        assert apart.tolist() == [*torch.cdist(x[:3], y[:2]).argmin(1), *(2 + torch.cdist(x[3:], y[2:]).argmin(1))]

    def test_matmul(self):
        x, y = x_of(4, 6), x_of(6, 2)
        mode = poptorch.MatMulSerializationMode.ReducingDim
        assert torch.equal(traced(lambda x, y: poptorch.serializedMatMul(x, y, mode, 2), x, y)(x, y), x @ y)
        with pytest.raises(AssertionError, match="int"):
            poptorch.serializedMatMul(x, y, mode, 2.0)

    def test_on_the_host(self):
        """``CPU`` computes with values what a graph could not."""
        double = poptorch.CPU(lambda x: (torch.from_numpy(2 * x.numpy()), x.sum()), "double")
        x = x_of(3)
        assert torch.equal(traced(lambda x: double(x)[0] + 1, x)(x), 2 * x + 1)
        model = Apply(lambda x: poptorch.identity_loss(double(x)[1], "none"))
        model.weight = nn.Parameter(torch.ones(1))
        with pytest.raises(poptorch.Error, match=r"poptorch\.CPU\(\) is only supported in inference"):
            poptorch.trainingModel(model)(x)


def test_no_effect():
    """Names, overlap and the form of convolutions change no number."""
    x, layer = x_of(1, 2, 4), nn.Conv1d(2, 2, 3)

    def function(x):
        named = poptorch.set_overlap_for_input({"x": x}, MODE)
        with poptorch.NameScope("convolutions"), poptorch.MultiConv().partialsTypes(torch.half).cycleBackOff(0.5):
            out = torch.conv1d(named["x"], torch.ones(2, 2, 3))
        return poptorch.set_overlap_for_output(out, MODE)

    assert torch.equal(traced(function, x)(x), torch.conv1d(x, torch.ones_like(layer.weight)))


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (lambda x: x + 1, "Unexpected end_multi_conv"),
        (lambda x: poptorch.MultiConv().__enter__() or x, r"Nested poptorch\.MultiConv is not supported"),
    ],
)
def test_multi_conv(inside, text):
    def function(x):
        with poptorch.MultiConv():
            return inside(x)

    with pytest.raises(poptorch.Error, match=text):
        traced(function, x_of(3))


def test_log_levels():
    logger = logging.getLogger("poptorch")
    before = logger.level
    try:
        poptorch.setLogLevel("ERR")
        assert logger.level == logging.ERROR
        poptorch.setLogLevel(2)
        assert logger.level == logging.INFO
        for level in ("LOUD", 9):
            with pytest.raises(ValueError, match="log level"):
                poptorch.setLogLevel(level)
    finally:
        logger.setLevel(before)


def test_hooks_of_compilation():
    called = []
    handles = [
        poptorch.registerPreCompileHook(lambda: called.append("before")),
        poptorch.registerPostCompileHook(lambda: called.append("after")),
    ]
    executor = poptorch.inferenceModel(Apply(lambda x: called.append("forward") or x + 1))
    for _ in range(2):
        executor(x_of(2))
    for handle in handles:
        handle.remove()
    executor.destroy()
    executor(x_of(2))
    assert called == ["before", "forward", "after", "forward"]
    with pytest.raises(RuntimeError, match="Pre-compile hook must be callable"):
        poptorch.registerPreCompileHook(2)


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):  # noqa: N802  PopTorch's name
        yield struct.a
        yield struct.b

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(*tensor_iterator)


def test_classes_of_arguments():
    """An object of a registered class comes in and goes out, and is compared by its tensors."""
    poptorch.registerCustomArgParser(Pair, PairParser())
    try:
        executor = poptorch.inferenceModel(Apply(lambda pair: Pair(pair.b, pair.a + 1)))
        for start in (0.0, 5.0):
            out = executor(Pair(torch.tensor([start]), torch.tensor([2.0])))
            assert (out.a.item(), out.b.item()) == (2.0, start + 1)
        with pytest.raises(poptorch.Error, match=r"Shape mismatch for x\[1\]"):
            executor(Pair(torch.ones(1), torch.ones(2)))
    finally:
        poptorch.registerCustomArgParser(Pair, None)
    with pytest.raises(poptorch.Error, match="must inherit from ICustomArgParser"):
        poptorch.registerCustomArgParser(Pair, object())


def test_updatable_buffers():
    """The named buffers are copied, the others are not; a name that is none is refused at compilation."""
    model = Apply(lambda x: x + model.a + model.b)
    model.register_buffer("a", torch.zeros(1))
    model.register_buffer("b", torch.zeros(1))
    executor = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["a"]))
    assert executor(torch.ones(1)).item() == 1
    model.a.fill_(10)
    model.b.fill_(100)
    executor.copyNamedBuffersToDevice()
    assert executor(torch.ones(1)).item() == 11
    executor.destroy()
    with pytest.raises(poptorch.Error, match="Invalid updatable buffer none such"):
        poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["none such"]))(torch.ones(1))
    plain = poptorch.inferenceModel(model)
    plain(torch.ones(1))
    with pytest.raises(poptorch.Error, match="No named buffers marked as updatable"):
        plain.copyNamedBuffersToDevice()


test_refused = refusals.table(__file__, globals())
