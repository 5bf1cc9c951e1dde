"""A comparison as JUnit XML, which most CI systems read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ckplan.comparison import Level
from ckplan.report.comparison import facts, remedies
from ckplan.report.untrusted import printable
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison


def comparison(found: Comparison) -> str:
    """The whole answer of ``ckplan compare``: a test case for each check."""
    levels = [check.level for check in found.checks]
    totals = {
        "tests": str(len(levels)),
        "failures": str(levels.count(Level.FAILED)),
        "errors": str(levels.count(Level.ERROR)),
    }
    root = ElementTree.Element("testsuites", {"name": "ckplan compare", **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "ckplan compare", **totals})
    for check in found.checks:
        _add(suite, found, check)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, found: Comparison, check: Check) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": "ckplan.compare", "name": printable(check.name), "file": printable(check.source)},
    )
    text = "\n".join(printable(line) for line in _lines(found, check))
    if check.level is Level.ERROR:
        ElementTree.SubElement(case, "error", {"message": printable(str(check.error))}).text = text
    elif check.level is Level.FAILED:
        message = next(finding.message for finding in check.findings if finding.level is Level.FAILED)
        ElementTree.SubElement(case, "failure", {"message": printable(message), "type": "memory"}).text = text
    else:
        ElementTree.SubElement(case, "system-out").text = text


def _lines(found: Comparison, check: Check) -> Iterator[str]:
    for title, text in facts(check):
        yield f"{title}: {text}"
    for growth in check.grown:
        alive = growth.alive
        more = f"+{format_bytes(growth.change)}{'' if growth.before else ' (new)'}"
        yield f"{more}: '{alive.tensor}', {alive.op_type} '{alive.node}'"
    for name, size in (check.dropped or {}).items():
        yield f"not kept any more: '{name}', {format_bytes(size)}"
    remedy = remedies(found, check)
    if remedy:
        yield f"next: {remedy}"
