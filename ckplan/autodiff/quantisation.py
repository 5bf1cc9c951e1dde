"""Quantised models: what can be trained through quantisation on request, and what is refused.

The derivative of rounding is zero almost everywhere. Quantisation-aware training takes the identity for it instead
(the straight-through estimator, Bengio et al. 2013, arXiv:1308.3432): the pair QuantizeLinear, DequantizeLinear passes
gradients on where the number lay within the range of the quantised type, and none where it was cut off (as
torch.fake_quantize_per_tensor_affine does). Scales and zero points get no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.breaks import between, breaks, reached_by
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import is_composite, outline
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.display import shortened
from ckplan.errors import ModelError
from ckplan.model.contrib import MICROSOFT, QUANTISED
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import captured
from ckplan.operators.matching import input_of, is_op, made_by

#: Operators of ONNX that turn numbers into those of a quantised type, or calculate with such.
_ARITHMETIC = frozenset(
    {
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)

#: Biases, which no scale multiplies, among the inputs of operators of com.microsoft.
_BIASES = {"DynamicQuantizeLSTM": 3, "DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 6, "QAttention": 2}

#: Attributes of QuantizeLinear that decide what is cut off, with their defaults.
_ATTRIBUTES = {"axis": 1, "block_size": 0, "saturate": 1}


def is_quantised(node: ir.Node) -> bool:
    """Say whether a node quantises, or calculates with quantised numbers."""
    return node.op_type in (_ARITHMETIC if not node.domain else QUANTISED if node.domain == MICROSOFT else ())


def refuse_quantised(
    op: Builder, parameters: Sequence[ir.Value], targets: Sequence[ir.Value], straight_through: bool
) -> None:
    """Make sure that no quantisation cuts parameters off the loss.

    Args:
        op: builder of the forward graph.
        parameters: what gradients are asked for.
        targets: what is differentiated.
        straight_through: whether gradients pass pairs already; what is left are no such pairs.

    Raises:
        ModelError: nodes that quantise stand between a parameter and the loss.
    """
    weights = [value for value in parameters if not _only_scales(value)]
    cuts = _cuts(op, op.graph, weights, targets)
    if not cuts:
        return
    # Behind the first cut there may be others, which the user would meet next.
    found = [node for node in between(op.graph, weights, targets) if is_quantised(node)]
    found += [node for node in cuts if node.graph is not op.graph]
    found = [node for node in found if node.op_type != "DequantizeLinear"] or found
    stored = _stored(op.graph)
    pairs = all(is_op(node, ("QuantizeLinear", "DynamicQuantizeLinear")) for node in found)
    named = shortened([f"{node.op_type} '{node.name}'" for node in found], 8)
    ways = ["train the model as it was before quantisation"]
    if pairs and not straight_through:
        ways.append("pass gradients straight through pairs of QuantizeLinear and DequantizeLinear (--straight-through)")
    ways.append("freeze what stands before these nodes (--no-grad)")
    hint = ", or ".join(ways)
    if stored:
        hint += f"; {stored}, and cannot be trained in any case: that takes float weights which pass such a pair"
    raise ModelError(f"the model is quantised, and {len(found)} node(s) pass no gradient on: {named}", hint)


def stored_notes(graph: ir.Graph) -> list[str]:
    """Say of how many weights gradients pass by, as they are integers."""
    stored = _stored(graph)
    way = "that takes float weights which pass a pair of QuantizeLinear and DequantizeLinear"
    return [f"{stored}, and are not trained: {way}"] if stored else []


def _stored(graph: ir.Graph) -> str:
    """Say how many weights are integers; empty if none is."""
    stored = [node for node in graph if is_quantised(node) and _reads_stored_weight(node)]
    first = f"first that of {stored[0].op_type} '{stored[0].name}'" if stored else ""
    return f"{len(stored)} weight(s) are stored as integers, {first}" if stored else ""


def _cuts(op: Builder, graph: ir.Graph, sources: Iterable[ir.Value], targets: Sequence[ir.Value]) -> list[ir.Node]:
    """Return the nodes that quantise and that nothing of a source's gradient path is left behind, in bodies too."""
    sources = list(sources)
    found = [node for node in breaks(graph, op.opset_imports, sources, targets) if is_quantised(node)]
    holders = [node for node in between(graph, sources, targets) if graphs_in(node)]
    if holders:
        reached = reached_by(graph, op.opset_imports, sources)
        for node in holders:
            for body in graphs_in(node):
                passed = [inner for outer, inner in zip(node.inputs, body.inputs, strict=False) if outer in reached]
                found += _cuts(op, body, [*passed, *reached.intersection(captured(node))], body.outputs)
    return found


def _only_scales(value: ir.Value) -> bool:
    """Say whether nothing reads a value but quantisation, as one of its scales."""
    uses = list(value.uses())
    return bool(uses) and all(
        use.idx not in (0, _BIASES.get(use.node.op_type)) and (is_quantised(use.node) or _is_pass(use.node))
        for use in uses
    )


def _is_pass(node: ir.Node) -> bool:
    """Say whether a node is a composite that passes gradients straight through."""
    return is_composite(node) and node.op_type in ("QuantizeDequantize", "StraightThrough")


def _reads_stored_weight(node: ir.Node) -> bool:
    """Say whether a node reads an initializer of integers of rank 1 or more that is no zero point."""
    data = {"DequantizeLinear": (0,), "QLinearConv": (3,), "QLinearMatMul": (0, 3)}.get(node.op_type, (0, 1))
    for index in data:
        value = input_of(node, index)
        clip = made_by(value, "Clip")  # of fewer bits
        value = value if clip is None else clip.inputs[0]
        if value is not None and value.is_initializer() and value.dtype is not None and value.dtype.is_integer():
            return len(shape_of(value)) > 0
    return False


def pass_straight_through(op: Builder) -> list[str]:
    """Put composites that pass gradients straight through in the place of the quantisation of a graph.

    Taken for quantisation: DequantizeLinear behind QuantizeLinear or DynamicQuantizeLinear with the same scale and zero
    point, a Clip between them included, and Round, which stands in patterns of fake quantisation (their Clip cuts
    gradients off out of range).

    Args:
        op: builder of the forward graph.

    Returns:
        Notes: that there is nothing of the kind.
    """
    is_found = False
    nodes = [node for graph in (op.graph, *op.graph.subgraphs()) for node in graph if not node.domain]
    place = {node: position for position, node in enumerate(nodes)}
    for node in nodes:
        if node.op_type == "Round":
            outline(op, "StraightThrough", [node], [required_input(node, 0)], [node.outputs[0]])
            is_found = True
        elif node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            quantisation = _Quantisation(node, _narrowing(op, node))
            readers = quantisation.readers
            if readers and all(_is_pair(quantisation, reader) for reader in readers):
                _quantise_unsigned(op, quantisation)
                _outline_pairs(op, quantisation, sorted(readers, key=lambda reader: place[reader]))
                is_found = True
    nothing = "no pair of QuantizeLinear and DequantizeLinear and no Round is in the model"
    return [] if is_found else [f"--straight-through changes nothing: {nothing}"]


@dataclass(frozen=True)
class _Quantisation:
    """A node that quantises, and the Clip behind it that leaves a part of the type, if there is one."""

    node: ir.Node
    clip: ir.Node | None

    @property
    def nodes(self) -> list[ir.Node]:
        """In the order in which they run."""
        return [node for node in (self.node, self.clip) if node is not None]

    @property
    def result(self) -> ir.Value:
        """The quantised tensor."""
        return self.nodes[-1].outputs[0]

    @property
    def readers(self) -> list[ir.Node]:
        """What reads any of the results: the tensor, and the scale and zero point that were computed with it."""
        return list(dict.fromkeys(use.node for output in self.nodes[-1].outputs for use in output.uses()))


def _narrowing(op: Builder, quantise: ir.Node) -> ir.Node | None:
    """Return the Clip that leaves a part of the quantised type, as fewer bits or a symmetric range, if there is one.

    Brevitas writes one between the two nodes of a pair.
    """
    uses = list(quantise.outputs[0].uses())
    clip = uses[0].node if len(uses) == 1 else None
    if quantise.op_type != "QuantizeLinear" or not is_op(clip, "Clip") or quantise.outputs[0].is_graph_output():
        return None
    bounds = [input_of(clip, index) for index in (1, 2)]
    known = all(bound is None or op.constant_of(bound) is not None for bound in bounds)
    return clip if known and clip.graph is quantise.graph and uses[0].idx == 0 else None


def _quantise_unsigned(op: Builder, quantisation: _Quantisation) -> None:
    """Let a pair with one scale quantise to uint8 where it quantises to int8, in place: the numbers are the same.

    onnxruntime does so itself, but not in a pair that it moved behind a Transpose before, as of the convolution of a
    weight's gradient: such a file does not load (1.31, 1.32).
    """
    quantise, clip = quantisation.node, quantisation.clip
    zero = op.constant_of(input_of(quantise, 2)) if quantise.op_type == "QuantizeLinear" else None
    if zero is None or zero.dtype != np.int8 or zero.size != 1 or quantisation.result.is_graph_output():
        return
    for node in (quantise, *quantisation.readers):
        node.replace_input_with(2, _unsigned(op, zero))
    if clip is not None:
        for index in (1, 2):
            bound = op.constant_of(input_of(clip, index))
            if bound is not None:
                clip.replace_input_with(index, _unsigned(op, bound))
    quantise.attributes.pop("output_dtype", None)
    for node in quantisation.nodes:
        node.outputs[0].dtype = ir.DataType.UINT8


def _unsigned(op: Builder, array: np.ndarray) -> ir.Value:
    return op.constant((array.astype(np.int16) - np.iinfo(np.int8).min).astype(np.uint8))


def _outline_pairs(op: Builder, quantisation: _Quantisation, readers: Sequence[ir.Node]) -> None:
    """Put composites in the place of what dequantises; the first one quantises, and all read what was quantised."""
    quantise, clip = quantisation.node, quantisation.clip
    first, *others = readers
    inputs: Sequence[ir.Value | None]
    attributes: dict[str, int]
    if quantise.op_type == "DynamicQuantizeLinear":
        op_type, inputs, attributes = "StraightThrough", quantise.inputs, {}
    else:
        op_type = "QuantizeDequantize"
        inputs = (required_input(quantise, 0), required_input(quantise, 1), input_of(quantise, 2))
        attributes = {name: attr_int(quantise, name, default) for name, default in _ATTRIBUTES.items()}
        attributes["to"] = int(quantisation.result.dtype or ir.DataType.UINT8)
        if clip is not None:
            limits = (("lower", op.constant_of(input_of(clip, 1))), ("upper", op.constant_of(input_of(clip, 2))))
            attributes |= {name: int(limit.item()) for name, limit in limits if limit is not None}
    outline(op, op_type, [*quantisation.nodes, first], inputs, [first.outputs[0]], attributes)
    for node in others:
        outline(op, op_type, [node], inputs, [node.outputs[0]], attributes)


def _is_pair(quantisation: _Quantisation, dequantise: ir.Node) -> bool:
    quantise = quantisation.node
    if not is_op(dequantise, "DequantizeLinear") or dequantise.graph is not quantise.graph:
        return False
    if quantisation.result is not dequantise.inputs[0]:
        return False
    if quantise.op_type == "DynamicQuantizeLinear":
        return all(input_of(dequantise, i) is quantise.outputs[i] for i in (1, 2))
    return (
        all(_same(input_of(quantise, i), input_of(dequantise, i)) for i in (1, 2))
        and required_input(quantise, 0).dtype == dequantise.outputs[0].dtype
    )


def _same(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Say whether two operands are one value, or equal initializers."""
    if first is second:
        return True
    if first is None or second is None or first.const_value is None or second.const_value is None:
        return False
    one, other = first.const_value, second.const_value
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one.numpy(), other.numpy()))
