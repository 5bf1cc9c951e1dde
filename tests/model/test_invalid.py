"""Files that an exporter wrote wrongly are named as such: no shape of an input makes them valid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckplan.errors import ModelError
from ckplan.model import load
from tests.model.models import parse, write

GRAPHS = {
    "two types": "g (float[2, 3] x, int64[2, 3] i) => (float[2, 3] y) { y = Add (x, i) }",
    "wrong type": "g (float[2, 3] x, float[2] s) => (float[a, b] y) { y = Reshape (x, s) }",
    "attribute": "g (float[2, 3] x) => (float[2, 3] y) { y = Softmax <axes = 1> (x) }",
    "too few inputs": "g (float[2, 3] x) => (float[2, 3] y) { y = MatMul (x) }",
    "no such operator": "g (float[2, 3] x) => (float[2, 3] y) { y = Frobnicate (x) }",
    "no such domain": "g (float[2, 3] x) => (float[2, 3] y) { s = other.maker.Quant (x) y = Softmax (s) }",
}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_the_exporter_is_named(tmp_path: Path, text: str) -> None:
    path = write(parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path)
    with pytest.raises(ModelError, match=r"the file is not valid: .*; the exporter wrote it so: export it again"):
        load(path)


def test_sizes_of_the_file_that_do_not_fit(tmp_path: Path) -> None:
    text = "g (float[2, 3] x, float[5, 4] w) => (float[2, 4] y) { y = MatMul (x, w) }"
    path = write(parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path)
    with pytest.raises(ModelError, match=r"MatMul '.*' does not fit its inputs.*; the exporter wrote it so"):
        load(path)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("GatherElements (x, i)", "int64 i"),
        ("ScatterElements (x, i, u)", "int64 i, float u"),
        ("ScatterElements (x, i, u)", "int64[1] i, float u"),
    ],
)
def test_an_index_for_each_element_of_a_scalar(tmp_path: Path, operator: str, inputs: str) -> None:
    text = f"g (float x, {inputs}) => (float y) {{ y = {operator} }}"
    path = write(parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path)
    with pytest.raises(ModelError, match=r"Elements '.*' does not fit its inputs of shapes .*; the exporter wrote it"):
        load(path)


def test_what_torch_would_leave_is_exported_by_ckplan(tmp_path: Path) -> None:
    text = "g (float[3, 4, 4] x, int64[1] axis) => (float[3, 4, 4] y) { y = Squeeze (x, axis) }"
    model = parse(f'<ir_version: 10, opset_import: ["" : 20]> {text}', {"axis": np.array([1])})
    model.producer_name = "pytorch"
    with pytest.raises(
        ModelError, match=r"Squeeze '.*' does not fit its inputs.*; torch leaves .* with ckplan\.export"
    ):
        load(write(model, tmp_path))


def test_sizes_that_do_not_fit_are_told_apart(tmp_path: Path) -> None:
    text = "g (float[2, 3] x, float[n, 4] w) => (float[2, 4] y) { y = MatMul (x, w) }"
    path = write(parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path)
    with pytest.raises(ModelError, match=r"MatMul '.*' does not fit its inputs.*--shape"):
        load(path, dims={"n": 5})


IN_A_BODY = """g (float[4, 3] x, bool c) => (float[4, 3] y) {
    y = If (c) <
        then_branch = then () => (float[4, 3] t) { [first] s = Add (x, t) [second] t = Neg (s) },
        else_branch = otherwise () => (float[4, 3] e) { e = Neg (x) }
    >
}"""


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("g (float[4, 3] x) => (float[4, 3] y) { [first] z = Add (x, y) [second] y = Neg (z) }", 2),
        ("g (float[4, 3] x) => (float[4, 3] y) { [only] z = Add (x, z) y = Neg (z) }", 1),
        (IN_A_BODY, 2),
    ],
    ids=["two", "itself", "in a body"],
)
def test_nodes_that_wait_for_each_other_are_named(tmp_path: Path, text: str, listed: int) -> None:
    path = write(parse(f'<ir_version: 10, opset_import: ["" : 17]> {text}'), tmp_path)
    with pytest.raises(ModelError, match=r"nodes wait for each other: .*; export the model again without it") as caught:
        load(path)
    assert str(caught.value).count("'") == 2 * listed
