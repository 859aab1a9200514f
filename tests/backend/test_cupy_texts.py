"""The text of the cupy backend's kernels compiles with NVRTC, which needs no GPU, and becomes the instructions it must.

All combinations would be tens of thousands of kernels. These cover each pair of choices that meet in the text: every
neuron x reset x dtype, each as the plainest call and as the one that has and wants everything (with the kinds of
parameters in turn); every surrogate; every number of steps; every kind of parameter x start; every width; the oldest
and the newest GPU that NVRTC knows.

Needs CuPy and NVRTC, which ``make test-kernels`` installs. Where they are missing the tests are skipped, or fail where
``SPIKECORE_REQUIRE`` names cupy_host, the kernels of this backend without a GPU.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import pytest
import torch

import spikecore as sc
import spikecore_cupy
from cuda_texts import QUICK, arguments, built, packed, spills
from spikecore.backend import BackendError, Spec
from spikecore.core.neuron import Neuron
from spikecore.dtypes import DTYPES, WIDE, compute_dtype
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.lang.node import OPERATIONS
from spikecore.testing import edge_table, installed
from spikecore.testing.custom import CUSTOM
from spikecore.testing.models import BY_NAME, MODELS, Model
from spikecore_cupy import ElementwiseKernel, ScanKernel
from spikecore_cupy.device import compiled, headers
from spikecore_cupy.forms import FEWEST, form_of, size_of
from spikecore_cupy.host import HostBackend
from spikecore_cupy.packing import printed
from spikecore_cupy.source import print_kernel
from spikecore_cupy.sums import Statistics, Totals
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


def text_of(plan: Plan) -> str:
    """The text of a kernel."""
    return print_kernel(plan, form_of(plan)).text


def ptx_of(plan: Plan) -> str:
    """A kernel as PTX."""
    return built(text_of(plan), f"-arch=compute_{HOPPER}")[0]


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


@pytest.mark.parametrize("dtype", WIDE.values(), ids=WIDE)
def test_every_operation(dtype: torch.dtype) -> None:
    """With its adjoint: a function that the C library has and CUDA has not is found here, and not on a GPU first."""
    groups = [edges for group, edges in edge_table.GROUPS.items() if group != "surrogates"]
    programs = [edge_table.made(edges, "cupy") for edges in groups]
    seen = {node.op for neuron in programs for node in neuron.program.nodes if node.args}
    assert set(OPERATIONS) == seen
    for neuron in programs:
        compile_all(plans(neuron, dtype, 1))


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda surrogate: surrogate.__name__)
def test_every_surrogate(surrogate: Any) -> None:
    """Each with its usual arguments; in the last one spikes carry no gradient where they reset."""
    compile_all(plans(sc.LIF(surrogate=surrogate()), torch.bfloat16)[1:])
    compile_all(plans(sc.LIF(surrogate=surrogate(), detach_reset=True), torch.float64)[1:])


@pytest.mark.matrix(turn=0)
@dtypes
@pytest.mark.parametrize("steps", [1, 2, 15, 16, None])
def test_every_number_of_steps(steps: Optional[int], dtype: torch.dtype) -> None:
    """Up to 16 the number is a constant of the kernel."""
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
def test_every_gpu(dtype: torch.dtype) -> None:
    """Nothing in a kernel is of one generation; one that packs numbers at any address compiles, too."""
    from cupy_backends.cuda.libs import nvrtc

    widest = 128 // torch.finfo(dtype).bits
    known = nvrtc.getSupportedArchs()
    for arch in (min(known), max(known)):
        compile_all(plans(sc.EIF(), dtype, None, "scalar", ("tau",), everything=True), arch=arch)
        for direction, width in (("pack", 1), ("pack", widest), ("unpack", widest)):
            built(printed(direction, 4, dtype, width)[1], f"-arch=sm_{arch}")


def handwritten(dtype: torch.dtype) -> Dict[str, str]:
    """Every text that the backend writes by hand, and one of each kind of custom kernel."""
    texts: Dict[str, str] = {}

    class Unrun:
        """A kernel that is not launched. A new class each time: kernels are kept by class."""

        block = 128

        def __init__(self, name: str, text: str, types: Sequence[str], memory: int = 0) -> None:
            texts[name] = text

        def __call__(self, *arguments: Any) -> None:
            """Nothing is computed."""

    for direction, bits in itertools.product(("pack", "unpack"), (1, 8)):
        texts[f"{direction} {bits}"] = printed(direction, bits, dtype, 2)[1]
    compute, kernel = compute_dtype(dtype), Unrun
    Totals(kernel, compute)  # type: ignore[arg-type]  # what it uses of a kernel
    running = (torch.zeros(8, dtype=compute), torch.ones(8, dtype=compute), torch.tensor(0), 0.5)
    x = torch.zeros(4, 2, 8, dtype=dtype)
    Statistics(kernel, Spec(dtype, 4, ()))(Geometry(4, 16, ((1, 8),)), x, 1e-5, running)  # type: ignore[arg-type]  # the same
    body = "y = maximum(x, (real)0) * sigmoid(x);"
    texts["elementwise"] = ElementwiseKernel("gate", inputs=["x"], outputs=["y"], body=body).source_for(dtype)
    scan = ScanKernel("sum", inputs=["x"], outputs=["y"], state={"total": 0.0}, body="total += x; y = total;")
    texts["scan"] = scan.source_for(dtype)
    return texts


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_kernels_compile_with_every_file(dtype: torch.dtype) -> None:
    """No kernel calls anything as one of the files does, whichever it includes. Kernels that unpack spikes once had a
    type ``Part``; another change gave the header one of this name.
    """
    files = sorted(path.name for path in Path(spikecore_cupy.__file__).parent.glob("*.cuh"))
    assert sorted(headers('#include "recurrent.cuh"\n#include "narrow.cuh"\n#include "ahead.cuh"\n')) == files
    assert sorted(headers('#include "sums.cuh"\n#include "mine.cuh"\n')) == ["sums.cuh"]
    before = "".join(f'#include "{name}"\n' for name in files if name not in ("sums.cuh", "staged.cuh"))
    texts = handwritten(dtype)
    assert len(texts) == 9
    for name, text in texts.items():
        assert re.search(r'^#include "spikecore.cuh"$', text, re.MULTILINE), name
        built(before + text, base=QUICK)


# -- what is refused, launched and kept


def test_a_wrong_text_and_an_unknown_gpu_are_refused_in_words() -> None:
    """The kernel's name, the compiler's words and the text; the compute capability, and what to do."""
    with pytest.raises(BackendError, match=r"NVRTC refuses kernel broken; (.|\n)*undefined(.|\n)*of\n.*nowhere"):
        compiled("broken", 'extern "C" __global__ void broken(float* x) { *x = nowhere; }\n', HOPPER)
    with pytest.raises(BackendError, match=r"cannot compile for this GPU \(compute capability 1.0\): install a CuPy"):
        compiled("empty", 'extern "C" __global__ void empty() {}\n', 10)


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


def inexact(ptx: str) -> List[str]:
    """The instructions of floating-point numbers that contract, flush subnormals or approximate."""
    return re.findall(r"\b(?:fma\.\S+|mad\.\S*f\d\d|\S+\.ftz\S*|\S+\.approx\S*|div\.full\S*)", ptx)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
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
    divisions = text_of(forward).count("divided(") * form.width * form.length
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
    instructions = inexact(ptx)
    if dtype in (torch.float16, torch.bfloat16):
        assert set(instructions) == {"rcp.approx.ftz.f32", "fma.rn.f32"}
        assert "div.rn.f32" in ptx
    else:
        # two of every division by tau
        divisions = text_of(backward).count("divided(") * 16 * form_of(backward).width
        assert instructions == ["fma.rn.f32"] * (2 * divisions)


@dtypes
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_arguments_are_packed_as_the_kernel_takes_them(direction: str, dtype: torch.dtype) -> None:
    """A launch gives as many arguments, of the same sizes, as the compiled kernel has."""
    for kind in ("number", *TENSORS):
        learn = () if kind == "number" else ("tau", "rho")
        plan = plans(sc.ALIF(), dtype, None, kind, learn, everything=True)[direction == "backward"]
        source = print_kernel(plan, form_of(plan))
        assert arguments(ptx_of(plan), source.name) == packed(source.types)


@dtypes
@pytest.mark.parametrize("kind", ["period", "step"])
def test_an_input_that_broadcasts(kind: str, dtype: torch.dtype) -> None:
    """Kernels that read one, and blocks that add up its gradient beside those of parameters: in rows, fetched ahead, in
    every width. They take what a launch packs, and hold a chunk in registers.
    """
    neuron = build(next(model for model in CUSTOM if model.name == "gated"))
    for steps, param in ((16, "number"), (None, "scalar"), (None, "channel")):
        learn = () if param == "number" else own(neuron)
        forward, backward = plans(neuron, dtype, steps, param, learn)
        forward, backward = replace(forward, broadcast=("", kind)), replace(backward, broadcast=("", kind), summed=(1,))
        for plan in (forward, backward):
            form = form_of(plan)._replace(ahead=size_of(plan, FEWEST).ahead)
            for changed in (form, form._replace(width=1, ahead=False), form._replace(rows=True)):
                source = print_kernel(plan, changed)
                ptx, log = built(source.text, f"-arch=compute_{HOPPER}")
                assert arguments(ptx, source.name) == packed(source.types)
        log = built(print_kernel(backward, form_of(backward)).text, f"-arch=sm_{HOPPER}", "--ptxas-options=-v")[1]
        assert all(stores == loads == 0 for _, stores, loads in spills(log))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["if", "lif", "plif", "synaptic", "alif"])
def test_a_chunk_fits_into_registers(name: str, dtype: torch.dtype) -> None:
    """Backward over sixteen steps keeps what it needs of them in registers: nothing is spilled. The function that
    divides plainly, for numbers that are hardly ever met, may put four registers aside.
    """
    _, backward = plans(build(BY_NAME[name]), dtype, 16)
    log = built(text_of(backward), f"-arch=sm_{HOPPER}", "--ptxas-options=-v")[1]
    assert all(frame <= 16 and stores == loads == 0 for frame, stores, loads in spills(log))


@pytest.mark.parametrize("steps", [4, 8])
def test_passes_behind_two_normalisations_keep_their_values_in_registers(steps):
    """With so many blocks for a multiprocessor as if one input were normalised, they spilled 300 bytes of a thread."""
    passes = []

    class Noting(HostBackend):
        name = "noting"

        def backward(self, plan):
            passes.append(plan)
            return super().backward(plan)

    norms = [torch.nn.BatchNorm1d(4) for _ in range(2)]
    with installed(Noting, devices=("cpu",)) as name:
        neuron = sc.LIF(detach_reset=True, backend=name)
        net = sc.layers.NormNeuron(norms[0], neuron, shortcut="before", shortcut_norm=norms[1]).bfloat16()
        x, skip = (torch.rand(steps, 3, 4, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
        net(x, skip).sum().backward()
    for plan, sums in zip(passes, (True, False)):
        text = print_kernel(plan, form_of(plan)._replace(sums=sums, powers=True)).text
        log = built(text, f"-arch=sm_{HOPPER}", "--ptxas-options=-v")[1]
        assert all(stores == loads == 0 for _, stores, loads in spills(log))
