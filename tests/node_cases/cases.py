"""The test cases that the onnx package ships, each with a model, its inputs and the outputs that onnx expects.

They are the node tests (one operator, or the body of the function that defines it), the ``simple`` ones, and those
converted from PyTorch. All of them are in the package: nothing is downloaded.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests

STORED_KINDS = ("simple", "pytorch-converted", "pytorch-operator")
"""Kinds whose cases are files of the package."""

FLOATS = frozenset(
    {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
)
"""Element types that carry gradients."""


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        name: as the onnx package calls it.
        kind: ``node``, one of :data:`STORED_KINDS`, ``corner`` or ``older``.
        model: the forward model.
        inputs: arrays (or None, or a list of arrays for a sequence) in the order of the graph's inputs.
        outputs: what onnx expects, in the order of the graph's outputs.
    """

    name: str
    kind: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    @property
    def operators(self) -> tuple[str, ...]:
        """The types of the main graph's nodes, each once, sorted; constants do not count."""
        return tuple(sorted({node.op_type for node in self.model.graph.node} - {"Constant"}))


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Return every case of the installed onnx package, by kind and name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # making the cases overflows and divides by zero on purpose
        found = [
            Case(case.name, "node", case.model, *([_array(item) for item in side] for side in case.data_sets[0]))
            for case in collect_testcases(None)
            if case.model is not None and case.data_sets
        ]
        for kind in STORED_KINDS:
            found.extend(_stored(case.name, kind, Path(case.model_dir)) for case in load_model_tests(kind=kind))
    return tuple(sorted(found, key=lambda case: (case.kind, case.name)))


def case_named(name: str, among: Sequence[Case] | None = None) -> Case:
    """Return the case of this name among some, or among all of the package."""
    return next(case for case in among or all_cases() if case.name == name)


def is_float_type(kind: onnx.TypeProto) -> bool:
    """Say whether a type is a floating tensor, or a sequence or optional of such."""
    while not kind.HasField("tensor_type"):
        if kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        elif kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        else:
            return False
    return kind.tensor_type.elem_type in FLOATS


def holds_float_path(case: Case) -> bool:
    """Say whether a case has floats among its inputs or weights and among its outputs."""
    graph = case.model.graph
    goes_in = any(is_float_type(value.type) for value in graph.input) or any(
        tensor.data_type in FLOATS for tensor in graph.initializer
    )
    return goes_in and any(is_float_type(value.type) for value in graph.output)


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _stored(name: str, kind: str, folder: Path) -> Case:
    model = onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"
    fed = [value for value in model.graph.input if value.name not in {t.name for t in model.graph.initializer}]
    inputs = [_read(data / f"input_{index}.pb", value.type) for index, value in enumerate(fed)]
    outputs = [_read(data / f"output_{index}.pb", value.type) for index, value in enumerate(model.graph.output)]
    return Case(name, kind, model, inputs, outputs)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(content))
