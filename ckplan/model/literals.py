"""Which initializers are numbers of the formula and which are weights.

Exporters write both as initializers. An initializer of rank 1 or more is a weight unless the loader marked it. One of
rank 0 is more often a literal (0.5 in a GELU, an epsilon, the root of a head's size) than a weight (a temperature, the
logit scale of CLIP, the gate of a residual branch), and only its name tells: exporters number literals
(``onnx::Mul_12``, ``_v_9``, ``Const__7``, ``/layer/Constant_output_0``, ``val_3``) and give weights the path of the
attribute that holds them.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.model.constants import is_constant

# encoder.layers.0.gamma, 1.gamma: attributes and indices, at least one before the last, and one of all an attribute.
_PATH = re.compile(r"[A-Za-z]\w*(\.\w+)+|(\d+\.)+[A-Za-z]\w*(\.\w+)*", re.ASCII)
# Variables of TensorFlow: a scope, and the operation that reads them.
_VARIABLE = re.compile(r"(.*/)?[A-Za-z][A-Za-z0-9_.-]*/(ReadVariableOp|read)(_\d+)?(:\d+)?")
# A weight of the outermost module has no path: its name says what it is. Names that literals bear as well (scale) do
# not count.
_WEIGHT = re.compile(
    r"(logit_(scale|bias)|temperature|temp|tau|alpha|beta|gamma|theta|sigma|gate|gain|slope|weight|bias)_?\d*",
    re.IGNORECASE,
)
_LITERAL = re.compile(
    r"(^|[._])(const|constant|literal|scalar|eps|epsilon|zero|one|two|half|inf|min|max|value)s?(_?\d*)$", re.IGNORECASE
)

# What exporters call what they computed or found without a name: numbers, node names with a number, torch's operators.
_NUMBERED = re.compile(
    r"(val|onnx::\w+?|_v|Const_|const_fold_opt_|const_tensor|_?lifted_\w*?|_tensor_constant|_param_constant|"
    r"(const|constant|zeros|ones|full|eye|arange|mask|literal)(_like)?|"
    r"cos|sin|exp|mul|add|sub|div|pow|neg|cat|stack|alias|clone|detach|expand|view|reshape|permute|transpose|"
    r"unsqueeze|squeeze|select|slice|index|where|masked_fill|triu|tril|tensor|_to_copy|new_\w+?|linspace|outer|einsum"
    r")?(_?\d+)*|.*/[A-Z]\w*_output_\d+|.*_folded",
)


def is_numbered(name: str) -> bool:
    """Whether a name of an initializer was made up by an exporter, as ``val_3`` or ``onnx::MatMul_120``."""
    return _NUMBERED.fullmatch(name) is not None


def is_literal(value: ir.Value) -> bool:
    """Whether a floating initializer is a number of the formula rather than something to train.

    Args:
        value: an initializer of known shape.

    Returns:
        True for what the loader marked (see `ckplan.model.constants.is_constant`), and for a value of rank 0 whose name
        is no path of attributes (``clip.logit_scale``), no variable of TensorFlow, and no usual name of a weight
        (``temperature``) either.
    """
    if is_constant(value):
        return True
    return value.shape is not None and len(value.shape) == 0 and not names_a_weight(value.name or "")


def names_a_weight(name: str) -> bool:
    """Whether the name of an initializer of rank 0 is one that exporters give to weights."""
    if _LITERAL.search(name):
        return False
    if _PATH.fullmatch(name) or _VARIABLE.fullmatch(name):
        return True
    return _WEIGHT.fullmatch(name) is not None
