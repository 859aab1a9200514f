"""The menu of the site: for each page that is the head of a group, the pages of the group.

A group is folded until a reader opens it, or a page in it. ``site.js`` keeps at most 15 entries open at once. The lists
are here and not in the pages, which are read in the repository, too.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List

#: Head of a group -> its entries: a page, ``title <page>``, or a pattern.
MENU: Dict[str, List[str]] = {
    "index": [
        "Tutorial <tutorial>",
        "Notebooks <notebooks/index>",
        "From another library <coming-from>",
        "How-to guides <guide>",
        "Neurons <gallery>",
        "Reference <reference>",
        "Backends and hardware <accelerators>",
    ],
    "notebooks/index": [
        "A neuron of your own <notebooks/own-neuron>",
        "From snnTorch <notebooks/from-snntorch>",
        "From SpikingJelly <notebooks/from-spikingjelly>",
        "Recurrent layers and delays <notebooks/recurrent-and-delays>",
        "Event data <notebooks/event-data>",
        "Speed <notebooks/speed>",
        "Looking inside <notebooks/looking-inside>",
        "Deployment <notebooks/deployment>",
    ],
    "coming-from": ["coming-from-norse-and-sinabs", "convert", "ann2snn", "nir"],
    "guide": [
        "Layers and networks <layers>",
        "Training <training>",
        "Other ways to train <online>",
        "Speed and deployment <speed>",
    ],
    "layers": ["calls", "recurrent", "parameters", "neurons"],
    "training": ["sequences", "events", "trainers", "recipes"],
    "online": ["spike-times", "programs", "results", "transforms"],
    "speed": ["looking-inside", "many-gpus", "export", "live", "microcontrollers", "fpga"],
    "reference": [
        "surrogates",
        "operations",
        "Modules <reference/modules>",
        "api",
        "guarantees",
        "Benchmarks <benchmarks/README>",
        "decisions/index",
    ],
    "reference/modules": ["reference/spikecore*"],
    "benchmarks/README": [
        "benchmarks/open-neuromorphic",
        "benchmarks/shd",
        "benchmarks/online",
        "benchmarks/memory",
        "benchmarks/microcontrollers",
        "benchmarks/guides",
    ],
    "decisions/index": ["decisions/0*"],
    "accelerators": ["choosing", "ipu", "support", "plugins", "backends", "kernels"],
    "plugins": ["conformance/*"],
}


def with_group(text: str, head: str, markdown: bool) -> str:
    """The text of a page, with the list of its group at the end."""
    entries = [entry.replace("<", "</") if "<" in entry else f"/{entry}" for entry in MENU.get(head, ())]
    if not entries:
        return text
    if markdown:
        return "\n".join([text.rstrip("\n"), "", "```{toctree}", ":hidden:", ":glob:", "", *entries, "```", ""])
    lines = [".. toctree::", "   :hidden:", "   :glob:", "", *(f"   {entry}" for entry in entries), ""]
    return "\n".join([text.rstrip("\n"), "", *lines])


def added(app: Any, docname: str, source: List[str]) -> None:
    """Called by Sphinx for the text of each page."""
    source[0] = with_group(source[0], docname, os.fspath(app.env.doc2path(docname)).endswith(".md"))


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", added, priority=900)  # last: a notebook is written anew before
    return {"parallel_read_safe": True, "parallel_write_safe": True}
