"""One sweep over a model in execution order: infer shapes, fold what they decide, take decided branches.

Every input has a static shape by now, so shape arithmetic (Shape, Gather, Concat, ... into Reshape) is constant and
disappears. What a floating weight goes into is never folded: the weight must stay what is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.model.bodies import bodies_of, changing_states, enter, forget_shapes, leave
from ckplan.model.constants import FOLDED, is_constant, mark_constant, unused_name
from ckplan.model.contrib import expand
from ckplan.model.inference.effort import TRANSIENT_BYTES, is_quick
from ckplan.model.inference.infer import NodeInference, is_known, static_shape
from ckplan.model.inference.node_evaluation import evaluated, made_of_shape
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import fixed_tensor
from ckplan.model.normal_form.opset import MINIMUM_IR_VERSION
from ckplan.model.normal_form.trip_counts import fix_trip_count
from ckplan.model.normal_form.unchanging_states import capture_unchanging_states
from ckplan.model.rewiring import output_copy
from ckplan.model.sequences.appended import write_appended
from ckplan.model.sequences.bag_sequences import write_bag_sequence
from ckplan.model.sequences.bags import write_bags
from ckplan.model.sequences.captured import gather_captured
from ckplan.model.sequences.resolved import Contents, resolve
from ckplan.operators.matching import is_op

# A folded tensor that the model keeps: more would make the file larger than the node that computes it is worth.
KEEP_BYTES = 1 << 20
_NEVER = frozenset({"DequantizeLinear", "QuantizeLinear"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
# Quantised weights are integers and still no shape arithmetic.
_STORAGE_ONLY = frozenset({ir.DataType.INT8, ir.DataType.UINT8})

Repair = Callable[[ir.Node, "Sweep"], None]


@dataclass
class Sweep:
    """State of a sweep.

    Attributes:
        model: what is gone over.
        constants: value -> its array, for every value that does not depend on inputs or weights.
        problems: node -> why its shape inference failed.
        tried: the nodes visited are those of a Loop's body whose states' shapes are not certain yet.
        expanded: the operators of com.microsoft that were replaced by standard ones, one entry a node.
        contents: what sequences and optionals hold.
    """

    model: ir.Model
    constants: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    problems: dict[ir.Node, str] = field(default_factory=dict)
    tried: bool = False
    expanded: list[str] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents)

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """The array of a value that is a number of the program: an initializer that is no weight, or folded."""
        if value is None:
            return None
        if value in self.constants:
            return self.constants[value]
        array = _constant_initializer(value)
        if array is not None:
            self.constants[value] = array
        return array


def sweep(model: ir.Model, repair: Repair | None = None) -> Sweep:
    """Infer and fold the main graph in place.

    Args:
        model: its main graph is sorted and its inputs have static shapes.
        repair: called with each node before its inference; may replace the node's inputs or insert nodes before it.

    Returns:
        What was constant and what inference complained of.
    """
    state = Sweep(model)
    inference = NodeInference(model.graph, model.ir_version)
    for node in model.graph:
        _visit(node, state, inference, repair)
    _materialise(state)
    return state


def infer_with_bodies(graph: ir.Graph, node: ir.Node) -> str:
    """Fill in types and shapes of a control-flow node of a main graph: of what is inside, and of its outputs.

    Returns:
        An empty string, or why inference failed.
    """
    state = Sweep(ir.Model(graph, ir_version=MINIMUM_IR_VERSION))
    _visit(node, state, NodeInference(graph, MINIMUM_IR_VERSION), None)
    return next(iter(state.problems.values()), "")


def _visit(node: ir.Node, state: Sweep, inference: NodeInference, repair: Repair | None) -> None:
    if is_op(node, "If"):
        condition = state.constant(node.inputs[0])
        if condition is not None and condition.size == 1 and not state.tried:
            for inlined in _take_branch(node, bool(condition.reshape(-1)[0])):
                _visit(inlined, state, inference, repair)
            return
    if repair is not None:
        repair(node, state)
    known = all(value is None or is_known(value) for value in node.inputs)
    if known and not state.tried and expand(node, lambda fresh: _visit(fresh, state, inference, None), state.constant):
        state.expanded.append(node.op_type)
        return
    if not state.tried:
        visit, initializer = (
            partial(_visit, state=state, inference=inference, repair=None),
            partial(_initializer, state),
        )
        resolve(node, state.contents, visit, state.constant, initializer)
        gather_captured(node, state.contents, visit, state.constant, initializer)
    if bodies_of(node):
        _visit_bodies(node, state, inference)
        again = partial(_visit, state=state, inference=inference, repair=None)
        if not state.tried and write_bags(node, again, state.constant):
            return
        if not state.tried and write_bag_sequence(node, state.contents, again, state.constant):
            return
        if not state.tried and write_appended(node, state.contents, again, state.constant):
            return
        evaluate, initializer = partial(_evaluate, state=state), partial(_initializer, state)
        if not state.tried and fix_trip_count(node, state.constants, state.constant, evaluate, initializer):
            leave(node)
    if not all(is_known(output) for output in node.outputs):
        problem = inference.run(node, state.constant)
        if problem:
            state.problems[node] = problem
    _fold(node, state)


def _visit_bodies(node: ir.Node, state: Sweep, inference: NodeInference) -> None:
    """Infer and fold what is inside a control-flow node."""
    if not state.tried:
        capture_unchanging_states(node)
    enter(node)
    tried = state.tried
    # Whether the states of a Loop keep their shapes is found out by a trial, in which nothing may be moved.
    state.tried = tried or node.op_type == "Loop"
    for _ in range(len(node.inputs) if node.op_type == "Loop" else 0):
        for body in bodies_of(node):
            for inner in list(body):
                _visit(inner, state, inference, None)
        changing = changing_states(node)
        for body in bodies_of(node):
            _forget(body, state)
            for index in changing:
                body.inputs[index].shape = _common(body.inputs[index].shape, body.outputs[index - 1].shape)
        if not changing:
            break
    state.tried = tried
    for body in bodies_of(node):
        for inner in list(body):
            _visit(inner, state, inference, None)
    leave(node)


def _common(before: ir.Shape | None, after: ir.Shape | None) -> ir.Shape | None:
    """The dimensions on which two shapes agree, the others unknown."""
    if before is None or after is None or len(before) != len(after):
        return None
    return ir.Shape([one if one == other else None for one, other in zip(before, after, strict=True)])


def _forget(body: ir.Graph, state: Sweep) -> None:
    """Take back what a trial found out."""
    forget_shapes(body)
    for scope in (body, *body.subgraphs()):
        for inner in scope:
            for output in inner.outputs:
                state.constants.pop(output, None)


def _fold(node: ir.Node, state: Sweep) -> None:
    if node.domain != "" or node.op_type in _NEVER:
        return
    if graphs_in(node):
        return
    arrays = _fold_by_shape(node)
    if arrays is None:
        arrays = _evaluate(node, state)
    if arrays is None or len(arrays) != len(node.outputs):
        return
    for output, array in zip(node.outputs, arrays, strict=True):
        dtype = ir.DataType.from_numpy(array.dtype)
        if output.dtype is not None and output.dtype != dtype:
            return
    for output, array in zip(node.outputs, arrays, strict=True):
        state.constants[output] = array
        output.dtype = ir.DataType.from_numpy(array.dtype)
        output.shape = ir.Shape(array.shape)


def _fold_by_shape(node: ir.Node) -> list[np.ndarray] | None:
    """Shape and Size need their input's shape only."""
    if node.op_type not in ("Shape", "Size") or node.inputs[0] is None:
        return None
    shape = static_shape(node.inputs[0])
    return None if shape is None else made_of_shape(node, shape)


def _evaluate(node: ir.Node, state: Sweep) -> list[np.ndarray] | None:
    arrays: list[np.ndarray | None] = []
    for value in node.inputs:
        array = state.constant(value)
        if array is None and node.op_type in _COMPARISONS:
            array = _compared_number(value)
        if array is None and is_op(node, "CastLike") and len(arrays) == 1 and value is not None:
            array = _of_its_type(value)
        if value is not None and array is None:
            return None
        arrays.append(array)
    if not node.outputs or not is_quick(node, arrays) or not _small_enough(node, arrays):
        return None
    return evaluated(node, arrays, state.model.graph.opset_imports.get("", 1))


def _compared_number(value: ir.Value | None) -> np.ndarray | None:
    """The number of an initializer that is compared with another: whoever wrote the file has decided what comes out."""
    tensor = fixed_tensor(value)
    return np.asarray(tensor.numpy()) if tensor is not None and tensor.size == 1 else None


def _of_its_type(value: ir.Value) -> np.ndarray | None:
    """A number of the element type of a value of which nothing else is read."""
    return None if value.dtype is None or value.dtype == ir.DataType.STRING else np.zeros((), value.dtype.numpy())


def _small_enough(node: ir.Node, arrays: list[np.ndarray | None]) -> bool:
    total = 0
    for output in node.outputs:
        shape = static_shape(output)
        if shape is None or output.dtype is None:
            # An unknown output may be huge if it is an expansion; otherwise it is as small as its inputs.
            if node.op_type == "Range" and all(array is not None and array.size == 1 for array in arrays):
                # Inference demands scalars, where the body of AffineGrid has tensors of one element.
                start, limit, delta = (float(array.reshape(())) for array in arrays if array is not None)
                return delta != 0 and (limit - start) / delta <= 4096
            growing = node.op_type in ("Range", "Expand", "Tile", "ConstantOfShape", "OneHot", "Resize", "Pad")
            return not growing and sum(array.size for array in arrays if array is not None) <= 4096
        total += math.prod(shape) * max(1, math.ceil(output.dtype.itemsize))
    return total <= TRANSIENT_BYTES


def _constant_initializer(value: ir.Value) -> np.ndarray | None:
    tensor = fixed_tensor(value)
    if tensor is None or tensor.nbytes > TRANSIENT_BYTES:
        return None
    dtype = tensor.dtype
    if dtype == ir.DataType.STRING or (dtype.is_floating_point() and not is_constant(value)):
        return None
    if dtype in _STORAGE_ONLY and tensor.size > 1:
        return None
    array = np.asarray(tensor.numpy())
    return array if array.dtype.kind in "iufb" else None


def _take_branch(node: ir.Node, condition: bool) -> list[ir.Node]:
    """Replace an If whose condition is known by the nodes of the branch that it takes."""
    graph = node.graph
    assert graph is not None
    branch = node.attributes.get_graph("then_branch" if condition else "else_branch")
    assert branch is not None
    for name in list(branch.initializers):
        inner = branch.initializers.pop(name)
        inner.name = unused_name(graph, name)
        graph.register_initializer(inner)
    nodes = list(branch)
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for output, result in zip(list(node.outputs), list(branch.outputs), strict=True):
        source = result
        if output.is_graph_output():
            copy = ir.node("Identity", inputs=[result])
            copy.outputs[0].type, copy.outputs[0].shape = output.type, output.shape
            graph.insert_before(node, copy)
            nodes.append(copy)
            source = copy.outputs[0]
        output_name = output.name
        ir.convenience.replace_all_uses_with(output, source, replace_graph_outputs=True)
        if source is not result:
            source.name = output_name
    branch.outputs.clear()
    _let_go(node.attributes.get_graph("else_branch" if condition else "then_branch"))
    graph.remove(node, safe=True)
    return nodes


def _let_go(branch: ir.Graph | None) -> None:
    """Let a branch that falls away read nothing any more: what it alone reads falls away with it."""
    for node in () if branch is None else branch.all_nodes():
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def _materialise(state: Sweep) -> None:
    """Turn folded values that something still reads into initializers; drop the nodes that nothing reads any more."""
    graph = state.model.graph
    scopes = [*reversed(list(graph.subgraphs())), graph]  # what is inside first: it reads what is around it
    needed = {output for scope in scopes for output in scope.outputs}
    for scope in scopes:
        for node in reversed(list(scope)):
            _materialise_node(node, needed, state)


def _materialise_node(node: ir.Node, needed: set[ir.Value], state: Sweep) -> None:
    folded = all(
        output in state.constants and (output not in needed or _can_keep(state.constants[output]))
        for output in node.outputs
    )
    if not folded or not node.outputs:
        needed.update(value for value in node.inputs if value is not None)
        return
    for output in node.outputs:
        if output in needed:
            _replace_by_initializer(node, output, state)
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    assert node.graph is not None
    node.graph.remove(node)


def _can_keep(array: np.ndarray) -> bool:
    return array.nbytes <= KEEP_BYTES


def _initializer(state: Sweep, array: np.ndarray, name: str = "resolved") -> ir.Value:
    """Make a constant of the main graph."""
    graph = state.model.graph
    initializer = ir.Value(
        name=unused_name(graph, name),
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.Tensor(array),
        metadata_props={keys.CONSTANT: FOLDED},
    )
    graph.register_initializer(initializer)
    mark_constant(initializer, FOLDED)
    state.constants[initializer] = array
    return initializer


def _replace_by_initializer(node: ir.Node, output: ir.Value, state: Sweep) -> None:
    array = state.constants[output]
    name = output.name or f"{node.name}_folded"
    is_output = output.is_graph_output()
    output.name = None
    initializer = _initializer(state, array, f"{name}_value" if is_output else name)
    if is_output:
        assert node.graph is not None
        output.name, output.type, output.shape = name, initializer.type, initializer.shape
        node.graph.insert_before(node, output_copy(output, initializer))
    else:
        ir.convenience.replace_all_uses_with(output, initializer)
