"""Dialects of C: what differs between the languages that kernels and programs are printed in, one row each.

A name of a user is free in a text if neither the text nor its dialect has that word: printers give way to both. So any
name is free on every backend, and :data:`WORDS` is what a test of one draws from.
"""

from __future__ import annotations

from typing import FrozenSet, Mapping, NamedTuple, Tuple

#: Words of C++ up to C++23 and of its compilers.
_LANGUAGE = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue "
    "contract_assert decltype default delete do double dynamic_cast else enum explicit export extern false float "
    "for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq "
    "private protected public register reinterpret_cast requires restrict return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename "
    "typeof union unsigned using virtual void volatile wchar_t while xor xor_eq"
)

#: Macros of compilers and of the C library that are written in small letters; the others begin with an underscore or
#: with capitals, which ``Printer.legal`` changes.
_MACROS = (
    "alloca assert assert_perror be16toh be32toh be64toh complex errno fpclassify htobe16 htobe32 htobe64 htole16 "
    "htole32 htole64 i386 imaginary isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan "
    "isnormal issubnormal isunordered le16toh le32toh le64toh linux math_errhandling offsetof setjmp signbit "
    "stderr stdin stdout strdupa strndupa unix va_arg va_copy va_end va_start vax"
)

#: Words of C and C++ that no name may be, although the text of a kernel need not have them.
C_WORDS = frozenset(f"{_LANGUAGE} {_MACROS}".split())

#: Words of OpenCL C that C has not: qualifiers, types, and functions, which compilers may have as macros.
_OPENCL_WORDS = frozenset(
    (
        "kernel global local constant generic pipe uniform read_only write_only read_write half uchar ushort uint "
        "ulong quad size_t ptrdiff_t intptr_t uintptr_t sampler_t event_t queue_t ndrange_t clk_event_t reserve_id_t "
        "cl_mem_fence_flags memory_order memory_scope atomic_int atomic_uint atomic_long atomic_ulong atomic_float "
        "atomic_double atomic_flag image1d_t image1d_array_t image1d_buffer_t image2d_t image2d_array_t "
        "image2d_depth_t image2d_array_depth_t image2d_msaa_t image2d_array_msaa_t image3d_t vec_step get_work_dim "
        "get_global_size get_global_id get_local_size get_local_id get_num_groups get_group_id get_global_offset "
        "barrier mem_fence read_mem_fence write_mem_fence prefetch shuffle shuffle2 select bitselect any all abs "
        "abs_diff add_sat hadd rhadd clamp clz ctz mad_hi mad_sat mad24 mul24 mul_hi max min rotate sub_sat upsample "
        "popcount degrees mix radians step smoothstep sign cross dot distance length normalize fast_distance "
        "fast_length fast_normalize isequal isnotequal isordered mad maxmag minmag nan pown powr rootn rsqrt sincos "
        "sinpi cospi tanpi asinpi acospi atanpi atan2pi exp10 fract ilogb logb ldexp lgamma_r nextafter remquo tgamma "
        "vload_half vstore_half"
    ).split()
) | {
    f"{kind}{count}"
    for kind in ("char uchar short ushort int uint long ulong half float double bool quad vload vstore").split()
    for count in (2, 3, 4, 8, 16)
}

#: Words of Verilog 2005 and of SystemVerilog 2017, as which some tools read every file.
VERILOG_WORDS = frozenset(
    (
        "accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin "
        "bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking cmos "
        "config const constraint context continue cover covergroup coverpoint cross deassign default defparam design "
        "disable dist do edge else end endcase endchecker endclass endclocking endconfig endfunction endgenerate "
        "endgroup endinterface endmodule endpackage endprimitive endprogram endproperty endsequence endspecify "
        "endtable endtask enum event eventually expect export extends extern final first_match for force foreach "
        "forever fork forkjoin function generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins "
        "implements implies import incdir include initial inout input inside instance int integer interconnect "
        "interface intersect join join_any join_none large let liblist library local localparam logic longint "
        "macromodule matches medium modport module nand negedge nettype new nexttime nmos nor noshowcancelled not "
        "notif0 notif1 null or output package packed parameter pmos posedge primitive priority program property "
        "protected pull0 pull1 pulldown pullup pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase "
        "randsequence rcmos real realtime ref reg reject_on release repeat restrict return rnmos rpmos rtran rtranif0 "
        "rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared sequence shortint shortreal "
        "showcancelled signed small soft solve specify specparam static string strong strong0 strong1 struct super "
        "supply0 supply1 sync_accept_on sync_reject_on table tagged task this throughout time timeprecision timeunit "
        "tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union unique unique0 unsigned until "
        "until_with untyped use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while wildcard "
        "wire with within wor wreal xnor xor"
    ).split()
)


#: Words of Metal that neither has: qualifiers, types and namespaces.
_METAL_WORDS = frozenset(
    (
        "device thread threadgroup threadgroup_imageblock object_data ray_data vertex fragment mesh object visible "
        "stitchable intersection bfloat metal precise fast simd as_type atomic_bool sampler texture texture1d "
        "texture2d texture3d texturecube depth2d access address coord filter patch_control_point"
    ).split()
) | {f"{kind}{count}" for kind in ("bfloat", "packed_float", "simdgroup_float") for count in (2, 3, 4)}


class Stored(NamedTuple):
    """Numbers in memory of another type than that of arithmetic; ``{pointer}``, ``{at}`` and ``{value}`` say which."""

    type: str
    load: str
    store: str
    #: Definition of the function that ``store`` calls.
    definition: str = ""


#: Other functions of these that one calls, its arguments, its value. ``{r}`` is the type of arithmetic, ``{f}`` the
#: suffix of functions of it, and ``{minimum}`` the name of another one.
Helper = Tuple[Tuple[str, ...], str, str]


class Dialect(NamedTuple):
    """A language of the family of C. What a row does not say is as in C11."""

    #: What stands before the name of a kernel, and before the type of a function that it calls.
    kernel: str = "void"
    function: str = "static inline"
    #: An argument that is a pointer which shares memory with no other one.
    pointer: str = "{type} *restrict {name}"
    #: Arguments of a kernel at most, 0 for any number. Where it is given, one argument has all whole numbers and one
    #: all others, as ``numbers`` says, and one has all pointers if they are too many.
    most: int = 0
    numbers: str = ""
    #: Index of the neuron of a thread, and the argument that has it; "" where a kernel has a loop over neurons.
    neuron: str = ""
    position: str = ""
    #: Integers of 64 bits, and truth values.
    integer: str = "int64_t"
    boolean: str = "int"
    #: End of the names of the library's functions of float, and name of a function that the library lacks.
    float_suffix: str = "f"
    helper_name: str = "{name}{f}"
    #: Operations whose function of the library is too coarse somewhere, with what stands in its place.
    helpers: Mapping[str, Helper] = {}
    #: A number of float, such as INFINITY, as one of double.
    wide: str = "((double){})"
    #: Lines at the top of a text, and those that forbid a compiler to contract a product and a sum. GCC has no such
    #: pragma and warns of it; ``-std=c11`` is its way to say the same.
    includes: Tuple[str, ...] = ()
    no_contraction: Tuple[str, ...] = ()
    #: Words that no name may be.
    words: FrozenSet[str] = C_WORDS
    #: dtype of 16 bits -> its numbers in memory; empty where they are left out or have types of their own.
    stored: Mapping[str, Stored] = {}

    def suffix(self, real: str) -> str:
        """End of the names of functions of this type."""
        return self.float_suffix if real == "float" else ""

    def helper(self, name: str, real: str) -> str:
        """The name of a function that the library lacks, for this type."""
        return self.helper_name.format(name=name, f=self.suffix(real))


C11 = Dialect(
    includes=("#include <math.h>", "#include <stdint.h>"),
    no_contraction=("#ifdef __clang__", "#pragma STDC FP_CONTRACT OFF", "#endif"),
)

#: CUDA C++, whose headers define helpers and 16-bit numbers, for NVRTC with ``--fmad=false``.
CUDA = Dialect(
    kernel='extern "C" __global__ void',
    function="__device__ __forceinline__",
    pointer="{type}* __restrict__ {name}",
    neuron="blockIdx.x * (long long)blockDim.x + threadIdx.x",
    integer="long long",
    boolean="bool",
    helper_name="{name}",
    wide="double({})",
)

#: OpenCL C 1.2. Functions are overloaded, and some have the names of helpers. Every device loads and stores ``half``;
#: a bfloat16 is the upper half of a float, rounded to even.
OPENCL = Dialect(
    kernel="__kernel void",
    pointer="__global {type} *restrict {name}",
    neuron="get_global_id(0)",
    integer="long",
    boolean="bool",
    float_suffix="",
    helper_name="scalar_{name}",
    # five units in the last place are allowed, and that of pocl never is 1
    helpers={"tanh": ((), "x", "fabs(x) > (sizeof(x) == 4 ? 9.1f : 19.1f) ? copysign(({r})1, x) : tanh(x)")},
    no_contraction=("#pragma OPENCL FP_CONTRACT OFF",),
    words=C_WORDS | _OPENCL_WORDS,
    stored={
        "float16": Stored("half", "vload_half({at}, {pointer})", "vstore_half_rte({value}, {at}, {pointer})"),
        "bfloat16": Stored(
            "ushort",
            "as_float((uint){pointer}[{at}] << 16)",
            "{pointer}[{at}] = scalar_bfloat16({value})",
            "static inline ushort scalar_bfloat16(const float x) { const uint bits = as_uint(x); "
            "return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; }",
        ),
    },
)

#: Metal for Apple's GPUs, which have no float64, as torch compiles it. A kernel has 31 arguments at most.
#: Its library has neither expm1, log1p nor erf. These are W. Kahan's formulas, and polynomials by N. Juffa.
METAL = Dialect(
    kernel="kernel void",
    pointer="device {type} *{name}",
    most=31,
    numbers="constant {type} *{name}",
    neuron="position",
    position="uint position [[thread_position_in_grid]]",
    integer="long",
    boolean="bool",
    float_suffix="",
    helper_name="scalar_{name}",
    helpers={
        "div": ((), "ab", "precise::divide(a, b)"),
        "sqrt": ((), "x", "precise::sqrt(x)"),
        "log1p": ((), "x", "1 + x == 1 ? x : x > 1e30f ? log(x) : log(1 + x) * precise::divide(x, (1 + x) - 1)"),
        "expm1": (
            (),
            "x",
            "exp(x) == 1 ? x : x > 80 || x < -20 ? exp(x) - 1 : (exp(x) - 1) * precise::divide(x, log(exp(x)))",
        ),
        "softplus": (("maximum", "log1p"), "x", "{maximum}(x, ({r})0) + {log1p}(exp(-fabs(x)))"),
        "erf_of_small": (
            (),
            "xs",
            "(((((-5.96761703e-4f * s + 4.99119423e-3f) * s - 2.67681349e-2f) * s + 1.12819925e-1f) * s - "
            "3.76125336e-1f) * s + 1.28379166e-1f) * x + x",
        ),
        "erf_of_large": (
            (),
            "ts",
            "1 - exp((((((-1.72853470e-5f * t + 3.83197126e-4f) * s + (-3.88396438e-3f * t + 2.42546219e-2f)) * t - "
            "1.06777877e-1f) * t - 6.34846687e-1f) * t - 1.28717512e-1f) * t - t)",
        ),
        "erf": (
            ("erf_of_small", "erf_of_large"),
            "x",
            "fabs(x) > 0.927734375f ? copysign({erf_of_large}(min(fabs(x), 4.0f), min(x * x, 16.0f)), x) "
            ": {erf_of_small}(x, x * x)",
        ),
    },
    includes=("#include <metal_stdlib>", "using namespace metal;"),
    no_contraction=("#pragma METAL fp math_mode(safe)", "#pragma METAL fp contract(off)"),
    words=C_WORDS | _OPENCL_WORDS | _METAL_WORDS,
    stored={
        name: Stored(type_, "float({pointer}[{at}])", f"{{pointer}}[{{at}}] = {type_}({{value}})")
        for name, type_ in (("float16", "half"), ("bfloat16", "bfloat"))
    },
)

#: The words of every dialect, and of Verilog, which are free as names on every backend.
WORDS: FrozenSet[str] = C11.words | CUDA.words | OPENCL.words | METAL.words | VERILOG_WORDS
