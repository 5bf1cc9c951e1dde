"""Tables of torch modules whose padding row is held still."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.keys import PADDING_ROW
from ckplan.model.torch_files.exporter_metadata import LINE
from tests.model.models import normal, parse

IDS = np.array([[1, 0, 3], [0, 0, 1]])


def model(line: str, ids: str = "int64[2,3] ids", arrays: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """A lookup and a product with the same table, as torch writes them."""
    text = '<ir_version: 10, opset_import: ["": 21]> g (%s) => (float[2,3,5] y) { h = Gather(w, ids) y = Gemm2(h, w) }'
    text = text.replace("y = Gemm2(h, w)", "t = Transpose(w) y = MatMul(h, t)")
    made = parse(text % ids, {"w": normal(0, 5, 4), **(arrays or {})})
    made.graph.node[0].metadata_props.add(key=LINE, value=f"%e = call_function[target=torch.ops.aten.embedding{line}")
    return made


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("padding", [None, 0, 4])
def test_the_padding_row_gets_no_gradient_of_lookups(padding: int | None, literal: bool) -> None:
    torch = pytest.importorskip("torch")
    args = f".default](args = (%p_w, %ids{'' if padding is None else f', {padding}'}), kwargs = {{}})"
    made = model(args, "float unused", {"ids": IDS}) if literal else model(args)
    step = ckplan.open_model(made, loss="mse")
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    feeds = {"ids": IDS, "target": normal(1, 2, 3, 5), "unused": np.zeros((), np.float32)}
    fed = {value.name: feeds[value.name] for value in session.get_inputs()}
    found = session.run([step.training.gradients["w"]], fed)[0]

    table = torch.tensor(normal(0, 5, 4), requires_grad=True)
    looked_up = torch.nn.functional.embedding(torch.from_numpy(IDS), table, padding_idx=padding)
    torch.nn.functional.mse_loss(looked_up @ table.T, torch.from_numpy(feeds["target"])).backward()
    np.testing.assert_allclose(found, table.grad.numpy(), rtol=1e-5, atol=1e-6)
    noted = [note for note in step.notes if "padding" in note]
    assert noted == ([] if padding is None else [f"row {padding} of 'w': padding, {GETS}"])


GETS = "which gets no gradient of what is looked up, as in torch"


@pytest.mark.parametrize("rest", ["0, True", "-1, True"])
def test_what_torch_divides_is_noted(rest: str) -> None:
    step = ckplan.open_model(model(f".default](args = (%p_w, %ids, {rest}), kwargs = {{}})"), loss="mse")
    assert any("scale_grad_by_freq" in note for note in step.notes)


def test_a_line_of_something_else_marks_nothing() -> None:
    step = ckplan.open_model(model("_bag.default](args = (%p_w, %ids, 0), kwargs = {})"), loss="mse")
    assert all(PADDING_ROW not in node.metadata_props for node in step.model.graph)


@pytest.mark.parametrize(("row", "producer"), [(0, "pytorch"), (4, "pytorch"), (0, "other"), (None, "pytorch")])
def test_a_row_of_zeros_is_noted_where_the_exporter_says_nothing(row: int | None, producer: str) -> None:
    made = model(".default](args = (%p_w, %ids, 0), kwargs = {})")
    del made.graph.node[0].metadata_props[:]
    made.producer_name = producer
    table = normal(0, 5, 4)
    if row is not None:
        table[row] = 0
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(table, "w"))
    notes = [note for note in ckplan.open_model(made, loss="mse").notes if "padding_idx" in note]
    expected = [] if row is None or producer == "other" else [f"row {row} of 'w' holds zeros"]
    assert [note.partition(",")[0] for note in notes] == expected
