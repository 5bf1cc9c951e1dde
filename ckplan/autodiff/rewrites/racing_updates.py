"""Updates of one place by several threads, which onnxruntime loses, are made one after the other.

Exporters write a ScatterND with a reduction where numbers are added up in places that the data tell: ``index_add`` and
``index_put`` of torch, segments, edges of a graph. onnxruntime goes through the updates with all its threads and locks
nothing (``core/providers/cpu/tensor/scatter_nd.cc``): of 20,000 rows that are added to eight, some hundred are missing
now and then. The loss and all gradients would be of other sums in each run.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.control_flow.bodies import BodyBuilder
from ckplan.autodiff.reading import attr_str, required_input, shape_of, size_of
from ckplan.autodiff.rules.placement.scatter import updated_in_turn
from ckplan.display import shortened
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import graphs_in
from ckplan.operators.matching import is_op

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)


def update_in_turn(op: Builder) -> tuple[str, ...]:
    """Let ScatterElements make what a ScatterND makes with a reduction.

    That is done when gradients are there: they read the tuples of indices, and not a place for each number.

    Args:
        op: builder of the graph.

    Returns:
        Notes.
    """
    names = _update(op)
    if not names:
        return ()
    what = f"{len(names)} ScatterND node(s) with a reduction go through ScatterElements ({shortened(names, 3)})"
    return (f"{what}: of the file's own onnxruntime's threads lose updates, so that results differ from run to run",)


def _update(op: Builder) -> list[str]:
    """Do it in a graph and in the bodies of its nodes; return the names of the nodes, quoted."""
    names = []
    for node in list(op.graph):
        names += [name for body in graphs_in(node) for name in _update(BodyBuilder(op, body))]
        if not is_op(node, "ScatterND") or (how := attr_str(node, "reduction", "none")) == "none":
            continue
        data, indices, updates = (required_input(node, index) for index in range(3))
        if data.dtype not in _TYPES or any(static_shape(value) is None for value in (data, indices, updates)):
            continue
        if not size_of(data) or not size_of(updates):
            continue
        with op.scope(str(node.name), "forward", before=node):
            made = updated_in_turn(op, data, indices, updates, how)
            shape = op.constant(shape_of(data))
        become(node, ("", "Reshape", ""), [made, shape], [])
        names.append(repr(node.name))
    return names
