"""Names as nobody should give them: what Python, C, Make, HDF5, matplotlib and HTML read as something else, and texts
that write a file where something runs them.
"""

from __future__ import annotations

import keyword
import os
from pathlib import Path
from typing import Callable, Dict, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import nn

from spikecore.lang.render import C_WORDS

#: Examples of each test; ``NAMES=2000`` draws as many.
COUNT = int(os.environ.get("NAMES", "30"))
#: Without shrinking: names are short.
drawn = settings(
    max_examples=COUNT, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)

#: The file that whatever is executed writes, in the current folder.
MARKER = "executed"
_RUN = f'open(bytes({tuple(MARKER.encode())}),"w")'
#: Lone carriage returns and their kin end a line for Python, or for a terminal.
CONTROLS = "\t\n\r\x00\x07\x08\x0b\x0c\x1b\x1c\x1d\x1e\x7f\x85\u2028\u2029\u200b\u202e\ufeff"

PAYLOADS = [
    *(f'l"){end}{_RUN}{end}def g(x=0):#' for end in "\n\r\x0b\x0c\x1c\x85\u2028"),
    *(f"l'){end}{_RUN}{end}def g(x=0):#" for end in "\n\r"),
    f'"+str({_RUN})+"',
    f"'+str({_RUN})+'",
    f'\\"+str({_RUN})+"',
    f'");{_RUN};("',
    f"{{{_RUN}}}",
    f"x=({_RUN})",
    f"{_RUN}",
    f"__import__('builtins').{_RUN}",
    f'"""\n{_RUN}\n"""',
    f"\x02f():\n    pass\n{_RUN}\ndef g",  # with the mark of a symbol (spikecore.lang.render)
    "\x020\x03",
    f"#\n{_RUN}",
    f'*/ __attribute__((constructor)) static void f(void) {{ fopen("{MARKER}", "w"); }} /*',
    f'*\\\n/ int f(void) {{ return system("touch {MARKER}"); }} /*',
    f"$(shell touch {MARKER})",
    f"$(touch {MARKER})",
    f"`touch {MARKER}`",
    f"; touch {MARKER};",
    f"\nall:\n\ttouch {MARKER}\n",
    f"<script>{_RUN}</script>",
    f'"><img src=x onerror="{_RUN}">',
]
#: Those of headers that C has, and of the GNU library.
HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype features alloca"
).split()
MACROS = "NULL EOF INT32_MAX RECORDED_STEPS M_PI NAN INFINITY BUFSIZ L_tmpnam FILE linux unix errno".split()
WORDS = [
    *keyword.kwlist,
    *sorted(C_WORDS),
    *HEADERS,
    *MACROS,
    *"print open exec eval self forward training x v s in out tl np float32 int32_t uint8_t size_t main printf".split(),
    *"input output metadata nodes edges type version spikecore places wiring result weight bias network".split(),
    *"Makefile makefile GNUmakefile recorded Recorded RECORDED test build host step reset nibble work0 none".split(),
    *["", ".", "..", "...", "/", "//", "../executed", "/tmp/executed", "a/b", "..\\executed", "~", "C:", "a.b", "a..b"],
    *[
        "/*",
        "*/",
        "a/*b",
        "//",
        "/*/",
        "??/",
        "\\",
        "a\\\n",
        "#",
        "%",
        "%s",
        "{}",
        "{0}",
        "{x!r}",
        "@name@",
        "$@",
        "$<",
    ],
    *[
        "$",
        "$a$",
        r"$\frac$",
        r"\$",
        r"a\$b$",
        "$$",
        "a_b^c",
        "<b>",
        "&amp;",
        "</td>",
        "<input>",
        "<output>",
        "\x1b[2J",
    ],
    *[
        "τ",
        "größe",
        "ﬁ",
        "ª",
        "1st",
        "²",
        "名前",
        "\U0001d465",
        "e\u0301",
        "\ud800",
        "a" * 300,
        "ü" * 100,
        "a." * 60 + "a",
    ],
]
_PIECES = [*WORDS, *CONTROLS, *"\"'`;:,()[]{}<>|&=+-*/?!@#$%^~. _", *"abcXYZ019"]

names = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(PAYLOADS),
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join),
    st.builds("{}{}{}".format, st.sampled_from(_PIECES), st.sampled_from(PAYLOADS), st.sampled_from(_PIECES)),
    st.text(max_size=12),
)
#: What a class of neurons takes for a state, and whatever else.
identifiers = st.one_of(
    names.filter(lambda name: name.isidentifier() and not keyword.iskeyword(name)),
    st.from_regex(r"[^\W\d]\w{0,8}", fullmatch=True),
    names,
)


def of_modules(name: str) -> bool:
    """True if torch takes it for a child of an ``nn.Sequential``."""
    return bool(name) and "." not in name and name not in _TAKEN


def of_classes(name: str) -> bool:
    """True if Python takes it for a class."""
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in name)


_TAKEN = {*dir(nn.Sequential())}


def check_said(error: BaseException, *words: str) -> None:
    """An error has the beginning of one of these names, escaped or not."""
    text = " ".join(str(error).split())
    forms = [form for word in words for form in (word, repr(word)[1:-1], ascii(word)[1:-1])]
    assert any(" ".join(form.split())[:20].strip() in text for form in forms), (words, text)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Gives an empty folder at each call. What is around it is compared at the next call and at the end: nothing was
    executed, and nothing written outside.
    """
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    before: Dict[str, int] = {}
    number = 0

    def tree() -> Dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns if path.is_file() else 0
            for path in tmp_path.rglob("*")
            if here / "into" not in (path, *path.parents) and path != here
        }

    def fresh() -> Path:
        nonlocal number
        check()
        for path in sorted((here / "into").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        number += 1
        (here / "into").mkdir(exist_ok=True)
        return here / "into"

    def check() -> None:
        assert tree() == before, "something was executed, or written outside of the folder"
        assert MARKER not in os.listdir(here)

    before.update(tree())
    yield fresh
    check()
