"""What makes a model invalid and would otherwise show up far from its cause.

Cheap checks run whenever a file is read. When something fails that nobody foresaw, `complaint` asks two judges that
share no code with ckplan whether the file is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx_ir as ir

from ckplan.errors import CkplanError, ModelError
from ckplan.isolation.evaluate import EvaluationError, evaluate
from ckplan.model.node_reads import reads

MOST_ELEMENTS = 1 << 48
"""Elements of a tensor beyond which sizes are not meant: a thousand terabytes of float32."""

MOST_NODES = 1_000_000
"""Nodes of a model whose functions are written out."""
_LISTED = 3
"""Nodes that an error names."""
_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
CHECK_IT = "export it again, and see whether it passes onnx.checker"
"""What to do about a file that is read as a model, but is no valid one."""
_AGAIN = "export or download it again"


def check_names(model: ir.Model, file: Path | str) -> None:
    """See that names are text: protobuf passes on bytes that are not UTF-8.

    Raises:
        ModelError: one is not.
    """
    called = (node for function in model.functions.values() for node in function.all_nodes())
    for node in (*model.graph.all_nodes(), *called):
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        told = (node.name, node.op_type, node.domain, node.overload, node.doc_string, *node.attributes)
        if not _is_text(*told, *(value.name for value in values), *_properties(node), *_properties(*values)):
            raise ModelError(f"{file} is damaged: a node or value has a name or remark that is not UTF-8", _AGAIN)
    if not _is_text(model.producer_name, model.domain, model.doc_string, *_properties(model, *model.graphs())):
        raise ModelError(f"{file} is damaged: its metadata are not UTF-8", _AGAIN)


def _properties(*parts: ir.Model | ir.Graph | ir.Node | ir.Value) -> Iterator[str]:
    for part in parts:
        for pair in part.metadata_props.items():
            yield from pair


def _is_text(*texts: object) -> bool:
    return all(isinstance(text, str | None) for text in texts)


def check_tensors(model: ir.Model, file: Path | str) -> None:
    """See that the tensors in a file hold what their dims say.

    Raises:
        ModelError: one does not; the message names it.
    """
    for name, tensor in _tensors(model):
        reason = _damage(tensor)
        if reason:
            raise ModelError(f"{file} is not valid: tensor '{name}' {reason}", _AGAIN)


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.name or "", value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                    yield attribute.value.name or f"{attribute.name} of {node.name}", attribute.value


def _damage(tensor: ir.TensorProtocol) -> str:
    if tensor.dtype == ir.DataType.UNDEFINED:
        return "has no type"
    dims = tensor.shape.numpy()
    if any(size < 0 for size in dims):
        return f"has dims {list(dims)}"
    if math.prod(dims) > MOST_ELEMENTS:
        return f"has {math.prod(dims):,} elements"
    if isinstance(tensor, ir.TensorProtoTensor) and tensor.raw.HasField("raw_data"):
        found, needed = len(tensor.raw.raw_data), tensor.nbytes
        return f"has {found:,} bytes where its type and dims need {needed:,}" if found != needed else ""
    if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype != ir.DataType.STRING:
        if tensor.size and not any(getattr(tensor.raw, field) for field in _DATA):
            return "holds no data"
        try:
            tensor.numpy()
        except (ValueError, TypeError) as error:
            return f"does not hold what its dims say ({error})"
    return ""


def check_calls(model: ir.Model) -> None:
    """See that what is left when all functions are written out is not out of all proportion.

    Raises:
        ModelError: a function calls itself, or there would be too many nodes.
    """
    sizes: dict[ir.OperatorIdentifier, int] = {}
    open_calls: set[ir.OperatorIdentifier] = set()

    def size_of(identifier: ir.OperatorIdentifier) -> int:
        if identifier not in model.functions:
            return 1
        if identifier in open_calls:
            raise ModelError(f"function {identifier[0]}.{identifier[1]} calls itself", "export the model without it")
        if identifier not in sizes:
            open_calls.add(identifier)
            sizes[identifier] = sum(size_of(node.op_identifier()) for node in model.functions[identifier].all_nodes())
            open_calls.discard(identifier)
        return sizes[identifier]

    if model.functions and sum(size_of(node.op_identifier()) for node in model.graph.all_nodes()) > MOST_NODES:
        raise ModelError(f"its functions, written out, are more than {MOST_NODES:,} nodes", "export fewer of them")


def check_size(name: str, shape: tuple[int, ...]) -> None:
    """See that an input has a size that can be meant.

    Raises:
        ModelError: it has not.
    """
    if math.prod(shape) > MOST_ELEMENTS:
        sizes = "x".join(map(str, shape))
        raise ModelError(
            f"input '{name}' of shape {sizes} has too many elements", "give smaller sizes with --dim or --shape"
        )


def sort(graph: ir.Graph) -> None:
    """Put the nodes of a graph, and of what is nested in it, in an order in which they can run.

    Raises:
        ModelError: there is none.
    """
    try:
        graph.sort()
    except ValueError as error:
        nodes = [node for found in (graph, *graph.subgraphs()) for node in _cycle(found)]
        listed = ", ".join(f"{node.op_type} '{node.name}'" for node in nodes[:_LISTED])
        more = ", ..." if len(nodes) > _LISTED else ""
        raise ModelError(f"nodes wait for each other: {listed}{more}", "export the model again without it") from error


def _cycle(graph: ir.Graph) -> list[ir.Node]:
    """The nodes of a cycle in a graph, each of which reads what the one before it makes; none if there is no cycle."""
    nodes = set(graph)
    makers = {node: {value.producer() for value in reads(node)} & nodes for node in graph}
    try:
        TopologicalSorter(makers).prepare()
    except CycleError as error:
        return list(error.args[1][1:])
    return []


def complaint(file: Path) -> str:
    """Why onnx's checker or onnxruntime refuses a file; empty if both accept it, or cannot tell."""
    try:
        return str(evaluate("judge", source=str(file)))
    except EvaluationError as error:
        return f"checking it fails: {error}"
    except CkplanError:
        return ""
