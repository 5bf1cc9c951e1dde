"""Open sizes get the smallest default that the model works with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckplan.errors import ModelError
from ckplan.model import load
from tests.model.models import normal, parse, write

POOLED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 3, height, width] x) => (float[batch, k] y)
{
    a = AveragePool <kernel_shape = [STEP, STEP], strides = [STEP, STEP]> (x)
    b = Flatten (a)
    y = Gemm (b, w)
}
"""


def pooled(folder: Path, step: int, features: int) -> Path:
    return write(parse(POOLED.replace("STEP", str(step)), {"w": normal(0, features, 2)}), folder)


@pytest.mark.parametrize("pixels", [64, 128, 224])
def test_a_head_of_fixed_length_decides_the_pixels(tmp_path: Path, pixels: int) -> None:
    forward = load(pooled(tmp_path, 32, 3 * (pixels // 32) ** 2))
    assert [list(value.shape or ()) for value in forward.model.graph.inputs] == [[8, 3, pixels, pixels]]
    assert f"dimension 'height' is {pixels} by default" in forward.notes


@pytest.mark.parametrize(
    "window", ["AveragePool <kernel_shape = [100, 100]> (x)", "Conv <strides = [100, 100]> (x, w)"]
)
def test_a_window_that_is_larger_than_the_image(tmp_path: Path, window: str) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 3, height, width] x) => (float[batch, c, h, v] y) {{ y = {window} }}
    """
    path = write(parse(text, {"w": normal(0, 2, 3, 100, 100)} if "w)" in window else {}), tmp_path)
    assert "dimension 'width' is 128 by default" in load(path).notes
    with pytest.raises(ModelError, match=r"does not fit its inputs of shapes \[8, 3, 90, 128\]"):
        load(path, dims={"height": 90, "width": 128})


def test_a_model_of_one_sample(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 4, 5] x) => (float[batch, c] y) { h = Flatten <axis = 0> (x) y = Gemm (h, w) }
    """
    path = write(parse(text, {"w": normal(0, 20, 2)}), tmp_path)
    assert "dimension 'batch' is 1 by default" in load(path).notes
    with pytest.raises(ModelError, match="between 20 and 40"):
        load(path, dims={"batch": 2})


def test_a_batch_of_one_that_a_shape_was_written_out_with(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, n, 4] x) => (float[k, n, d] y) {
        size = Shape <start = 1, end = 2> (x)
        samples = Shape <start = 0, end = 1> (x)
        first = Slice (x, zero, one, zero)
        doubled = Mul (samples, two)
        shape = Concat <axis = 0> (doubled, size, two)
        h = Reshape (first, shape)
        y = MatMul (h, w)
    }
    """
    sizes = {"one": np.array([1]), "two": np.array([2]), "zero": np.array([0])}
    path = write(parse(text, {"w": normal(0, 2, 2), **sizes}), tmp_path)
    assert "dimension 'batch' is 1 by default" in load(path).notes
    with pytest.raises(ModelError, match="has a size baked in"):
        load(path, dims={"batch": 2})


def test_sizes_that_are_given_stay(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="between 147 and 192"):
        load(pooled(tmp_path, 32, 147), dims={"height": 256, "width": 256})


def test_where_nothing_fits_the_first_try_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"between 7 and 12\); give input shapes that the model accepts with --shape"):
        load(pooled(tmp_path, 32, 7))


def test_sound_needs_more_than_text(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 1, samples] x) => (float[batch, c, s] y) { y = Conv <strides = [160]> (x, w) }
    """
    forward = load(write(parse(text, {"w": normal(0, 4, 1, 400)}), tmp_path))
    assert [list(value.shape or ()) for value in forward.model.graph.inputs] == [[8, 1, 512]]


def test_states_for_another_batch_than_the_input_has(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[time, batch, 4] x, float[1, samples, 5] h) => (float[s, d, b, o] y) {
        y = GRU <hidden_size = 5> (x, w, r, , , h)
    }
    """
    path = write(parse(text, {"w": normal(0, 1, 15, 4), "r": normal(1, 1, 15, 5)}), tmp_path)
    assert load(path, dims={"batch": 3, "samples": 3}).model.graph.outputs[0].shape == [64, 1, 3, 5]
    with pytest.raises(ModelError, match=r"GRU '.*' does not fit its inputs of shapes \[64, 3, 4\].* --shape"):
        load(path, dims={"batch": 3, "samples": 2})


def test_a_window_in_a_branch_decides_the_length_or_what_to_set(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 1, samples] x, int64 rate) => (float[batch, c, s] y)
    <int64 low = {8000}>
    {
        is_low = Equal (rate, low)
        y = If (is_low) <
            then_branch = low_rate () => (float[batch, c, s] a) { a = Conv (x, short) },
            else_branch = high_rate () => (float[batch, c, s] b) { b = Conv (x, long) }
        >
    }
    """
    path = write(parse(text, {"short": normal(0, 2, 1, 20), "long": normal(0, 2, 1, 400)}), tmp_path)
    assert [list(value.shape or ()) for value in load(path).model.graph.inputs] == [[8, 1, 512], []]
    with pytest.raises(ModelError, match=r"Conv '.*' in a branch does not fit .*--set rate=VALUE"):
        load(path, dims={"samples": 64})
    assert load(path, dims={"samples": 64}, fixed={"rate": 8000})
