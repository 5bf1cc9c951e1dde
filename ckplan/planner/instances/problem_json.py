"""A `Problem` as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckplan.display import reason_of
from ckplan.errors import ModelError
from ckplan.planner.problem import Kind, Op, Problem, Tensor

SCHEMA = 1
"""Version of the JSON form; raised when a reader of the old form would misunderstand the new one."""

FORMAT = "ckplan-problem"
"""Value of the ``format`` key, by which such a file is told from other JSON."""


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """A JSON-ready form of a problem.

    Tensors are ``[name, bytes, kind]`` and are referred to by position. Fields of an op that have their default
    value are left out.
    """
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "tensors": [[tensor.name, tensor.bytes, tensor.kind.value] for tensor in problem.tensors],
        "ops": [_op_to_json(op) for op in problem.ops],
        "collection": list(problem.collection),
    }


def _op_to_json(op: Op) -> dict[str, Any]:
    data: dict[str, Any] = {"name": op.name, "inputs": list(op.inputs), "outputs": list(op.outputs), "cost": op.cost}
    if op.workspace:
        data["workspace"] = op.workspace
    for field, default in (("backward", False), ("recomputable", True), ("heavy", False)):
        if getattr(op, field) != default:
            data[field] = not default
    # JSON has no integer keys: mappings are lists of pairs.
    if op.views:
        data["views"] = [[made, base] for made, base in op.views.items()]
    if op.inplace:
        data["inplace"] = [[made, list(bases)] for made, bases in op.inplace.items()]
    return data


def problem_from_json(data: Mapping[str, Any]) -> Problem:
    """The inverse of `problem_to_json`.

    Raises:
        ModelError: the data is no problem, of another schema, or refers to tensors that it does not have.
    """
    if data.get("format") != FORMAT or data.get("schema") != SCHEMA:
        raise ModelError(
            f"planning problem has format {data.get('format')!r} and schema {data.get('schema')!r}, "
            f"this version reads {FORMAT!r} with schema {SCHEMA}"
        )
    try:
        tensors = tuple(Tensor(str(name), int(size), Kind(kind)) for name, size, kind in data["tensors"])
        ops = tuple(_op_from_json(op, len(tensors)) for op in data["ops"])
        return Problem(ops, tensors, tuple(str(name) for name in data.get("collection", ())))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ModelError(f"planning problem is damaged: {reason_of(error)}") from error


def _op_from_json(data: Mapping[str, Any], tensors: int) -> Op:
    op = Op(
        name=str(data["name"]),
        inputs=tuple(int(tensor) for tensor in data["inputs"]),
        outputs=tuple(int(tensor) for tensor in data["outputs"]),
        cost=float(data["cost"]),
        workspace=int(data.get("workspace", 0)),
        backward=bool(data.get("backward", False)),
        recomputable=bool(data.get("recomputable", True)),
        heavy=bool(data.get("heavy", False)),
        views={int(made): int(base) for made, base in data.get("views", ())},
        inplace={int(made): tuple(int(base) for base in bases) for made, bases in data.get("inplace", ())},
    )
    named = {*op.inputs, *op.outputs, *op.views, *op.views.values(), *op.inplace}
    named.update(base for bases in op.inplace.values() for base in bases)
    outside = [tensor for tensor in named if not 0 <= tensor < tensors]
    if outside:
        raise ValueError(f"op {op.name!r} refers to tensor {outside[0]}, there are {tensors}")
    taken = [(made, (base,)) for made, base in op.views.items()] + list(op.inplace.items())
    if any(made not in op.outputs or not set(bases) <= set(op.inputs) for made, bases in taken):
        raise ValueError(f"op {op.name!r} has a view, or an output in place, of what it does not read")
    return op
