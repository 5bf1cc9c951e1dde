"""Asks onnxruntime itself what it makes of a file: the graph it executes, after all optimisations, in its order.

The model of the execution order (`execution_order`) sees the file; onnxruntime executes what its optimisers leave of
it. Loading a file without its weights costs little and settles what is left to doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.isolation.evaluate import MEMORY, SECONDS, EvaluationError, evaluate
from ckplan.isolation.folders import temporary_folder
from ckplan.model.half import loading_advice
from ckplan.model.inference.stand_ins import KEEP_BYTES, KEEP_IN_ALL, stand_in
from ckplan.model.nested_graphs import subgraphs
from ckplan.model.node_reads import reads
from ckplan.model.validity import CHECK_IT
from ckplan.operators.sessions import clean
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import simulate
from ckplan.planner.timeline import Timeline
from ckplan.runtime.cpu import CPU
from ckplan.runtime.executing.execution_order import default_order, predecessors
from ckplan.runtime.executing.learnt_shapes import infer_shapes, learn_dimensions, made_values
from ckplan.runtime.executing.unfused import unfuse
from ckplan.runtime.kernels.inner import EXECUTED
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import DIMENSIONS, SMALL, dimensions_of, shape_classes

_BLOCKS = "com.microsoft.nchwc"
"""The domain of operators in a layout of blocks of channels."""


class Level(Enum):
    """How far onnxruntime optimises a graph; the values are the names of its own levels."""

    BASIC = "ORT_ENABLE_BASIC"
    """Within the standard operators."""
    ALL = "ORT_ENABLE_ALL"
    """With operators of its own and layouts that go by the processor: what users get by default."""


def executed_model(model: ir.Model, without: Sequence[str] = (), runtime: Runtime = CPU) -> ir.Model:
    """The model that onnxruntime executes under default session options, nodes in execution order.

    Parameters that a caller may feed are stripped of their values, which onnxruntime does not look at; large constants
    are stood in for.

    Args:
        model: the file; fused nodes in it are written as the nodes that they stand for.
        without: optimisers of onnxruntime to leave out, such as those that go by the processor.
        runtime: where it executes.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    file = _as_file(model)
    (executed,) = _optimised(file, (Level.ALL,), without, runtime)
    mark_executed(executed, file, runtime)
    return executed


def optimised(
    model: ir.Model, levels: Sequence[Level], without: Sequence[str] = (), runtime: Runtime = CPU
) -> list[ir.Model]:
    """What onnxruntime's optimisers leave of a model at each of some levels, every value with its dimensions.

    Small tensors that it would compute at load time are constants in it; larger ones stay nodes. Parameters are graph
    inputs without a value in it, and so are large constants: where optimisers move a transpose, they turn constants in
    place, and of a large one there is only a stand-in to be turned.

    Args:
        model: the file.
        levels: how far to optimise.
        without: optimisers to leave out.
        runtime: for which to optimise.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    file = _as_file(model)
    kept = 0
    for name, value in list(file.graph.initializers.items()):
        size = 0 if value.const_value is None else value.const_value.nbytes
        if size <= KEEP_BYTES and kept + size <= KEEP_IN_ALL:
            kept += size
            continue
        del file.graph.initializers[name]
        value.const_value = None
        file.graph.inputs.append(value)
    found = _optimised(file, levels, without, runtime, folded=SMALL - 1)
    for made in found:
        infer_shapes(made, everywhere=False)
        learn_dimensions(made, model, runtime)
        for value in made_values(made.graph):
            dims = dimensions_of(value)
            if dims is not None:
                value.shape = ir.Shape(dims)
                value.meta.pop(DIMENSIONS, None)
    return found


def _as_file(model: ir.Model) -> ir.Model:
    """A model as its file has it, without the values of parameters, at which onnxruntime does not look."""
    file = model.clone()
    unfuse(file)
    fed = set(file.graph.inputs)
    for name, value in list(file.graph.initializers.items()):
        if value in fed:
            del file.graph.initializers[name]
            value.const_value = None
    return file


def _optimised(
    file: ir.Model, levels: Sequence[Level], without: Sequence[str], runtime: Runtime, *, folded: int | None = None
) -> list[ir.Model]:
    """What onnxruntime writes of a file after its optimisations.

    Args:
        file: the file; is changed.
        levels: how far to optimise.
        without: optimisers to leave out.
        runtime: for which to optimise.
        folded: bytes of the largest tensor that is computed at load time, by default onnxruntime's own limit.

    Raises:
        ModelError: onnxruntime does not load the file.
    """
    with temporary_folder() as folder:
        source, targets = folder / "file.onnx", {level.value: folder / f"{level.value}.onnx" for level in levels}
        stand_in(file, folder, fold="ConstantFolding" not in without)
        ir.save(file, source)
        try:
            evaluate(
                "optimise",
                memory=MEMORY + 8 * source.stat().st_size,
                seconds=len(levels) * (SECONDS + len(file.graph) / 50),
                source=str(source),
                targets={level: str(target) for level, target in targets.items()},
                providers=runtime.providers,
                without=[*runtime.without, *without],
                folded=folded,
            )
        except EvaluationError as error:
            reason = clean(str(error).splitlines()[0])
            advice = loading_advice(reason, file) or CHECK_IT
            raise ModelError(f"onnxruntime does not load the graph: {reason}", advice) from error
        return [ir.load(target) for target in targets.values()]


def mark_executed(executed: ir.Model, model: ir.Model, runtime: Runtime = CPU) -> None:
    """Prepare a model that onnxruntime wrote after its optimisations for being turned into numbers.

    Args:
        executed: what onnxruntime wrote; is changed.
        model: the file that it was made from, which knows shapes that onnxruntime does not keep.
        runtime: where it executes.
    """
    read = {_written(body) for body in subgraphs(model.graph)}
    for body in subgraphs(executed.graph):
        body.meta[EXECUTED] = _written(body) not in read
    untouched = _written(executed.graph) == _written(model.graph)
    if untouched:
        nodes = list(executed.graph)
        executed.graph.remove(nodes)
        executed.graph.extend(nodes[position] for position in default_order(predecessors(nodes)))
    infer_shapes(executed, untouched)
    learn_dimensions(executed, model, runtime)
    written = {value.name for value in made_values(model.graph)}
    for node in executed.graph:
        # By their own rules onnxruntime knows these shapes: only whole blocks of channels are laid out so, and a
        # transpose that is moved behind a Shape leaves one of as many entries as it has axes.
        known = node.domain == _BLOCKS and node.inputs[0] is not None and node.inputs[0].shape is not None
        known |= node.op_type == "Shape" and node.outputs[0].name not in written
        for value in node.outputs if known else ():
            dims = dimensions_of(value)
            if (value.shape is None or node.op_type == "Shape") and dims is not None:
                value.shape = ir.Shape(dims)


def _written(graph: ir.Graph) -> tuple[tuple[str | None, str], ...]:
    """By what a graph is known to be as it was read: it is then written so, not as it is executed.

    A graph, or a body for itself, is written anew only where an optimiser changed it (``Graph::ToGraphProto`` in
    ``core/graph/graph.cc``).
    """
    return tuple((node.name, node.op_type) for node in graph)


def executed_timeline(executed: ir.Model, problem: Problem | None = None) -> Timeline:
    """The simulated memory timeline of what onnxruntime executes, dead buffers held as its planner holds them.

    Args:
        executed: nodes in execution order.
        problem: its numbers, if they are known.
    """
    problem = problem or problem_of(executed)
    return simulate(problem, range(len(problem.ops)), shape_classes(executed.graph, problem))


def expected_timeline(model: ir.Model) -> Timeline:
    """The simulated timeline of what onnxruntime makes of a file under default session options.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    return executed_timeline(executed_model(model))


def executed_order(nodes: Sequence[ir.Node], executed: ir.Model) -> list[int]:
    """The order in which the nodes of a file run by default, as positions in the file.

    Nodes are recognised by what they make. A node that was fused into another counts as run right before it.
    """
    maker = {value.name: position for position, node in enumerate(nodes) for value in node.outputs if value.name}
    order: list[int] = []
    done: set[int] = set()

    def run(position: int) -> None:
        stack = [(position, False)]
        while stack:
            current, ready = stack.pop()
            if ready:
                order.append(current)
            elif current not in done:
                done.add(current)
                stack.append((current, True))
                before = [maker[v.name] for v in reads(nodes[current]) if v.name in maker]
                stack.extend((earlier, False) for earlier in sorted(set(before)))

    for node in executed.graph:
        for value in node.outputs:
            if value.name in maker:
                run(maker[value.name])
    for position in range(len(nodes)):
        run(position)
    return order
