"""Words of target languages that no name may be, although the text of a kernel need not have them."""

from __future__ import annotations

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

C_WORDS = frozenset(f"{_LANGUAGE} {_MACROS}".split())
