"""What torch's default exporter writes of a program beside the tensors and nodes of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.operators.matching import is_op

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""Metadata of an initializer: `PARAMETER`, `BUFFER` or `_CONSTANT`."""
PARAMETER, BUFFER, _CONSTANT = "PARAMETER", "BUFFER", "CONSTANT_TENSOR"
OPERAND = "pkg.torch.onnx.original_node_name"
LINE = "pkg.torch.onnx.fx_node"
TRACE = "pkg.torch.onnx.stack_trace"
"""Metadata of a node: the lines of Python that called for it, outermost first."""
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"

INPUT = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']*)'", re.MULTILINE)
"""A line of the signature: what the program calls a tensor, its kind, its name in the module."""
_NAME = re.compile(r"%(\w+)")
_MOVED = re.compile(
    r"(alias|clone|expand|permute|reshape|select|slice|squeeze|t|_to_copy|transpose|unsqueeze|view)(_\d+)?"
)
_LOOKED_UP = re.compile(r"(embedding|gather|index|index_select|repeat|repeat_interleave|tile)(_\d+)?")
_MADE = re.compile(r"(empty|full|new|ones|zeros)(_\w+)?")
_PRODUCT = re.compile(r"(addmm|linear|matmul|mm)(_\d+)?")
_OF_CONSTANTS = re.compile(r"(arange|empty|full|linspace|new|ones|scalar_tensor|val|zeros)(_\w+)?")
_PLACES = re.compile(r"(arange|full|ones|val|zeros)(_\d+)?")
_QUOTED = re.compile(r"'([^']*)'")
_COMPARED = re.compile(r"(bitwise_(and|not|or)|eq|ge|gt|le|logical_(and|not|or)|lt|ne)(_\d+)?")


@dataclass(frozen=True)
class Operand:
    """A tensor of the program: its name in the module, and what it was."""

    target: str
    kind: str

    @property
    def is_parameter(self) -> bool:
        """Whether it was a parameter of the module."""
        return self.kind == PARAMETER


def operands_in(graph: ir.Graph) -> dict[str, Operand]:
    """The tensors of the program by the names that its lines have for them; none in files of other exporters."""
    listed = INPUT.findall(graph.metadata_props.get(SIGNATURE, ""))
    return {name: Operand(target, kind) for name, kind, target in listed}


def line_of(node: ir.Node) -> str:
    """The line of the program that a node was made of; empty if it has none."""
    return node.metadata_props.get(LINE, "")


def operands_of(line: str) -> list[str]:
    """The names that a line of the program reads, in order."""
    return _NAME.findall(line.partition(" = ")[2])


def made_by(node: ir.Node) -> str:
    """What the program calls what a node's line makes; empty if the node has no line."""
    found = _NAME.match(line_of(node))
    return found[1] if found else ""


def known_names(graph: ir.Graph) -> set[str]:
    """What lines of the program may name and the file has: inputs, operands, and what nodes and lines make."""
    known = {str(value.name) for value in graph.inputs} | set(graph.initializers) | set(operands_in(graph))
    return known | {name for node in graph for name in (made_by(node), *(str(value.name) for value in node.outputs))}


def names_there(graph: ir.Graph) -> set[str]:
    """What lines of the program may name and the file has, without operands that are not in it as such."""
    present = set(map(operand_of, graph.initializers.values()))
    return known_names(graph) - (operands_in(graph).keys() - present)


def module_of(path: str) -> str:
    """The path of the module that a parameter or buffer belongs to, or another module; of the outermost, empty."""
    return path.rpartition(".")[0]


def modules_around(module: str) -> Iterator[str]:
    """The paths of a module and of those that it is in, but for the outermost."""
    while module:
        yield module
        module = module_of(module)


def folded_from(value: ir.Value) -> list[str]:
    """The names of what the exporter computed an initializer of, those on the way included; empty if it did not."""
    return _QUOTED.findall(value.metadata_props.get(_FOLDED_FROM, ""))


def buffers_of(graph: ir.Graph) -> set[str]:
    """The names in the module of what the exported program has as buffers, whether they are in the file or not."""
    return _listed_as(graph, BUFFER)


def constants_of(graph: ir.Graph) -> set[str]:
    """The names in the module of the tensors that were written in it, such as ``torch.tensor([2.0, 4.0])``."""
    return _listed_as(graph, _CONSTANT)


def parameters_of(graph: ir.Graph) -> set[str]:
    """The names in the module of its parameters, whether they are in the file or not."""
    return _listed_as(graph, PARAMETER)


def _listed_as(graph: ir.Graph, kind: str) -> set[str]:
    return {operand.target for operand in operands_in(graph).values() if operand.kind == kind}


def is_moved_name(name: str) -> bool:
    """Whether torch calls by a name what only moves numbers to other places."""
    return _MOVED.fullmatch(name) is not None


def is_looked_up_name(name: str) -> bool:
    """Whether torch calls by a name what holds numbers of a tensor, each as often as it is looked up."""
    return _LOOKED_UP.fullmatch(name) is not None


def is_product_name(name: str) -> bool:
    """Whether torch calls by a name what multiplies by a weight."""
    return _PRODUCT.fullmatch(name) is not None


def is_made_name(name: str) -> bool:
    """Whether torch calls by a name what makes a tensor of nothing, or of the shape of another."""
    return _MADE.fullmatch(name) is not None


def is_constant_name(name: str) -> bool:
    """Whether torch calls by a name what may hold constants of the program."""
    return _OF_CONSTANTS.fullmatch(name) is not None


def is_place_name(name: str) -> bool:
    """Whether torch calls by a name what may tell the places of a look-up: numbers that are made of sizes alone."""
    return _PLACES.fullmatch(name) is not None


def is_comparison_name(name: str) -> bool:
    """Whether torch calls by a name what makes a mask."""
    return _COMPARED.fullmatch(name) is not None


def module_around(node: ir.Node) -> str:
    """The path of the module in which a node was made, empty if that is not known."""
    scopes = _QUOTED.findall(node.metadata_props.get(_SCOPES, ""))
    return scopes[-2] if len(scopes) > 1 else ""


def class_around(node: ir.Node) -> str:
    """The class of the module in which a node was made, with its package; empty if that is not known."""
    classes = _QUOTED.findall(node.metadata_props.get(_CLASSES, ""))
    return classes[-2] if len(classes) > 1 else ""


def has_taken_in_norm(node: ir.Node) -> bool:
    """Whether a layer computes a normalisation, too, that was folded into it: of its own line nothing is left."""
    call, _, _ = line_of(node).partition("](")  # what it reads may be called so, too
    return is_op(node, ("Conv", "ConvTranspose", "Gemm")) and "_batch_norm_" in call


def is_parameter(value: ir.Value) -> bool:
    """Whether an initializer is a parameter of the module as it is, not what was computed of one."""
    return value.metadata_props.get(KIND) == PARAMETER


def operand_of(value: ir.Value) -> str:
    """What the program calls an initializer that is an operand of it; empty for one that was made on the way."""
    return value.metadata_props.get(OPERAND, "")


def root_name(name: str) -> str:
    """What the program calls an operation, without the number that tells it from others of its kind."""
    return re.sub(r"_\d+$", "", name)
