"""BatchNormalization that a file has in training form, of which onnxruntime's kernel writes over its inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.errors import ModelError
from ckplan.pipeline.options import StepOptions
from ckplan.pipeline.step import open_step
from tests.autodiff.gradcheck import onnxruntime_run, parse, reference, values

ARRAYS = {
    "w": values(4, 3).astype(np.float32),
    "s": values(3, seed=1).astype(np.float32),
    "b": values(3, seed=2).astype(np.float32),
    "m": np.zeros(3, np.float32),
    "v": np.ones(3, np.float32),
    "n": np.array(3),
    "yes": np.array(True),
}
NORM = "BatchNormalization <training_mode = 1>"
PLAIN = f"a, mean, var = {NORM} (h, s, b, m, v)"
IF = f"""a = If (yes_fed) <
    then_branch = t () => (float[6,3] y) {{ y, mean, var = {NORM} (h, s, b, m, v) }},
    else_branch = e () => (float[6,3] i) {{ i = Identity (h) }}
>"""
LOOP = f"""a = Loop (n, yes, h) <body = l (int64 i, bool k, float[6,3] z) => (bool k2, float[6,3] z2) {{
    k2 = Identity (k)
    y, mean, var = {NORM} (z, s, b, m, v)
    z2 = Tanh (y)
}}>"""


def write(path, layer: str):
    """A layer in training form, whose running mean the model reads elsewhere."""
    fed = ", bool yes_fed" if "yes_fed" in layer else ""
    text = f"""g (float[6,4] x{fed}) => (float loss) {{
        h = MatMul (x, w)
        {layer}
        c = Add (a, m)
        loss = ReduceSumSquare <keepdims = 0> (c)
    }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 21]> {text}')
    used = {name: array for name, array in ARRAYS.items() if name not in ("n", "yes") or "Loop" in layer}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in used.items())
    onnx.save(model, path)
    return path


def twice(model: ir.Model) -> list[dict[str, np.ndarray]]:
    """What two runs of one session give."""
    feeds = {"x": 3 * values(6, 4, seed=5).astype(np.float32), "yes_fed": np.array(True)}
    feeds = {value.name: feeds[value.name] for value in model.graph.inputs if value.name in feeds}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, feeds), strict=True)) for _ in range(2)]


def loss_of(layers: int) -> float:
    """The loss, by numpy."""
    a = 3 * values(6, 4, seed=5) @ values(4, 3)
    for _ in range(layers):
        a = (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5) * values(3, seed=1) + values(3, seed=2)
        a = np.tanh(a) if layers > 1 else a
    return float((a**2).sum())


def test_running_statistics_of_a_file_in_training_form_are_not_written_over_what_gradients_read():
    """onnxruntime writes new ones over the old ones, and holds ones and zeros of few channels once."""
    model = parse(
        """g (float[6,4] x) => (float loss, float[3] mean) {
            h = MatMul (x, w)
            y, mean, var = BatchNormalization <training_mode = 1> (h, s, b, m, v)
            t = Tanh (y)
            loss = ReduceSumSquare <keepdims = 0> (t)
        }""",
        w=values(4, 3).astype(np.float32),
        s=values(3, seed=1).astype(np.float32),
        b=values(3, seed=2).astype(np.float32),
        m=np.zeros(3, np.float32),
        v=np.ones(3, np.float32),
    )
    training = ckplan.build_training_graph(model, loss="loss")
    feeds = {"x": 3 * values(6, 4, seed=5).astype(np.float32)}
    expected, found = reference(training.model, feeds), onnxruntime_run(training.model, feeds)
    assert list(training.gradients) == ["w", "s", "b"]
    for gradient in training.gradients.values():
        np.testing.assert_allclose(found[gradient], expected[gradient], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layer", "layers"), [(PLAIN, 1), (IF, 1), (LOOP, 3)], ids=["plain", "If", "Loop"])
@pytest.mark.parametrize("inference", [False, True])
def test_every_run_gives_the_same_also_in_bodies_and_where_nothing_is_trained(layer, layers, inference, tmp_path):
    step = open_step(write(tmp_path / "model.onnx", layer), StepOptions(inference=inference))
    first, second = twice(step.ordered)
    for name, expected in first.items():
        np.testing.assert_array_equal(second[name], expected, err_msg=name)
    assert float(first["loss"]) == pytest.approx(loss_of(layers), rel=1e-4)


def test_nothing_is_made_of_running_statistics_that_nobody_reads(tmp_path):
    step = open_step(write(tmp_path / "model.onnx", LOOP), StepOptions(inference=True))
    (loop,) = (node for node in step.model.graph if node.op_type == "Loop")
    made = loop.attributes["body"].as_graph()
    read = {value for node in made for value in node.inputs} | set(made.outputs)
    assert all(any(output in read for output in node.outputs) for node in made)


def test_one_in_a_body_whose_shapes_change_is_refused():
    model = parse(
        f"""g (float[N,3] x) => (float[M,3] a) {{
            a = Loop (n, yes, x) <body = l (int64 i, bool k, float[P,3] z) => (bool k2, float[Q,3] z2) {{
                k2 = Identity (k)
                y, mean, var = {NORM} (z, s, b, m, v)
                z2 = Concat <axis = 0> (y, y)
            }}>
        }}""",
        **{name: ARRAYS[name] for name in ("s", "b", "m", "v", "n", "yes")},
    )
    with pytest.raises(ModelError, match=r"BatchNormalization '.*' is in training form in a body"):
        ckplan.build_training_graph(model, loss="sum")
