"""A verdict as a small picture for a README: SVG, without fonts or scripts of its own."""

from __future__ import annotations

from html import escape

from spikecore.testing._report import Report
from spikecore.testing._verdict import CONFORMS, DOES_NOT_CONFORM, NOT_TESTED, PARTIAL

_COLOURS = {CONFORMS: "#2e7d32", PARTIAL: "#9a6700", NOT_TESTED: "#6e7781", DOES_NOT_CONFORM: "#c62828"}
#: Widths of characters of 11 px Verdana, of others, and the margin at each side. Texts are fitted to these widths, so
#: that another font looks the same.
_WIDTHS = {**dict.fromkeys("ijl.,:;|'", 3.4), **dict.fromkeys("frt -()[]/", 4.6), **dict.fromkeys("mwMW@%", 10.3)}
_OTHER, _MARGIN = 6.7, 7

_TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">
  <title>{title}</title>
  <clipPath id="corners"><rect width="{width}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#corners)">
    <rect width="{left}" height="20" fill="#444d56"/>
    <rect x="{left}" width="{right}" height="20" fill="{colour}"/>
  </g>
  <g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
    <text x="{label_x}" y="14" textLength="{label_width}">{label}</text>
    <text x="{value_x}" y="14" textLength="{value_width}">{value}</text>
  </g>
</svg>
"""


def badge(report: Report) -> str:
    """The file's text: ``spikecore mine | conforms: 1590 of 1600``, the number of cases that passed, and of the default
    suite; of one that does not conform the number of cases that are wrong.
    """
    verdict = report.verdict
    label, value = f"spikecore {report.backend}", verdict.word
    if verdict.word in (CONFORMS, PARTIAL):
        value = f"{value}: {verdict.passed} of {verdict.suite}"
    elif verdict.word == DOES_NOT_CONFORM:
        value = f"{value}: {verdict.wrong} wrong of {verdict.total}"
    widths = [round(sum(_WIDTHS.get(letter, _OTHER) for letter in text)) for text in (label, value)]
    left, right = (width + 2 * _MARGIN for width in widths)
    return _TEMPLATE.format(
        width=left + right,
        left=left,
        right=right,
        colour=_COLOURS[verdict.word],
        title=escape(f"{label}: {value}"),
        label=escape(label),
        value=escape(value),
        label_x=left / 2,
        value_x=left + right / 2,
        label_width=widths[0],
        value_width=widths[1],
    )
