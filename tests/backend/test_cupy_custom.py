"""Kernels that people write: what they compute, what they refuse, how they read. The same on the CPU and on a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import spikecore as sc
from spikecore_cupy import ElementwiseKernel, ScanKernel, host

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.kernels), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where tensors are; on the CPU, kernels are built by g++."""
    if request.param == "cpu":
        if host.reason():
            pytest.skip(host.reason())
        monkeypatch.setitem(globals(), "ElementwiseKernel", host.HostElementwiseKernel)
        monkeypatch.setitem(globals(), "ScanKernel", host.HostScanKernel)
    return request.param


def rand(device, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(*shape, generator=generator) * 4 - 2).to(dtype).to(device)


def heaviside(body="y = x >= 0 ? 1 : 0;"):
    return ElementwiseKernel("heaviside", inputs=["x"], outputs=["y"], body=body)


def cumsum(**options):
    body = "total += x; y = total;"
    return ScanKernel("cumsum", inputs=["x"], outputs=["y"], state={"total": 0.0}, body=body, **options)


def leaky(**options):
    def body(x, v, tau, threshold):
        h = v + (x - v) / tau
        z = sc.ops.spike(h - threshold, sc.surrogate.ATan())
        v = sc.ops.select(z, 0.0, h)
        return (z, h), {"v": v}

    params = {"tau": float, "threshold": None}
    return ScanKernel("leaky", inputs=["x"], outputs=["z", "h"], state={"v": 0.0}, params=params, body=body, **options)


# -- elementwise


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("body", ["y = x >= 0 ? 1 : 0;", lambda x: sc.ops.where(x >= 0.0, 1.0, 0.0)], ids=["c", "expr"])
def test_a_body_computes_every_element_of_any_dtype_and_size(device, body, dtype):
    """C text or expression; sizes that packs divide and that they do not; views that begin anywhere."""
    kernel = heaviside(body)
    for x in (rand(device, 64, dtype=dtype), rand(device, 3, 7, dtype=dtype), rand(device, 33, dtype=dtype)[1:]):
        y = kernel(x=x)
        assert y.dtype == dtype
        assert torch.equal(y, (x >= 0).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_numbers_are_stored_and_arithmetic_is_float32(device, dtype):
    """The result is rounded once."""
    kernel = ElementwiseKernel("poly", inputs=["x"], outputs=["y"], body=lambda x: x * x * 0.1 + x / 3.0 - 0.7)
    x = rand(device, 40, dtype=dtype)
    wide = x.float()
    three = torch.full((), 3.0, device=device)  # torch takes x / 3.0 for x * (1 / 3.0)
    assert torch.equal(kernel(x=x), (wide * wide * 0.1 + wide / three - 0.7).to(dtype))


def test_a_given_output_is_filled_and_may_be_the_input(device):
    """The tensor that is given is what comes back."""
    x = rand(device, 4, 4)
    y = torch.empty_like(x)
    assert heaviside()(x=x, y=y) is y
    expected = (x >= 0).float()
    heaviside()(x=x, y=x)
    assert torch.equal(x, expected)
    assert torch.equal(y, expected)


def test_integers_and_bool_are_numbers_of_their_own_in_a_c_text(device):
    """Declared dtypes, mixed with the dtype of the call."""
    kernel = ElementwiseKernel(
        "pick",
        inputs={"x": None, "keep": torch.bool, "shift": torch.int64},
        outputs={"y": None, "kept": torch.uint8, "halved": torch.int64},
        params={"step": int},
        body="y = keep ? x : real(0); kept = keep; halved = (shift + step) / 2;",
    )
    x, shift = rand(device, 9), torch.arange(9, device=device)
    y, kept, halved = kernel(x=x, keep=x > 0, shift=shift, step=3)
    assert torch.equal(y, x.clamp(min=0.0))
    assert torch.equal(kept, (x > 0).byte())
    assert torch.equal(halved, (shift + 3) // 2)


def test_an_expression_computes_in_the_widest_float_dtype(device):
    """Integers are numbers of arithmetic: 7 / 2 is 3.5. A tensor of float64 makes arithmetic float64."""
    inputs = {"a": torch.float64, "n": torch.int32}
    outputs = {"y": torch.float64, "z": torch.float16}
    kernel = ElementwiseKernel("add", inputs=inputs, outputs=outputs, body=lambda a, n: (a + n / 2, a + n / 2))
    a, n = rand(device, 10, dtype=torch.float64) / 3, torch.arange(10, dtype=torch.int32, device=device)
    y, z = kernel(a=a, n=n)
    assert torch.equal(y, a + n.double() / 2)
    assert torch.equal(z, (a + n.double() / 2).float().half())


@pytest.mark.parametrize("weight", ["number", "one", "each"])
def test_a_parameter_is_a_number_a_tensor_of_one_number_or_one_for_each(device, weight):
    """The same text for a tensor of either shape."""
    x = rand(device, 6, 5)
    given = {"number": 0.25, "one": torch.full((), 0.25, device=device), "each": rand(device, 5, 6).t()}[weight]
    x = x.t().contiguous().t() if weight == "each" else x
    params = {"weight": float if weight == "number" else None}
    kernel = ElementwiseKernel("scale", inputs=["x"], outputs=["y"], params=params, body="y = weight * x;")
    y = kernel(x=x, weight=given)
    assert torch.equal(y, given * x)
    assert y.stride() == x.stride()


def test_a_c_text_may_return_early_know_its_place_and_call_functions_of_the_header(device):
    """Values that it does not set are 0."""
    kernel = ElementwiseKernel(
        "place",
        inputs=["x"],
        outputs=["y"],
        header="__device__ inline float third(float x) { return x / 3.0f; }",
        body="""
            if (i >= N / 2) return;
            y = third(x) + i;
        """,
    )
    x = rand(device, 10)
    place = torch.arange(10, device=device)
    three = torch.full((), 3.0, device=device)  # torch takes x / 3.0 for x * (1 / 3.0)
    assert torch.equal(kernel(x=x), torch.where(place < 5, x / three + place, torch.zeros_like(x)))


def test_names_of_a_body_never_meet_those_of_the_kernel(device):
    """Values called like pointers, temporaries and results around them, and like an element of an output."""

    def body(x, xs, t1, spike):
        y = x + xs
        new_y = y * t1 + spike
        return new_y * new_y, y

    kernel = ElementwiseKernel("names", inputs=["x", "xs", "t1", "spike"], outputs=["y", "new_y"], body=body)
    x, xs, t1, spike = (rand(device, 8) + k for k in range(4))
    y, new_y = kernel(x=x, xs=xs, t1=t1, spike=spike)
    assert torch.equal(new_y, x + xs)
    assert torch.equal(y, ((x + xs) * t1 + spike) * ((x + xs) * t1 + spike))
    scaled = ElementwiseKernel("scaled", inputs=["x"], outputs=["w"], params=["w_j"], body="w = x * w_j;")
    torch.testing.assert_close(scaled(x=x, w_j=3.0), 3.0 * x)


# -- over time


@pytest.mark.parametrize("steps", [0, 1, 5, 19])
def test_a_scan_goes_forward_or_back_and_hands_its_state_on(device, steps):
    """From a number, from a tensor, and on from where it stopped."""
    x = rand(device, steps, 3, 2)
    zero = torch.zeros(3, 2, device=device)
    y, end = cumsum(final=["total"])(x=x)
    expected = [zero]
    for x_t in x:
        expected.append(expected[-1] + x_t)
    assert torch.equal(torch.stack(expected)[1:] if steps else y, y)
    assert torch.equal(end, expected[-1])
    y, end = cumsum(final=["total"], reverse=True)(x=x.flip(0))
    assert torch.equal(y.flip(0), torch.stack(expected)[1:] if steps else y)
    first = rand(device, 3, 2)
    for start in (1.5, first):
        found = cumsum(final=["total"])(x=x, total=start)
        assert torch.equal(found.total_end, found.y[-1] if steps else zero + start)
    half = steps // 2
    once, again = cumsum(final=["total"]), cumsum()
    y, end = once(x=x[:half])
    assert torch.equal(torch.cat([y, again(x=x[half:], total=end)]), cumsum()(x=x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_scan_of_expressions_is_the_neuron_of_the_same_equations(device, dtype):
    """Bit for bit, in every dtype."""
    x = rand(device, 11, 4, 6, dtype=dtype) * 2
    z, _, v = leaky(final=["v"])(x=x, tau=2.5, threshold=torch.ones((), dtype=dtype, device=device))
    expected, state = sc.LIF(tau=2.5, backend="torch").run(x)
    assert torch.equal(z, expected)
    assert torch.equal(v, state["v"])
    assert v.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_layouts_are_taken_as_they_are(device):
    """Channels-last, part of a batch, one step for all times; the result lies as the first input does."""
    threshold = torch.ones(6, 4, 5, device=device)
    whole = rand(device, 7, 8, 6, 4, 5)
    last = whole[:, 0].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for x in (last, whole[:, 3], whole[0, 0].expand(7, 6, 4, 5)):
        there = threshold.as_strided(threshold.shape, last.stride()[1:]) if x is last else threshold
        found = leaky()(x=x, tau=2.0, threshold=there)
        expected = leaky()(x=x.contiguous(), tau=2.0, threshold=threshold)
        assert torch.equal(found.z, expected.z)
        assert torch.equal(found.h, expected.h)
        assert found.z.stride()[1:] == x.stride()[1:]


# -- refused


CALLS = {
    "cumsum has no 'z'; it takes x, and may be given total, y": lambda x: cumsum()(x=x, z=x),
    "cumsum misses 'x'; it takes x, and may be given total, y": lambda x: cumsum()(y=x),
    "x must be a tensor, not 3": lambda x: cumsum()(x=3),
    "total must be a number or a tensor, not 'a'": lambda x: cumsum()(x=x, total="a"),
    "tau must be a number": lambda x: leaky()(x=x, tau=x, threshold=x[0]),
    "k must be a whole number, not 0.5": lambda x: elementwise(params={"k": int})(x=x, k=0.5),
    "k=1180591620717411303424 does not fit 64 bits": lambda x: elementwise(params={"k": int})(x=x, k=2**70),
    "x is torch.int64; right are torch.float32, torch.float64": lambda x: cumsum()(x=x.long()),
    "y is torch.float16 and x is torch.float32; tensors": lambda x: cumsum()(x=x, y=x.half()),
    "total is torch.float64; right is torch.float32": lambda x: cumsum()(x=x, total=x[0].double()),
    "is on meta and x is on": lambda x: cumsum()(x=x, total=torch.empty(4, 6, device="meta")),
    "x is on meta; kernels run on": lambda x: cumsum()(x=x.to("meta")),
    "x has no dimension; right is [T, *N]": lambda x: cumsum()(x=x.sum()),
    "y has shape [3, 4]; right is [3, 4, 6], as x says": lambda x: cumsum()(x=x, y=x[..., 0]),
    "threshold has shape [6]; right is [4, 6] or one number": lambda x: leaky()(x=x, tau=2.0, threshold=x[0, 0]),
    "x has strides (24, 6, 2); each step must lie": lambda x: cumsum()(x=x[..., ::2]),
    "total has strides (1, 4); must lie": lambda x: cumsum()(x=x, total=x[0].reshape(6, 4).t()),
    "y has strides (0, 6, 1); must lie": lambda x: cumsum()(x=x, y=x[:1].clone().expand(3, 4, 6)),
    "y shares memory with x; what a kernel fills must": lambda x: cumsum()(x=x, y=x),
    "y shares memory with x; what a kernel fills may be": lambda x: heaviside()(x=x.view(-1)[:-2], y=x.view(-1)[2:]),
    "x requires grad: a kernel has no gradient": lambda x: cumsum()(x=x.clone().requires_grad_()),
    "nothing else says the sizes": lambda x: ScanKernel("k", outputs=["y"], body="y = t;")(),
}


@pytest.mark.parametrize("words", CALLS)
def test_a_wrong_call_is_refused_by_name(device, words):
    """With what was given and what would be right."""
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        CALLS[words](rand(device, 3, 4, 6))
    assert words in str(caught.value)


def elementwise(**changed):
    return ElementwiseKernel(**{"name": "k", "inputs": ["x"], "outputs": ["y"], "body": "y = x;", **changed})


DECLARATIONS = {
    "kernel '2x' is no name": lambda: elementwise(name="2x"),
    "kernel 'exp' is a word": lambda: elementwise(name="exp"),
    "input 'float' is a word of Python, of CUDA C++": lambda: elementwise(inputs=["float"]),
    "output '_y' is no name": lambda: elementwise(outputs="_y"),
    "'x' is declared twice": lambda: elementwise(outputs=["x"]),
    "gives nothing: declare an output": lambda: elementwise(outputs=[]),
    "input 'x' has kind <class 'float'>; right are None": lambda: elementwise(inputs={"x": float}),
    "param 'a' has kind torch.complex64; right are float, int, None": lambda: elementwise(
        params={"a": torch.complex64}
    ),
    "body must be a C text or a function": lambda: elementwise(body=3),
    "the body gets its values by name, x: ": lambda: elementwise(body=lambda u: u),
    "the body returns None where an expression must be": lambda: elementwise(body=lambda x: None),
    "the body returns 2 outputs; declared are: y": lambda: elementwise(body=lambda x: (x, x)),
    "a Python decision": lambda: elementwise(body=lambda x: x if x > 0 else -x),
    "the body must return (output, {state: next value})": lambda: ScanKernel(
        "k", inputs=["x"], outputs=["y"], body=lambda x: x
    ),
    "no next value for state 'v'": lambda: ScanKernel(
        "k", inputs=["x"], outputs=["y"], state={"v": 0.0}, body=lambda x, v: (x, {})
    ),
    "final has 'u', which is no state; its states are: total": lambda: cumsum(final=["u"]),
    "state 'v' starts at None": lambda: ScanKernel("k", outputs=["y"], state={"v": None}, body="y = v;"),
}


@pytest.mark.parametrize("words", DECLARATIONS)
def test_a_wrong_declaration_is_refused_by_name(words):
    """When the kernel is made, without a compiler."""
    with pytest.raises((TypeError, ValueError)) as caught:
        DECLARATIONS[words]()
    assert words in str(caught.value)


def test_a_c_text_that_does_not_compile_shows_the_compilers_log(device):
    """And the whole source."""
    with pytest.raises(sc.backend.BackendError) as caught:
        elementwise(body="y = nowhere;")(x=rand(device, 2))
    assert "nowhere" in str(caught.value)
    assert 'extern "C" __global__' in str(caught.value)


@pytest.mark.skipif(host.reason() is not None, reason=str(host.reason()))
def test_kernels_of_the_cpu_and_of_a_gpu_are_beside_each_other():
    """Which one a kernel is, is said by its class, and not by the process."""
    made = {"name": "twice", "inputs": ["x"], "outputs": ["y"], "body": "y = x + x;"}
    here, there = host.HostElementwiseKernel(**made), ElementwiseKernel(**made)
    x = rand("cpu", 5)
    assert torch.equal(here(x=x), x + x)
    with pytest.raises(ValueError, match="kernels run on an NVIDIA GPU"):
        there(x=x)
    assert here.source == there.source


# -- text


def test_the_source_of_an_expression_is_the_expression():
    """Its own names for values, nothing that is not needed, the equations on top."""
    source = leaky().source_for(torch.bfloat16)
    assert "// leaky: bfloat16 in memory, float32 arithmetic." in source
    assert "//   step  t1 = v + (x - v) / tau" in source
    assert "    const float t1 = v + (x - v) / tau;\n" in source
    assert "    new_v = z != 0.0f ? 0.0f : t1;\n" in source


@pytest.mark.kernels
@pytest.mark.skipif(find_spec("cupy_backends") is None, reason="NVRTC comes with CuPy")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nvrtc_compiles_the_texts(dtype):
    """Every kind of value, in every dtype, for every width."""
    from spikecore_cupy.custom.declared import Typed
    from spikecore_cupy.device import compiled

    mixed = ElementwiseKernel(
        "mixed",
        inputs={"x": None, "keep": torch.bool, "n": torch.int64},
        outputs={"y": None, "m": torch.int32},
        params={"a": float, "k": int, "w": None},
        body="y = keep ? a * x + w : real(k); m = (int)n;",
    )
    for kernel in (heaviside(), mixed, cumsum(final=["total"], reverse=True), leaky(final=["v"])):
        typed = Typed(kernel.values, dtype, kernel.access)
        width = typed.width
        while width:
            assert compiled(kernel.name, kernel._printed(typed, width).text, 90)
            width //= 2


# -- GPUs


@pytest.mark.gpu
def test_a_launch_is_on_the_current_stream_and_can_be_captured():
    """A CUDA graph of a kernel runs again on what its input has become."""
    kernel, x, y = cumsum(), rand("cuda", 5, 64), torch.empty(5, 64, device="cuda")
    kernel(x=x, y=y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x=x, y=y)
    x.fill_(2.0)
    graph.replay()
    assert torch.equal(y, x.cumsum(0))


@pytest.mark.gpu
def test_a_launch_is_on_the_device_of_its_tensors():
    """Whichever is the current one."""
    last = torch.cuda.device_count() - 1
    x = rand(f"cuda:{last}", 5, 4)
    with torch.cuda.device(0):
        y = cumsum()(x=x)
    assert y.device == x.device
    assert torch.equal(y, x.cumsum(0))
