"""Plans of whole steps in training mode: the same numbers to the bit, masks drawn once, statistics updated once."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan import keys
from ckplan.runtime.sizes import bytes_of
from tests.autodiff.gradcheck import parse, values
from tests.writer.runtime import live_bytes, profile

BATCH = 32


def perceptron() -> ir.Model:
    """Eight hidden layers with Dropout behind each."""
    lines, last = [], "x"
    weights = {}
    for layer in range(8):
        lines.append(
            f"a{layer} = MatMul ({last}, w{layer}) r{layer} = Tanh (a{layer}) d{layer} = Dropout (r{layer}, p)"
        )
        weights[f"w{layer}"] = (values(32, 32, seed=layer) / 8).astype(np.float32)
        last = f"d{layer}"
    text = f"g (float[{16 * BATCH},32] x) => (float[{16 * BATCH},32] y) {{ {' '.join(lines)} y = MatMul ({last}, w) }}"
    return parse(text, w=weights["w0"], p=np.array(0.2, np.float32), **weights)


def perceptron_22() -> ir.Model:
    """The same in operator set 22, where masks are drawn another way."""
    model = perceptron()
    model.graph.opset_imports[""] = 22
    return model


def residual_network() -> ir.Model:
    """Six blocks of Conv, BatchNormalization, Relu with a shortcut, and Dropout before the scores."""
    lines, last = ["h = Conv <pads = [1, 1, 1, 1]> (x, stem)"], "h"
    weights = {"stem": (values(8, 3, 3, 3) / 4).astype(np.float32), "head": values(8, 10).astype(np.float32)}
    for block in range(6):
        inputs = ", ".join(f"{name}{block}" for name in "csbmv")
        lines.append(
            f"c{block} = Conv <pads = [1, 1, 1, 1]> ({last}, w{block}) n{block} = BatchNormalization ({inputs})"
        )
        lines.append(f"r{block} = Relu (n{block}) h{block} = Add (r{block}, {last})")
        last = f"h{block}"
        weights[f"w{block}"] = (values(8, 8, 3, 3, seed=block + 1) / 8).astype(np.float32)
        for name, number in zip("sbmv", (1, 0, 0, 1), strict=True):
            weights[f"{name}{block}"] = np.full(8, number, np.float32)
    lines.append(f"g = GlobalAveragePool ({last}) f = Flatten (g) d = Dropout (f) y = MatMul (d, head)")
    shape = f"float[{BATCH},3,12,12]"
    return parse(f"g ({shape} x) => (float[{BATCH},10] y) {{ {' '.join(lines)} }}", **weights)


STEPS = {
    "perceptron, adam": (perceptron, "adam:weight_decay=0.01", None),
    "perceptron, sgd with clipping": (perceptron, "sgd", 0.5),
    "perceptron in opset 22, momentum": (perceptron_22, "momentum", None),
    "residual network, momentum": (residual_network, "momentum", None),
}


def step_of(name: str) -> ckplan.TrainingGraph:
    network, optimizer, clip = STEPS[name]
    training = ckplan.build_training_graph(network(), training=True, loss="mse")
    return ckplan.add_optimizer(training, ckplan.parse_optimizer(optimizer), clip)


def three_steps(model: ir.Model, updates: dict[str, str]) -> list[dict[str, np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    fed = {name: np.zeros(shape, np.float32) for name, shape in states(model).items()}
    history = []
    for index in range(3):
        made = dict(zip(names, session.run(names, {**batch(model, index), **fed}), strict=True))
        fed = {old: made[new] for old, new in updates.items()}
        history.append(made)
    return history


def states(model: ir.Model) -> dict[str, tuple[int, ...]]:
    names = json.loads(model.metadata_props[keys.STATES])
    return {str(value.name): value.shape.numpy() for value in model.graph.inputs if value.name in names}


def batch(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    fed = {value.name: value for value in model.graph.inputs if value.name in ("x", "target")}
    return {name: rng.standard_normal(value.shape.numpy()).astype(np.float32) for name, value in fed.items()}


def repeated(model: ir.Model) -> list[str]:
    """Names of the nodes that run again."""
    return [node.metadata_props[keys.RECOMPUTE_OF] for node in model.graph if keys.RECOMPUTE_OF in node.metadata_props]


@pytest.mark.parametrize("name", STEPS)
def test_a_planned_step_is_the_step(name: str) -> None:
    step = step_of(name)
    plan = ckplan.parse_strategy("evict").solve(ckplan.problem_of(step.model))
    planned = ckplan.emit(step.model, plan)
    onnx.checker.check_model(ir.to_proto(planned), full_check=True)

    assert repeated(planned)
    drawing = [node.name for node in step.model.graph if node.op_type in ("RandomUniformLike", "Dropout")]
    masks = [node.name for node in step.model.graph if keys.ONCE in node.metadata_props]
    makers = {value.name: value.producer().name for value in step.model.graph.outputs}
    updating = [makers[new] for new in step.updates.values()]
    assert drawing
    assert not {*drawing, *masks, *updating}.intersection(repeated(planned))
    assert sum(node.op_type in ("RandomUniformLike", "Dropout") for node in planned.graph) == len(drawing)

    expected, found = three_steps(step.model, step.updates), three_steps(planned, step.updates)
    for before, after in zip(expected, found, strict=True):
        assert before.keys() == after.keys()
        for output, array in before.items():
            np.testing.assert_array_equal(array, after[output], err_msg=output)
    assert not np.array_equal(expected[0][step.loss], expected[2][step.loss])

    outputs = {value: bytes_of(value) for value in planned.graph.outputs}
    made = {node.name or "": sum(outputs.get(value, 0) for value in node.outputs) for node in planned.graph}
    predicted = int(planned.metadata_props[keys.PREDICTED_ACTIVATIONS])
    fed = {**batch(planned), **{name: np.zeros(shape, np.float32) for name, shape in states(planned).items()}}
    measured = max(live_bytes(profile(ir.to_proto(planned), fed), made))
    assert measured == pytest.approx(predicted, rel=0.03, abs=4096)
    assert predicted <= plan.predicted.peak_activations * 1.03 + 4096
    assert (
        predicted < 0.8 * ckplan.parse_strategy("none").solve(ckplan.problem_of(step.model)).predicted.peak_activations
    )


def test_what_was_dropped_out_of_is_made_again_from_the_mask() -> None:
    step = step_of("perceptron, sgd with clipping")
    planned = ckplan.emit(step.model, ckplan.parse_strategy("memory").solve(ckplan.problem_of(step.model)))
    again = {name.split("/")[-1].split("_")[0] for name in repeated(planned) if "Dropout" in name or "/Mul" in name}
    assert "Mul" in again
