"""Loss heads as exporters and people write them, from logits [6, 20] and labels [6] to a loss of one element."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.autodiff.gradcheck import Array, parse, values

SAMPLES, FEATURES, CLASSES = 6, 3, 20
LABELS = np.asarray([0, 4, 19, 4, 13, 3])
X = values(SAMPLES, FEATURES, seed=8)

LAYERS = {
    "by_columns": ("logits = MatMul(h, w)", (FEATURES, CLASSES)),
    "tied": ("t = Transpose<perm=[1,0]>(w) logits = MatMul(h, t)", (CLASSES, FEATURES)),
    "gemm": ("logits = Gemm<transB=1>(h, w, b)", (CLASSES, FEATURES)),
    "with_bias": ("product = MatMul(h, w) logits = Add(b, product)", (FEATURES, CLASSES)),
}
"""Linear layers as exporters write them, and the shapes of their weights."""

_SMOOTHED = """
    chances = LogSoftmax(logits) column = Unsqueeze(labels, last) picked = GatherElements<axis=1>(chances, column)
    evenly = ReduceMean(chances, last) most = Mul(picked, many) rest = Mul(evenly, few) both = Add(most, rest)
    negative = Neg(both) {0} = ReduceMean<keepdims=0>(negative)
"""
_PENALTY = """
    squares = Pow(normaliser, two) square = ReduceMean<keepdims=0>(squares) penalty = Mul(square, few)
    loss = Add(fit, penalty)
"""
_NORMALISER = "normaliser = ReduceLogSumExp<keepdims=0>(logits, last)"

LOSSES = {
    "smoothed": _SMOOTHED.format("loss"),
    # The cross-entropy of torch with label smoothing and an index to ignore, decomposed.
    "smoothed_ignoring": """
        chances = LogSoftmax<axis=1>(logits) ignored = Equal(labels, four) counted = Not(ignored)
        safe = Where(counted, labels, zero) column = Unsqueeze(safe, one)
        gathered = GatherElements<axis=1>(chances, column)
        picked = Squeeze(gathered, one) losses = Neg(picked) kept = Where(counted, losses, nothing)
        numbers = Cast<to=11>(counted) count = ReduceSum<keepdims=0>(numbers) added = ReduceSum<keepdims=0>(kept)
        mean = Div(added, count) sums = ReduceSum<keepdims=0>(chances, one) negative = Neg(sums)
        smooth = Where(ignored, nothing, negative) total = ReduceSum<keepdims=0>(smooth) share = Div(total, count)
        small = Mul(share, tiny) large = Mul(mean, many) loss = Add(large, small)
    """,
    "smoothed_weighted": """
        chances = LogSoftmax<axis=1>(logits) column = Unsqueeze(labels, one) row = Unsqueeze(classes, zeros)
        gathered = GatherElements<axis=1>(chances, column) own = GatherElements<axis=1>(row_of, column)
        weighed = Mul(gathered, own) losses = Neg(weighed) added = ReduceSum<keepdims=0>(losses)
        count = ReduceSum<keepdims=0>(own) mean = Div(added, count) products = Mul(chances, row)
        sums = ReduceSum<keepdims=0>(products, one) negative = Neg(sums) total = ReduceSum<keepdims=0>(negative)
        share = Div(total, count) small = Mul(share, tiny) large = Mul(mean, many) loss = Add(large, small)
    """,
    # The LabelSmoother of transformers.
    "smoothed_negative": """
        chances = LogSoftmax(logits) negative = Neg(chances) column = Unsqueeze(labels, last)
        picked = GatherElements<axis=1>(negative, column) sums = ReduceSum(negative, last)
        added = ReduceSum<keepdims=0>(picked) total = ReduceSum<keepdims=0>(sums)
        large = Mul(added, many) small = Mul(total, tiny) loss = Add(large, small)
    """,
    "one_hot": """
        hot = OneHot(labels, depth, off_on) most = Mul(hot, many) target = Add(most, tiny)
        normaliser = ReduceLogSumExp<keepdims=1>(logits, last) chances = Sub(logits, normaliser)
        products = Mul(chances, target) sums = ReduceSum<keepdims=0>(products, last) losses = Neg(sums)
        squares = Mul(normaliser, normaliser) flat = Squeeze(squares, last) penalty = Mul(flat, few)
        both = Add(losses, penalty) loss = ReduceMean<keepdims=0>(both)
    """,
    "compared": """
        column = Unsqueeze(labels, last) same = Equal(column, range) target = Cast<to=11>(same)
        chances = LogSoftmax(logits) products = Mul(target, chances) sums = ReduceSum<keepdims=0>(products, last)
        losses = Neg(sums) loss = ReduceMean<keepdims=0>(losses)
    """,
    "likelihood": "chances = LogSoftmax(logits) loss = NegativeLogLikelihoodLoss<ignore_index=4>(chances, labels)",
    "penalised": f"fit = SoftmaxCrossEntropyLoss<ignore_index=4>(logits, labels) {_NORMALISER} {_PENALTY}",
    "penalised_sum": f"""
        fit = SoftmaxCrossEntropyLoss<reduction="sum", ignore_index=4>(logits, labels) {_NORMALISER}
        squares = Mul(normaliser, normaliser) ignored = Equal(labels, four) counted = Not(ignored)
        numbers = Cast<to=11>(counted) kept = Mul(squares, numbers) square = ReduceSum<keepdims=0>(kept)
        penalty = Mul(square, few) loss = Add(fit, penalty)
    """,
    "penalised_single": f"""
        single = SoftmaxCrossEntropyLoss<reduction="none">(logits, labels) {_NORMALISER}
        squares = Mul(normaliser, normaliser) penalty = Mul(squares, few) both = Add(single, penalty)
        weighed = Mul(both, share_of) loss = ReduceSum<keepdims=0>(weighed)
    """,
    "written_out": f"""
        fit = SoftmaxCrossEntropyLoss(logits, labels) largest = ReduceMax(logits, last) shifted = Sub(logits, largest)
        powers = Exp(shifted) sums = ReduceSum(powers, last) logarithm = Log(sums) normaliser = Add(logarithm, largest)
        {_PENALTY}
    """,
    "written_out_chances": """
        largest = ReduceMax(logits, last) shifted = Sub(logits, largest) powers = Exp(shifted)
        sums = ReduceSum(powers, last) logarithm = Log(sums) chances = Sub(shifted, logarithm)
        column = Unsqueeze(labels, last) picked = GatherElements<axis=1>(chances, column) losses = Neg(picked)
        loss = ReduceMean<keepdims=0>(losses)
    """,
    "logits_picked": """
        column = Unsqueeze(labels, last) own = GatherElements<axis=1>(logits, column)
        normaliser = ReduceLogSumExp(logits, last) losses = Sub(normaliser, own) loss = ReduceMean<keepdims=0>(losses)
    """,
    "both": f"{_SMOOTHED.format('fit')} {_NORMALISER} {_PENALTY}",
    "in_rows": f"""
        rows = Reshape(logits, two_by_three) turned = Transpose<perm=[0,2,1]>(rows) table = Reshape(labels, two_three)
        fit = SoftmaxCrossEntropyLoss(turned, table) normaliser = ReduceLogSumExp<keepdims=0>(rows, last) {_PENALTY}
    """,
}
"""Losses with label smoothing and with a z-loss, and cross-entropies that are written out."""

_NUMBERS: dict[str, Array] = {
    "last": np.array([-1]),
    "one": np.array([1]),
    "zeros": np.array([0]),
    "zero": np.asarray(0),
    "four": np.asarray(4),
    "depth": np.asarray(CLASSES),
    "range": np.arange(CLASSES),
    "two_by_three": np.array([2, 3, CLASSES]),
    "two_three": np.array([2, 3]),
    "off_on": np.array([0.0, 1.0]),
    "many": np.asarray(0.75),
    "few": np.asarray(0.25),
    "tiny": np.asarray(0.0125),
    "two": np.asarray(2.0),
    "nothing": np.asarray(0.0),
    "classes": np.abs(values(CLASSES, seed=4)) + 0.5,
    "row_of": np.tile(np.abs(values(CLASSES, seed=4)) + 0.5, (SAMPLES, 1)),
    "share_of": np.abs(values(SAMPLES, seed=5)) + 0.5,
}


def head(layer: str, loss: str, dtype: str = "double") -> ir.Model:
    """A linear layer behind another one, and a loss of :data:`LOSSES`, or the text of one."""
    line, shape = LAYERS[layer]
    text = LOSSES.get(loss, loss)
    numbers = {"v": values(FEATURES, FEATURES, seed=1), "w": values(*shape, seed=2)}
    if "b" in line.replace("transB", ""):
        numbers["b"] = values(CLASSES, seed=3)
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    numbers |= {name: array for name, array in _NUMBERS.items() if name in words}
    kind = np.float64 if dtype == "double" else np.float32
    if dtype == "float":
        text = text.replace("to=11", "to=1")
    return parse(
        f"g ({dtype}[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => ({dtype}[] loss) "
        f"{{ h = MatMul(x, v) {line} {text} }}",
        **{name: array.astype(kind) if array.dtype.kind == "f" else array for name, array in numbers.items()},
    )
