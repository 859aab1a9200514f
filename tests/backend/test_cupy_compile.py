"""The text of the cupy backend's kernels compiles with NVRTC, which needs no GPU, and becomes the instructions it must.

All combinations would be tens of thousands of kernels. These cover each pair of choices that meet in the text: every
neuron x reset x dtype, each as the plainest call and as the one that has and wants everything (with the kinds of
parameters in turn); every surrogate x dtype; every number of steps x dtype; every kind of parameter x start x dtype;
every width x dtype; the oldest and the newest GPU that NVRTC knows x dtype.

Needs CuPy and NVRTC, which ``make test-kernels`` installs. Where they are missing the tests are skipped, or fail where
``SPIKECORE_REQUIRE`` names cupy_host, the kernels of this backend without a GPU.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Optional, Sequence, Tuple, Union

import pytest
import torch

import spikecore as sc
from spikecore.backend import BackendError, Spec
from spikecore.dtypes import DTYPES, WIDE
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang.node import OPERATIONS
from spikecore.neuron import Neuron
from spikecore.testing import _edge_table as edge_table
from spikecore.testing._custom import CUSTOM
from spikecore.testing._models import BY_NAME, MODELS, Model
from spikecore_cupy.device import OPTIONS, Kernel, compiled, headers
from spikecore_cupy.forms import form_of
from spikecore_cupy.source import print_kernel
from spikecore_cupy.text import Form

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("nvrtc")]

Plan = Union[ForwardPlan, BackwardPlan]

#: The GPU that kernels are compiled for where nothing else is said: an H100 or H200.
HOPPER = 90
TENSORS = ("scalar", "channel", "full")
SURROGATES = [cls for cls in sc.Surrogate.__subclasses__() if cls.__name__ in sc.surrogate.__all__]
CHOICES = [(model, reset) for model in (*MODELS, *CUSTOM) for reset in model.resets]
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def plans(
    neuron: Neuron,
    dtype: torch.dtype,
    steps: Optional[int] = 4,
    kind: str = "number",
    learn: Sequence[str] = (),
    everything: bool = False,
) -> Tuple[ForwardPlan, BackwardPlan]:
    """The plans of a call: at rest with no more than outputs, or one that has and wants ``everything``."""
    program = neuron.program
    kinds = tuple("number" if name in program.numbers else kind for name in program.params)
    spec = Spec(dtype, steps, kinds, tuple(learn), final=everything)
    states = tuple(program.states) if everything else ()
    forward = ForwardPlan(
        program, spec, states, has_initial_state=everything, final=everything, checkpoints=steps is None
    )
    backward = BackwardPlan(
        program,
        spec,
        has_initial_state=everything,
        outputs=(True,) * len(program.outputs),
        trace=states,
        final=everything,
        inputs=(True,) * len(program.inputs),
        state=everything,
        learn=tuple(learn),
    )
    return forward, backward


def build(model: Model, reset: Optional[str] = None, **options: Any) -> Neuron:
    """The neuron of a model."""
    return model.build("cupy", reset or model.resets[0], model.params, **options)


def own(neuron: Neuron) -> Tuple[str, ...]:
    """The parameters that are no numbers of a surrogate."""
    return tuple(name for name in neuron.program.params if name not in neuron.program.numbers)


def compile_all(plans: Sequence[Plan], form: Optional[Form] = None, arch: int = HOPPER) -> None:
    """Compile the kernels of these plans; what NVRTC refuses is an error with its log."""
    for plan in plans:
        source = print_kernel(plan, form or form_of(plan))
        assert compiled(source.name, source.text, arch)


# -- everything compiles


@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize(
    ("model", "reset", "dtype", "kind"),
    [
        pytest.param(model, reset, DTYPES[dtype], kind, id=f"{model.name}-{reset}-{dtype}-{kind}")
        for ((model, reset), dtype), kind in zip(itertools.product(CHOICES, DTYPES), itertools.cycle(TENSORS))
    ],
)
def test_every_neuron(model: Model, reset: str, dtype: torch.dtype, kind: str) -> None:
    """The plainest call over four steps, and the fullest one over any number."""
    neuron = build(model, reset)
    compile_all(plans(neuron, dtype))
    compile_all(plans(neuron, dtype, None, kind, own(neuron), everything=True))


@pytest.mark.parametrize("model", [pytest.param(model, id=model.name) for model in MODELS if model.fires])
def test_every_detached_reset(model: Model) -> None:
    """The adjoint in which spikes carry no gradient where they reset."""
    compile_all(plans(build(model, detach=True), torch.float32)[1:])


@pytest.mark.parametrize("dtype", WIDE.values(), ids=WIDE)
def test_every_operation(dtype: torch.dtype) -> None:
    """With its adjoint: a function that the C library has and CUDA has not is found here, and not on a GPU first."""
    groups = [edges for group, edges in edge_table.GROUPS.items() if group != "surrogates"]
    programs = [edge_table.made(edges, "cupy") for edges in groups]
    seen = {node.op for neuron in programs for node in neuron.program.nodes if node.args}
    assert set(OPERATIONS) == seen
    for neuron in programs:
        compile_all(plans(neuron, dtype, 1))


@dtypes
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda surrogate: surrogate.__name__)
def test_every_surrogate(surrogate: Any, dtype: torch.dtype) -> None:
    """Each with its usual arguments."""
    compile_all(plans(sc.LIF(surrogate=surrogate()), dtype)[1:])


@pytest.mark.matrix(turn=0)
@dtypes
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 15, 16, None])
def test_every_number_of_steps(steps: Optional[int], dtype: torch.dtype) -> None:
    """Up to 16 the number is a constant of the kernel."""
    compile_all(plans(sc.LIF(), dtype, steps))
    compile_all(plans(sc.ALIF(), dtype, steps, "scalar", ("tau", "rho")))


@pytest.mark.matrix(turn=0)
@dtypes
@pytest.mark.parametrize("everything", [False, True], ids=["rest", "given"])
@pytest.mark.parametrize("kind", ["number", *TENSORS])
def test_every_kind_of_parameter(kind: str, everything: bool, dtype: torch.dtype) -> None:
    """Not learnt, one of them learnt, all of them learnt."""
    neuron = sc.KLIF(scale_reset=True)
    for learn in [(), ("tau",), own(neuron)] if kind != "number" else [()]:
        compile_all(plans(neuron, dtype, 4, kind, learn, everything))


@dtypes
@pytest.mark.parametrize("steps", [4, 16, None])
def test_every_width(steps: Optional[int], dtype: torch.dtype) -> None:
    """From the widest accesses down to single numbers."""
    for plan in plans(sc.LIF(), dtype, steps, "channel", ("tau",), everything=True):
        form = form_of(plan)
        while form.width:
            compile_all([plan], form)
            form = form._replace(width=form.width // 2)


@dtypes
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_every_gpu(which: str, dtype: torch.dtype) -> None:
    """Nothing in a kernel is of one generation."""
    from cupy_backends.cuda.libs import nvrtc

    known = nvrtc.getSupportedArchs()
    arch = min(known) if which == "oldest" else max(known)
    for neuron in (sc.LIF(), sc.EIF()):
        compile_all(plans(neuron, dtype, None, "scalar", ("tau",), everything=True), arch=arch)


# -- what is refused


def test_a_wrong_text_is_refused_in_words() -> None:
    """The error has the kernel's name, the compiler's words, and the text."""
    with pytest.raises(BackendError, match=r"NVRTC refuses kernel broken:(.|\n)*undefined(.|\n)*of\n.*nowhere"):
        compiled("broken", 'extern "C" __global__ void broken(float* x) { *x = nowhere; }\n', HOPPER)


def test_an_unknown_gpu_is_refused_in_words() -> None:
    """The error says which compute capability NVRTC does not know, and what to do."""
    with pytest.raises(BackendError, match=r"cannot compile for this GPU \(compute capability 1.0\): install a CuPy"):
        compiled("empty", 'extern "C" __global__ void empty() {}\n', 10)


def test_a_launch_is_on_the_current_stream_of_any_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch's private function the public one is asked: the number of the device is not a stream's address."""
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0x5500 + device))
    kernel, launches = Kernel("any", "", ("int",)), []
    monkeypatch.setattr(kernel, "_current", lambda: 1)
    monkeypatch.setattr(kernel, "_launch", lambda *arguments: launches.append(arguments))
    monkeypatch.setattr(kernel, "_buffer", lambda device: (bytearray(4), 0))
    monkeypatch.setattr(kernel, "_load", lambda device: (0xF0, None))
    kernel(3, 1, (7,))
    assert launches == [(0xF0, 3, 1, 1, kernel.block, 1, 1, 0, 0x5501, 0, 0)]


def test_code_is_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time the code comes from disk, and is the same; another GPU's is another entry."""
    from cupy_backends.cuda.libs import nvrtc

    monkeypatch.setenv("SPIKECORE_CACHE_DIR", str(tmp_path))
    source = print_kernel(plans(sc.LIF(), torch.float32)[0], Form(2))
    code = compiled(source.name, source.text, HOPPER)
    assert compiled(source.name, source.text, min(nvrtc.getSupportedArchs())) != code
    monkeypatch.setattr(nvrtc, "compileProgram", None)
    assert compiled(source.name, source.text, HOPPER) == code
    assert len(list((tmp_path / "compiled-kernels").glob("cupy.*.cubin"))) == 2


# -- what it becomes


def built(plan: Plan, *options: str) -> Tuple[str, str]:
    """A kernel as PTX, and what the compiler said."""
    from cupy_backends.cuda.libs import nvrtc

    source = print_kernel(plan, form_of(plan))
    included = headers(source.text)
    texts, names = [one.encode() for one in included.values()], [one.encode() for one in included]
    program = nvrtc.createProgram(source.text, "kernel.cu", texts, names)
    try:
        nvrtc.compileProgram(program, (*OPTIONS, *options))
        ptx = nvrtc.getPTX(program)
        return (ptx.decode() if isinstance(ptx, bytes) else ptx), nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def ptx_of(plan: Plan) -> str:
    """A kernel as PTX."""
    return built(plan, f"-arch=compute_{HOPPER}")[0]


def inexact(ptx: str) -> List[str]:
    """The instructions of floating-point numbers that contract, flush subnormals or approximate."""
    return re.findall(r"\b(?:fma\.\S+|mad\.\S*f\d\d|\S+\.ftz\S*|\S+\.approx\S*|div\.full\S*)", ptx)


@dtypes
@pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=model.name) for model in MODELS if model.arithmetic and "nodecay" not in model.name],
)
def test_forward_arithmetic_is_exact(model: Model, dtype: torch.dtype) -> None:
    """No product is contracted into a sum but two in a division by a parameter, no subnormal number is flushed, nothing
    is approximate.
    """
    forward, _ = plans(build(model), dtype, None, everything=True)
    form = form_of(forward)
    divisions = print_kernel(forward, form).text.count("divided(") * form.width * form.length
    assert inexact(ptx_of(forward)) == ["fma.rn.f32"] * (2 * divisions)


@dtypes
def test_division_is_that_of_ieee(dtype: torch.dtype) -> None:
    """LIF divides by tau, correctly rounded: in float32 with one reciprocal for all steps and neurons of a thread, as
    correctly rounded, and with a plain division for what that is not right for.
    """
    ptx = ptx_of(plans(sc.LIF(), dtype)[0])
    word, reciprocals = ("f64", 0) if dtype == torch.float64 else ("f32", 1)
    assert f"div.rn.{word}" in ptx
    assert re.findall(r"\brcp\.\w+\.\w+", ptx) == ["rcp.rn.f32"] * reciprocals


@dtypes
def test_backward_approximates_where_it_is_rounded_away(dtype: torch.dtype) -> None:
    """In the adjoint of 16-bit calls divisions may be approximate; those of the steps computed again are exact."""
    _, backward = plans(sc.LIF(), dtype, 16)
    ptx = ptx_of(backward)
    found = inexact(ptx)
    if dtype in (torch.float16, torch.bfloat16):
        assert set(found) == {"rcp.approx.ftz.f32", "fma.rn.f32"}
        assert "div.rn.f32" in ptx
    else:
        # two of every division by tau
        form = form_of(backward)
        divisions = print_kernel(backward, form).text.count("divided(") * 16 * form.width
        assert found == ["fma.rn.f32"] * (2 * divisions)


class Steep(sc.Surrogate):
    """A derivative that divides values of a step by each other."""

    def derivative(self, u: Any) -> Any:
        return sc.ops.abs(u) / (1.0 + u * u * u * u)


class Large(sc.Surrogate):
    """A derivative of numbers at the end of the range."""

    def derivative(self, u: Any) -> Any:
        return 1e38 / (1e38 + 1e38 * u * u)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("surrogate", "scaled"), [(sc.surrogate.ATan(), False), (Large(), True)])
def test_an_approximate_division_has_no_upper_bound(surrogate: Any, scaled: bool, dtype: torch.dtype) -> None:
    """Of a large number the reciprocal is that of a quarter of the divisor, since a GPU's is 0 above 2^126; of another
    it is the divisor's own, and costs no multiplication; what is no number divides in full.
    """
    backward = plans(sc.LIF(surrogate=surrogate), dtype, 4)[1]
    ptx = ptx_of(backward)
    reciprocals = re.findall(r"rcp\.approx\.ftz\.f32 \S+, (\S+);", ptx)
    quarters = re.findall(r"mul\.rn\.f32\s+(\S+), \S+, 0f3E800000;", ptx)
    assert len(reciprocals) == 4 * form_of(backward).width
    assert set(reciprocals) <= set(quarters) if scaled else not quarters
    assert set(inexact(ptx_of(plans(sc.LIF(surrogate=Steep()), dtype, 4)[1]))) == {"div.full.f32", "fma.rn.f32"}


@dtypes
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_arguments_are_packed_as_the_kernel_takes_them(direction: str, dtype: torch.dtype) -> None:
    """A launch gives as many arguments, of the same sizes, as the compiled kernel has."""
    sizes = {"long long": 64, "int": 32, "float": 32, "double": 64}
    for kind in ("number", *TENSORS):
        learn = () if kind == "number" else ("tau", "rho")
        plan = plans(sc.ALIF(), dtype, None, kind, learn, everything=True)[direction == "backward"]
        source = print_kernel(plan, form_of(plan))
        entry = re.search(rf"\.entry {source.name}\((.*?)\)", ptx_of(plan), re.DOTALL)
        assert entry is not None
        taken = [int(size) for size in re.findall(r"\.param \.[a-z](\d+)", entry[1])]
        assert taken == [64 if "*" in name else sizes[name] for name in source.types]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["if", "lif", "leaky", "plif", "synaptic", "alif"])
def test_a_chunk_fits_into_registers(name: str, dtype: torch.dtype) -> None:
    """Backward over sixteen steps keeps what it needs of them in registers: nothing is spilled. The function that
    divides plainly, for numbers that are hardly ever met, may put four registers aside.
    """
    _, backward = plans(build(BY_NAME[name]), dtype, 16)
    _, log = built(backward, f"-arch=sm_{HOPPER}", "--ptxas-options=-v")
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert found
    assert all(int(frame) <= 16 and stores == loads == "0" for frame, stores, loads in found)
