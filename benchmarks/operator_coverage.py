"""How many operators of ai.onnx ckplan differentiates, beside onnx-ad and onnxruntime-training.

The operators are those that ckplan calls differentiable (``ckplan ops``). onnx-ad is counted from the installed
package: rules of its reverse mode, what it lowers or unrolls to operators that have some, and function bodies.
onnxruntime-training is counted from the gradient builders in the library of its last release, 1.19.2:

    strings onnxruntime_pybind11_state*.so | grep -oE '[0-9]+Get[A-Za-z0-9]+GradientE' | sort -u

Run: ``python -m benchmarks.operator_coverage``, with ``--library SO`` to read the builders anew from that library.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from ckplan.autodiff.coverage import DIFFERENTIABLE, Kind, standard_operators

_BUILDERS = """Abs AddSub AveragePool BatchNormalization BiasGelu Cast Clip Concat ConcatTraining Conv
ConvTranspose Cos Div Dropout Erf Exp Expand External FakeQuant FastGelu Flatten FlattenAndUnpad GRU
Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Identity LSTM LayerNormalization
LeakyRelu Log LogSoftmax MatMul MatmulBnb4 MaxPool MegatronF MegatronG MinMax Mul Neg Pad
PadAndUnflatten Pow PythonOp QuickGelu Reciprocal Recv ReduceL2 ReduceLogSumExp ReduceMean ReduceSum
Relu Reshape Resize ScaledSum ScatterElements ScatterND Send ShrunkenGather Sigmoid
SimplifiedLayerNormalization Sin Slice Softmax SoftmaxCrossEntropy SoftmaxCrossEntropyLoss
SoftmaxCrossEntropyLossInternal SparseSoftmaxCrossEntropy Split Sqrt Squeeze Tanh Tile TopK
Transpose Trilu Unsqueeze Where"""
"""Gradient builders of onnxruntime-training-cpu 1.19.2 (linux, Python 3.11)."""

_PAIRS = {"AddSub": ("Add", "Sub"), "MinMax": ("Min", "Max")}
"""Builders for two operators each."""


def builders_in(library: Path) -> list[str]:
    """Names of the gradient builders whose type information a shared library holds."""
    names = re.findall(rb"\d+Get([A-Za-z0-9]+)GradientE", library.read_bytes())
    return sorted({name.decode() for name in names})


def of_onnxruntime_training(builders: Sequence[str]) -> set[str]:
    """Operators that the builders differentiate; those of its own domain are among them."""
    return {op_type for name in builders for op_type in _PAIRS.get(name, (name,))}


def of_onnx_ad(candidates: Sequence[str]) -> tuple[set[str], set[str]]:
    """Operators among the candidates that onnx-ad differentiates: by a rule of its own, and through a function body."""
    from onnx_ad import control, lower, recurrent, rules

    assert control.BRANCHES  # imported for the rules that it registers
    rule = set(candidates) & (set(rules.REVERSE) | set(lower.LOWERINGS) | set(recurrent.RECURRENT))
    function: set[str] = set()
    for op_type in candidates:
        schema: Any = onnx.defs.get_schema(op_type)
        if op_type not in rule and (schema.has_function or schema.has_context_dependent_function):
            function.add(op_type)
    return rule, function


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", type=Path, help="onnxruntime_pybind11_state*.so of onnxruntime-training")
    library = parser.parse_args().library
    standard = standard_operators()
    candidates = [operator.op_type for operator in standard if operator.kind in DIFFERENTIABLE]
    of_kind = {kind: {o.op_type for o in standard if o.kind is kind} for kind in Kind}
    rule, function = of_onnx_ad(candidates)
    theirs = of_onnxruntime_training(builders_in(library) if library else _BUILDERS.split()) & set(candidates)
    missing = set(candidates)
    none: set[str] = set()
    print(f"{len(candidates)} differentiable operators of ai.onnx, opset {onnx.defs.onnx_opset_version()}\n")
    print("| | by a rule | through a function | resolved when read | missing |\n|---|---|---|---|---|")
    rows = [
        ("ckplan", of_kind[Kind.RULE], of_kind[Kind.FUNCTION], of_kind[Kind.RESOLVED]),
        (f"onnx-ad {importlib.metadata.version('onnx-ad')}", rule, function, none),
        ("onnxruntime-training 1.19.2", theirs, none, none),
    ]
    for name, *covered in rows:
        counted = [len(operators) for operators in (*covered, missing.difference(*covered))]
        print(f"| {name} | {' | '.join(map(str, counted))} |")
    print("\nmissing in onnx-ad:", ", ".join(sorted(missing - rule - function)) or "none")
    print("\nmissing in onnxruntime-training:", ", ".join(sorted(missing - theirs)))


if __name__ == "__main__":
    main()
