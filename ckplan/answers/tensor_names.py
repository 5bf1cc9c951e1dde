"""Which tensor of the graph that is planned a name means: of a tensor or a node, there or in the model as it came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import onnx_ir as ir

from ckplan.display import did_you_mean
from ckplan.errors import UsageError
from ckplan.model.nested_graphs import all_nodes, graphs_in
from ckplan.model.node_reads import made_by_name

_PASSING = frozenset({"Identity", "Dropout", "Cast"})
"""Operators that may give way, so that what they read stands for what they make."""


def named_tensor(
    name: str, ids: Mapping[str, int], model: ir.Model, original: Callable[[], ir.Model]
) -> tuple[str, str]:
    """The tensor that a name means, and what was found out on the way.

    Args:
        name: of a tensor or a node.
        ids: the tensors of the graph that is planned, by name.
        model: that graph.
        original: gives the model as it came, when it is needed.

    Raises:
        UsageError: there is no such tensor.
    """
    if name in ids:
        return name, ""
    for node in model.graph:
        if node.name == name and node.outputs and node.outputs[0].name in ids:
            made = str(node.outputs[0].name)
            return made, f"'{name}' is a node; this is about '{made}', which it makes"
    graph = original().graph
    known = {str(node.name): node.outputs[0] for node in graph if node.name and node.outputs}
    known |= made_by_name(graph)
    known |= {str(key): value for key, value in graph.initializers.items()}
    value: ir.Value | None = known.get(name)
    passed: list[str] = []
    while value is not None and (maker := value.producer()) is not None and maker.op_type in _PASSING:
        passed.append(maker.op_type)
        value = maker.inputs[0]
        if value is not None and value.name in ids:
            through = " and ".join(dict.fromkeys(passed))
            return str(value.name), f"'{name}' is '{value.name}' in this graph, as {through} gave way"
    if name in known:
        made = _made_of(known[name], ids)
        raise UsageError(
            f"tensor '{known[name].name}' of the model is not in the graph that is planned: it is constant, was "
            "replaced when the model was brought into normal form, is made within a fused node, or nothing needs it",
            f"explain what is made of it: `{made}`"
            if made
            else did_you_mean(name, ids, most=3) or "name another tensor",
        )
    for node in model.graph:
        if any(value.name == name for body in graphs_in(node) for inner in all_nodes(body) for value in inner.outputs):
            raise UsageError(
                f"tensor '{name}' is made in the body of {node.op_type} '{node.name}', which is planned as a whole",
                f"explain what that makes: `{node.outputs[0].name}`",
            )
    raise UsageError(
        f"there is no tensor '{name}' in the model",
        did_you_mean(name, ids, most=3) or "`ckplan analyze` names the largest",
    )


def _made_of(value: ir.Value, ids: Mapping[str, int]) -> str:
    """The nearest of some tensors by name that nodes of the model make of a value; empty if there is none."""
    reached, waiting = {value}, deque([value])
    while waiting:
        made = [output for node, _ in waiting.popleft().uses() for output in node.outputs]
        if found := next((str(output.name) for output in made if output.name in ids), ""):
            return found
        waiting += [output for output in made if output not in reached]
        reached.update(made)
    return ""
