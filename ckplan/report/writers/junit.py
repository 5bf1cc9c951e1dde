"""A document as JUnit XML, which most CI systems read: what is judged becomes a test case."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from ckplan.report.document import Document, Facts, Line, Section, Table
from ckplan.report.untrusted import printable

_KINDS = {"failed": "failure", "error": "error"}


def junit(document: Document) -> str:
    """A test case for each section that is judged; one for the whole document where none is."""
    judged = [section for section in document.sections if section.level]
    if not judged:
        blocks = tuple(block for section in document.sections for block in section.blocks)
        judged = [Section(document.title, blocks, document.level or "passed")]
    levels = [section.level for section in judged]
    counts = {"tests": len(levels), "failures": levels.count("failed"), "errors": levels.count("error")}
    totals = {kind: str(count) for kind, count in counts.items()}
    root = ElementTree.Element("testsuites", {"name": "ckplan", **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "ckplan", **totals})
    for section in judged:
        _add(suite, section)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, section: Section) -> None:
    about = {"classname": "ckplan", "name": printable(section.title), "file": printable(section.source)}
    case = ElementTree.SubElement(suite, "testcase", about)
    text = "\n".join(map(printable, _lines(section)))
    kind = _KINDS.get(section.level)
    if kind is None:
        ElementTree.SubElement(case, "system-out").text = text
        return
    facts = [fact for block in section.blocks if isinstance(block, Facts) for fact in block.rows]
    message = next((fact.text for fact in facts if fact.level == section.level), section.level)
    ElementTree.SubElement(case, kind, {"message": printable(message), "type": "memory"}).text = text


def _lines(section: Section) -> Iterator[str]:
    for block in section.blocks:
        match block:
            case Facts():
                yield from (f"{fact.name}: {fact.text}" for fact in block.rows)
            case Line():
                yield block.text
            case Table():
                yield from ([f"{block.caption}:"] if block.caption else [])
                for row in block.rows:
                    yield ", ".join(f"'{cell.text}'" if cell.name else cell.text for cell in row.cells)
                yield from ([block.more] if block.more else [])
