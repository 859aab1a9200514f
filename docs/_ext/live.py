"""The directive ``live-digits``, which trains the network of ``docs/live_digits.py`` and puts it into a page."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any, Dict, List

from docutils import nodes
from docutils.parsers.rst import Directive

PROGRAM = Path(__file__).parents[1] / "live_digits.py"


class LiveDigits(Directive):
    """The directive ``live-digits``, without arguments."""

    def run(self) -> List[nodes.Node]:
        """The part of the page, for HTML alone."""
        spec: Any = importlib.util.spec_from_file_location("live_digits", PROGRAM)
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        with tempfile.TemporaryDirectory() as folder:
            return [nodes.raw("", program.html(program.build(Path(folder))), format="html")]


def setup(app: Any) -> Dict[str, Any]:
    """Add the directive to Sphinx."""
    app.add_directive("live-digits", LiveDigits)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
