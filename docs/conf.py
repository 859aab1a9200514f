"""The documentation site: pages of this folder, the gallery and the reference, which its build makes from the code.

``make docs`` builds it. Nothing is fetched, and a warning is an error. Without an address of the repository
(``SPIKECORE_URL``) files outside this folder are copied into the site, and what cannot be copied is text alone.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
# The site is that of this tree, whatever is installed.
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent), str(DOCS.parent / "backends")]

project = "spikecore"
author = "The spikecore authors"
project_copyright = f"{author}, Apache-2.0"
(version,) = re.findall(
    r'__version__ = "(.*)"', (DOCS.parent / "spikecore" / "_version.py").read_text(encoding="utf-8")
)
release = version

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "docstrings",
    "api_links",
    "gallery",
    "live",
    "menu",
    "notebooks",
    "operation_table",
    "outside",
    "reference",
    "search_words",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_ext", "_static", "results"]
root_doc = "index"
default_role = "code"

# Links to headings are those of GitHub: page.md#heading.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False

html_theme = "furo"
html_title = f"spikecore {release}"
html_static_path = ["_static"]
html_css_files = ["site.css", "notebooks.css"]
html_js_files = ["site.js"]
html_search_scorer = str(DOCS / "_ext" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"^\$ "
copybutton_prompt_is_regexp = True
#: Where the repository is, for links to its files.
spikecore_url = os.environ.get("SPIKECORE_URL", "").rstrip("/")
