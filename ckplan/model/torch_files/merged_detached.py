"""Nodes that torch's optimiser merged although the module detaches what one of them reads.

Since `detach` is not written down, a term and the same term of what is detached look alike, as the two of a vector
quantiser's loss do: the codebook moves to the encoder's output in one, the encoder's output to the codebook in the
other. One is left, and its line says what that one detaches. Where gradients stop in the other cannot be known.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.torch_files.detached import detached_inputs
from ckplan.model.torch_files.exporter_metadata import (
    is_moved_name,
    known_names,
    line_of,
    made_by,
    operands_of,
    root_name,
)

_READERS = re.compile(r"\[num_users=(\d+)\]")


def merged_detached_notes(model: ir.Model) -> tuple[str, ...]:
    """Name what was merged with nodes that read something detached; a note, or none.

    A merged node shows in a reader whose line has another name of the same operation for it, one that nothing in the
    file has.
    """
    known = known_names(model.graph)
    found: dict[str, str] = {}
    for reader in model.graph:
        lost = [name for name in operands_of(line_of(reader)) if name not in known]
        for value in dict.fromkeys(reader.inputs) if lost else ():
            maker = None if value is None else value.producer()
            own = "" if maker is None else made_by(maker)
            if maker is None or not own or is_moved_name(own):
                continue
            twin = next((name for name in lost if root_name(name) == root_name(own)), None)
            if twin is not None and _reads_detached(maker):
                found[twin] = own
    if not found:
        return ()
    merged = shortened([f"'{twin}' with '{own}'" for twin, own in found.items()], 3)
    return (
        f"torch's exporter merged values that are equal but for what the module detaches ({merged}): where gradients "
        "stop in those that are gone, the file does not say, and they may be wrong; ckplan.export keeps them apart",
    )


def _reads_detached(node: ir.Node) -> bool:
    """Whether a node, or one before it that was merged as well, reads something detached.

    Before it that ends where the program has more readers of a value than the file: they share that value as it is.
    """
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        if detached_inputs(one):
            return True
        for value in one.inputs:
            maker = None if value is None else value.producer()
            if maker is None or maker in seen:
                continue
            if line_of(maker) == line_of(one) or _readers(maker) >= _readers_in_program(maker):
                seen.add(maker)
                waiting.append(maker)
    return False


def _readers(node: ir.Node) -> int:
    """How many other lines of the program read what a node makes, in the file."""
    return len({line_of(use.node) for value in node.outputs for use in value.uses()} - {line_of(node)})


def _readers_in_program(node: ir.Node) -> int:
    """How many lines read what a node's line makes, in the program."""
    found = _READERS.search(line_of(node))
    return int(found[1]) if found else 0
