"""What onnxruntime makes of a file: the graph that it executes, nodes in execution order."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.meter.running.child import Channel
from ckplan.meter.running.session import open_session
from ckplan.model.inference.infer import NodeInference, small_constant
from ckplan.model.node_reads import made_by_name
from ckplan.runtime.executing.executed import mark_executed

_SMALL = 2048
"""Elements of constants that shape inference may read: those that hold shapes and axes are small."""


def job(channel: Channel) -> None:
    """In the child: load the file as it is, and have onnxruntime write what it made of it; nothing is run."""
    request = channel.request
    channel.progress("writing the optimised graph")
    open_session(request["path"], request["device"], threads=request["threads"], optimized=Path(request["optimized"]))


def executed_graph(file: Path, model: ir.Model) -> ir.Model:
    """The graph that onnxruntime executed.

    Args:
        file: what onnxruntime wrote of its optimised graph; has to stay as long as the graph is in use.
        model: the file that it was made from, read; it knows shapes that onnxruntime does not keep.

    Raises:
        ModelError: onnxruntime wrote nothing, or what cannot be read.
    """
    try:
        executed = ir.load(file)
    except FileNotFoundError:
        raise ModelError("onnxruntime could not write its optimised graph") from None
    except Exception as error:  # protobuf and onnx_ir raise anything
        raise ModelError(f"onnxruntime's optimised graph cannot be read ({type(error).__name__}: {error})") from error
    _settle(executed, model)
    _infer(executed, model)
    mark_executed(executed, model)
    return executed


def _settle(executed: ir.Model, model: ir.Model) -> None:
    """Let the external tensors of what onnxruntime wrote be those of the file: it names data files as the file does."""
    for name, value in executed.graph.initializers.items():
        known = model.graph.initializers.get(name)
        if known is not None and isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = known.const_value


def _infer(executed: ir.Model, model: ir.Model) -> None:
    """Give values the shapes that onnxruntime infers for itself and does not write.

    By them it hands dead buffers on. A value that the file knows has the shape that follows there, too.
    """
    known = model.clone()
    infer_shapes(known)
    named = made_by_name(known.graph)
    for node in executed.graph:
        for value in node.outputs:
            original = named.get(str(value.name))
            if original is not None and value.shape is None:
                value.shape, value.type = original.shape, value.type or original.type
    infer_shapes(executed)


def infer_shapes(model: ir.Model) -> None:
    """Set shapes and types where they are missing or open, node by node as onnxruntime does, as far as that goes."""
    inference = NodeInference(model.graph, model.ir_version)
    for node in model.graph:
        if any(value.shape is None or not value.shape.is_static() for value in node.outputs):
            inference.run(node, small_constant)
