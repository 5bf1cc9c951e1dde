"""What is said of tensors that are trained: what tools merged, what stands for a parameter, adapters."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.keys import STANDS_FOR
from tests.autodiff.gradcheck import parse, values


@pytest.mark.parametrize(
    ("array", "second", "is_noted"),
    [
        (np.zeros(16), "b", True),
        (np.zeros((16, 1)), "b", True),
        (values(16), "b", False),
        (np.zeros(16), "c", False),
    ],
    ids=["equal numbers", "of channels", "trained", "read once"],
)
def test_what_a_tool_may_have_merged_is_noted(array: np.ndarray, second: str, is_noted: bool) -> None:
    text = f"""g (double[16,16] x) => (double loss) {{
        h = MatMul(x, w) s = Add(h, b) t = Tanh(s)
        k = MatMul(t, v) y = Add(k, {second}) loss = ReduceSum <keepdims = 0> (y)
    }}"""
    arrays = {"w": values(16, 16), "v": values(16, 16, seed=2), "b": array}
    if second == "c":
        arrays["c"] = values(16, seed=3)
    notes = " ".join(build_training_graph(parse(text, **arrays)).notes)
    assert ("1 parameter(s) of equal numbers are read by several layers ('b' of 2)" in notes) == is_noted


@pytest.mark.parametrize(("scale", "is_noted"), [(np.ones(6), True), (values(6), False)], ids=["equal", "trained"])
def test_scales_of_normalisations_of_each_image_that_may_have_been_merged_are_noted(
    scale: np.ndarray, is_noted: bool
) -> None:
    text = """g (double[2,6,5] x) => (double loss) {
        s = InstanceNormalization(x, "a.weight", c) t = Tanh(s)
        y = InstanceNormalization(t, "a.weight", d) z = Tanh(y) loss = ReduceSum <keepdims = 0> (z)
    }"""
    arrays = {"a.weight": scale, "c": values(6, seed=1), "d": values(6, seed=2)}
    notes = " ".join(build_training_graph(parse(text, **arrays)).notes)
    assert ("1 parameter(s) of equal numbers are read by several layers ('a.weight' of 2)" in notes) == is_noted


def test_what_stands_for_a_parameter_is_named_by_the_name_of_that() -> None:
    model = parse(
        "g (double[2,4] x) => (double[2,4] y) { h = MatMul(x, val_1) s = Add(h, \"body.bias\") y = MatMul(s, val_2) }",
        val_1=values(4, 4), val_2=values(4, 4, seed=2), **{"body.bias": values(4)},
    )  # fmt: skip
    model.graph.initializers["val_1"].metadata_props[STANDS_FOR] = "body.weight"
    model.graph.initializers["val_2"].metadata_props[STANDS_FOR] = "head.weight"
    assert set(build_training_graph(model, loss="sum", no_grad=["body.*"]).gradients) == {"val_2"}
    assert set(build_training_graph(model, loss="sum", wrt=["body.weight"]).gradients) == {"val_1"}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("q.base_layer.weight", "q.lora_A.default.weight", "q.lora_B.default.weight"), "--wrt '*.lora_*'"),
        (("q.base_layer.weight", "first", "second"), "all parameters of a model of PEFT's"),
        (("q.weight", "first", "second"), ""),
    ],
)
def test_a_note_tells_of_what_is_trained_beside_adapters(names: tuple[str, str, str], told: str) -> None:
    base, first, second = names
    text = f"""g (double[2,4] x) => (double[2,4] y) {{
        h = MatMul(x, "{base}") a = MatMul(x, "{first}") b = MatMul(a, "{second}") y = Add(h, b) }}"""
    model = parse(text, **{base: values(4, 4), first: values(4, 2), second: values(2, 4)})
    notes = " ".join(build_training_graph(model, loss="sum").notes)
    assert ("PEFT" in notes) == bool(told)
    assert told in notes
    if "lora_" in first:
        assert "PEFT" not in " ".join(build_training_graph(model, loss="sum", wrt=["*.lora_*"]).notes)
