"""What torch's module may compute under ``torch.no_grad``, of which its default exporter writes nothing.

torch.export makes a block of what a module does without gradients, and one of what it does under ``autocast``; the
exporter puts both back among everything else. A node of a block still bears a trace that begins in a module which torch
made up. Lines of an ``autocast`` call inputs and parameters by number (``arg3_1``), those of the other kind by name. A
block that reads neither may be either; and where the whole module was exported under ``no_grad``, the block is what it
does with gradients. So a note tells what would have to be stopped, and all else stays.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.torch_files.exporter_metadata import KIND, PARAMETER, TRACE, line_of, operands_of, root_name

_IN_BLOCK = re.compile(r'File "(<eval_with_key>\.\d+)", line \d+, in forward\n\s*(.*torch\.ops\..*)')
_NUMBERED = re.compile(r"\barg\d+_\d+\b")


def no_grad_notes(model: ir.Model) -> tuple[str, ...]:
    """Note what gradients may have to stop at: results of such blocks that depend on parameters and are read outside.

    Args:
        model: of any exporter.

    Returns:
        A note, if there is such a result.
    """
    blocks: dict[str, list[tuple[ir.Node, str]]] = defaultdict(list)
    nodes = list(model.graph.all_nodes())
    for node in nodes:
        if found := _IN_BLOCK.match(node.metadata_props.get(TRACE, "")):
            blocks[found[1]].append((node, found[2]))
    results = []
    for block in blocks.values():
        inside = {node for node, _ in block}
        if len(inside) < len(nodes) and not any(_NUMBERED.search(line) for _, line in block):
            results += [f"'{value.name}'" for value in _results(inside) if _depends_on_parameters(value)]
    if not results:
        return ()
    return (
        f"torch's module may compute {shortened(results, 3)} without gradients (torch.no_grad), of which its exporter "
        "writes nothing: gradients pass; --no-grad NAME stops them there, and ckplan.export where the module does, if "
        "torch.export can trace it",
    )


def begin_of_block(trace: str) -> str:
    """What of a trace shows that a node is of such a block, without the paths of a machine; empty if nothing does."""
    found = _IN_BLOCK.match(trace)
    return "" if found is None else found[0]


def _results(block: Collection[ir.Node]) -> Iterator[ir.Value]:
    """Floating-point values that nodes of a block make and others read."""
    for node in block:
        for value in node.outputs:
            readers = (user for user in value.consumers() if user not in block and not _reads_another(user, value))
            if _is_floating(value) and any(readers):
                yield value


def _reads_another(reader: ir.Node, value: ir.Value) -> bool:
    """Whether the program has a node read another result of the same kind, which the exporter merged with this one."""
    names, name = operands_of(line_of(reader)), str(value.name)
    return name not in names and root_name(name) in map(root_name, names)


def _depends_on_parameters(value: ir.Value) -> bool:
    """Whether a value is computed of a parameter, or of what the exporter computed of one."""
    behind, seen = [value], {value}
    while behind:
        current = behind.pop()
        if current.is_initializer() and current.metadata_props.get(KIND, PARAMETER) == PARAMETER:
            return True
        node = current.producer()
        fresh = [one for one in ([] if node is None else node.inputs) if one is not None and one not in seen]
        seen.update(fresh)
        behind.extend(filter(_is_floating, fresh))
    return False


def _is_floating(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()
