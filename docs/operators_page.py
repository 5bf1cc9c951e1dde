"""The page of the documentation that lists every operator. Refresh it: ``python -m docs.generate``."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ckplan.autodiff.coverage import DIFFERENTIABLE, Coverage, Kind, counts, microsoft_operators, standard_operators

_HEAD = """# Operators

Written by `python -m docs.generate`; `ckplan ops` prints the same. onnx {version}, opset
{opset} of ai.onnx; deprecated operators are left out.

| | operators |
|---|---|
| differentiable | {differentiable} |
| of these by a rule | {rule} |
| of these through the function that defines them | {function} |
| of these by the elements they stand for | {resolved} |
| of these missing | {missing} |
| constant between their steps: the derivative is zero | {zero} |
| not differentiable | {nothing} |

*rule*: ckplan knows the derivative. *function*: ONNX defines the operator by others, which take its place.
*resolved*: a sequence or an optional gives way, when the model is loaded, to the elements that it holds. *zero
derivative*: an answer, not an error; if no parameter reaches the loss because of such a node, the error names it.
QuantizeLinear and its kin are refused instead, or taken for the identity with `--straight-through`. *not
differentiable*: a node on the way from a parameter to the loss is reported with the reason, unless it outputs no
floating-point numbers, where no gradient flows anyway.

## ai.onnx

"""

_MICROSOFT = """
## com.microsoft

{written} operators that exporters and onnxruntime's optimiser write are replaced by the standard operators they are
equal to when a model is loaded, SimplifiedLayerNormalization in the domain of ai.onnx too. Forms that standard
operators cannot say (a cache of keys and values, packed batches) are reported with the reason. Operators that are not
listed have no gradient either: freeze what stands before them with `--no-grad`, or export the model without them.

"""


def page(standard: Sequence[Coverage], microsoft: Sequence[Coverage], version: str, opset: int) -> str:
    """The page in Markdown.

    Args:
        standard: the operators of ai.onnx.
        microsoft: the known operators of com.microsoft.
        version: of onnx.
        opset: of ai.onnx.
    """
    found = counts(standard)
    head = _HEAD.format(
        version=version,
        opset=opset,
        differentiable=sum(found[kind] for kind in DIFFERENTIABLE),
        rule=found[Kind.RULE],
        function=found[Kind.FUNCTION],
        resolved=found[Kind.RESOLVED],
        missing=found[Kind.MISSING],
        zero=found[Kind.ZERO],
        nothing=found[Kind.NOT],
    )
    rows = [
        f"| [{o.op_type}](https://onnx.ai/onnx/operators/onnx__{o.op_type}.html) | {o.since} | {o.kind.value} "
        f"| {_cell(o.remark)} |"
        for o in standard
    ]
    others = [f"| {o.op_type} | {_word(o)} | {_cell(o.remark)} |" for o in microsoft]
    return (
        head
        + "\n".join(["| operator | since | derivative | remark |", "|---|---|---|---|", *rows, ""])
        + _MICROSOFT.format(written=sum(o.kind is Kind.FUNCTION for o in microsoft))
        + "\n".join(["| operator | derivative | remark |", "|---|---|---|", *others, ""])
    )


def _word(operator: Coverage) -> str:
    return "standard operators" if operator.kind is Kind.FUNCTION else operator.kind.value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def current() -> str:
    """The page for the installed onnx."""
    return page(standard_operators(), microsoft_operators(), onnx.__version__, onnx.defs.onnx_opset_version())
