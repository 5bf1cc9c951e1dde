"""Whole steps: each optimizer against torch's, step by step, and what the file looks like."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan import keys
from ckplan.autodiff.optimizers import OPTIMIZERS, add_optimizer, parse_optimizer
from ckplan.errors import UsageError
from tests.autodiff.gradcheck import parse, values

RATE, STEPS = 0.05, 12
MLP = Path(__file__).parents[2] / "sample_models" / "mlp.onnx"

Reference = Callable[[Iterable[Any]], Any]


def torch_optimizer(name: str, **options: Any) -> Reference:
    import torch

    return lambda parameters: getattr(torch.optim, name)(parameters, lr=RATE, **options)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "sgd:weight_decay=0.1": ("SGD", {"weight_decay": 0.1}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "momentum:momentum=0.5,weight_decay=0.1": ("SGD", {"momentum": 0.5, "weight_decay": 0.1}),
    "adam": ("Adam", {}),
    "adam:weight_decay=0.1,beta1=0.8,beta2=0.95,epsilon=1e-6": (
        "Adam",
        {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6},
    ),
    "adam:beta1=0,beta2=0.05": ("Adam", {"betas": (0.0, 0.05)}),  # by neither of which anything can be divided
    "adamw": ("AdamW", {}),
    "adamw:weight_decay=20": ("AdamW", {"weight_decay": 20.0}),  # nothing is left of a parameter
    "adamw:weight_decay=0,beta2=0.95": ("AdamW", {"weight_decay": 0.0, "betas": (0.9, 0.95)}),
}


def network(dtype: type[np.floating[Any]] = np.float64) -> ir.Model:
    kind = {np.float64: "double", np.float32: "float", np.float16: "float16"}[dtype]  # type: ignore[index]
    arrays = {"w": values(5, 7), "b": values(7, seed=1), "u": values(7, 3, seed=2)}
    return parse(
        f"""g ({kind}[4,5] x, {kind}[4,3] t) => ({kind} loss) {{
            a = MatMul (x, w)
            c = Add (a, b)
            h = Tanh (c)
            y = MatMul (h, u)
            d = Sub (y, t)
            s = Mul (d, d)
            loss = ReduceMean <keepdims = 0> (s)
        }}""",
        **{name: array.astype(dtype) for name, array in arrays.items()},
    )


def step_of(spec: str, clip: float | None = None, dtype: Any = np.float64) -> ckplan.TrainingGraph:
    return add_optimizer(ckplan.build_training_graph(network(dtype)), parse_optimizer(spec), clip)


def train(step: ckplan.TrainingGraph, batches: Sequence[dict[str, np.ndarray]], rate: np.ndarray) -> list[dict]:
    """The fed values after each step of a plain loop, and the loss."""
    proto = ir.to_proto(step.model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    fed = zeros(step)
    history = []
    for batch in batches:
        made = dict(zip(names, session.run(names, {**fed, **batch, "learning_rate": rate}), strict=True))
        fed = {old: made[new] for old, new in step.updates.items()}
        history.append({**fed, "loss": made[step.loss]})
    return history


def zeros(step: ckplan.TrainingGraph) -> dict[str, np.ndarray]:
    """The states before the first step."""
    states = json.loads(step.model.metadata_props[keys.STATES])
    inputs = {str(value.name): value for value in step.model.graph.inputs}
    return {name: np.zeros(inputs[name].shape.numpy(), inputs[name].dtype.numpy()) for name in states}


def batches(dtype: Any, steps: int = STEPS) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        {"x": rng.normal(size=(4, 5)).astype(dtype), "t": rng.normal(size=(4, 3)).astype(dtype)} for _ in range(steps)
    ]


def torch_history(reference: Reference, clip: float | None, dtype: Any) -> list[dict]:
    import torch

    weights = {
        name: torch.tensor(value.const_value.numpy(), requires_grad=True)
        for name, value in network(dtype).graph.initializers.items()
    }
    optimizer = reference(weights.values())
    history = []
    for batch in batches(dtype):
        optimizer.zero_grad()
        hidden = torch.tanh(torch.tensor(batch["x"]) @ weights["w"] + weights["b"])
        loss = ((hidden @ weights["u"] - torch.tensor(batch["t"])) ** 2).mean()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(weights.values()), clip)
        optimizer.step()
        history.append({"loss": loss.item(), **{name: w.detach().numpy().copy() for name, w in weights.items()}})
    return history


def test_every_optimizer_is_compared() -> None:
    assert {case.partition(":")[0] for case in CASES} == {kind.name for kind in OPTIMIZERS}


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("spec", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 4e-6)], ids=["double", "single"])
def test_steps_are_those_of_torch(spec: str, clip: float | None, dtype: Any, tolerance: float) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    name, options = CASES[spec]
    expected = torch_history(torch_optimizer(name, **options), clip, dtype)
    ours = train(step_of(spec, clip, dtype), batches(dtype), np.asarray(RATE, dtype))
    for mine, theirs in zip(ours, expected, strict=True):
        for key in theirs:
            np.testing.assert_allclose(mine[key], theirs[key], rtol=0, atol=tolerance, err_msg=key)


def test_clipping_takes_effect_in_those_comparisons() -> None:
    free, clipped = (train(step_of("sgd", clip), batches(np.float64), np.asarray(RATE)) for clip in (None, 0.5))
    assert np.abs(free[-1]["w"] - clipped[-1]["w"]).max() > 0.01
    loose = train(step_of("sgd", 1e6), batches(np.float64), np.asarray(RATE))
    np.testing.assert_array_equal(free[-1]["w"], loose[-1]["w"])


@pytest.mark.parametrize("spec", ["momentum", "adamw"])
def test_half_precision_is_updated_in_single(spec: str) -> None:
    step = step_of(spec, dtype=np.float16)
    made = {value.name: value.dtype for value in step.model.graph.outputs}
    for old, new in step.updates.items():
        if old in step.gradients:
            assert made[new] == ir.DataType.FLOAT16
        elif old != "step":
            assert made[new] == ir.DataType.FLOAT
    onnx.checker.check_model(ir.to_proto(step.model), full_check=True)


def test_names_and_metadata() -> None:
    step = step_of("adam", 1.0, np.float32)
    properties = step.model.metadata_props
    assert json.loads(properties[keys.UPDATES]) == step.updates
    assert properties[keys.LEARNING_RATE] == "learning_rate"
    assert properties[keys.OPTIMIZER] == "adam"
    assert keys.GRADIENTS not in properties
    assert set(step.updates) == {"step", *(f"{p}{s}" for p in "wbu" for s in ("", "_moment1", "_moment2"))}
    assert all(new == f"{old}_new" for old, new in step.updates.items())
    assert [value.name for value in step.model.graph.outputs] == ["loss", *step.updates.values()]
    inputs = {value.name: value for value in step.model.graph.inputs}
    assert set(inputs) == {"x", "t", "learning_rate", *step.updates}
    defaults = {name: value.const_value.numpy() for name, value in inputs.items() if value.is_initializer()}
    assert defaults["learning_rate"] == np.float32(0.001)
    assert defaults["step"] == 0
    states = [f"{parameter}_moment{moment}" for parameter in "uwb" for moment in (1, 2)]
    assert sorted(json.loads(properties[keys.STATES])) == sorted(states)
    assert not defaults.keys() & set(states)
    shapes = {value.name: value.shape for value in step.model.graph.outputs}
    assert all(shapes[new] == inputs[old].shape for old, new in step.updates.items())


def test_names_that_the_model_has_are_left_to_it() -> None:
    model = network()
    model.graph.inputs[0].name = "learning_rate"
    step = add_optimizer(ckplan.build_training_graph(model), parse_optimizer("sgd"))
    name = step.model.metadata_props[keys.LEARNING_RATE]
    assert name != "learning_rate"
    assert f"'{name}' is 0.001" in step.notes[-1]


def test_other_outputs_stay() -> None:
    training = ckplan.build_training_graph(network(), retain_grad=["h"])
    step = add_optimizer(training, parse_optimizer("sgd"))
    assert [value.name for value in step.model.graph.outputs][:2] == ["loss", training.retained["h"]]
    assert [value.name for value in training.model.graph.outputs][1] == "w_grad"


def deep(layers: int = 8, width: int = 64) -> ir.Model:
    lines, last = [], "x"
    for layer in range(layers):
        lines.append(f"a{layer} = MatMul ({last}, w{layer}) h{layer} = Tanh (a{layer})")
        last = f"h{layer}"
    text = f"g (float[1,{width}] x) => (float loss) {{ {' '.join(lines)} loss = ReduceMean <keepdims = 0> ({last}) }}"
    return parse(text, **{f"w{layer}": values(width, width, seed=layer).astype(np.float32) for layer in range(layers)})


@pytest.mark.parametrize(("spec", "copies"), [("sgd", 2), ("momentum", 3), ("adam", 4)])
def test_a_gradient_dies_as_soon_as_its_parameter_is_updated(spec: str, copies: int) -> None:
    """The batch is one row: what is alive beside a few rows are gradients and what updates work in."""
    layers, size, rows = 8, 64 * 64 * 4, 1 << 14
    training = ckplan.build_training_graph(deep(layers))
    for clip, fewest, most in ((None, 1, copies), (1.0, layers, layers + copies)):
        step = add_optimizer(training, parse_optimizer(spec), clip)
        problem = ckplan.problem_of(step.model)
        peak = ckplan.simulate(problem, range(len(problem.ops))).peak_activations
        assert fewest * size <= peak <= most * size + rows, (clip, peak / size)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("adam:beta1", "option `beta1` of optimizer `adam` has no value; write `beta1=…`"),
        ("adamm", "there is no optimizer `adamm`; did you mean `adam`?"),
        ("adam:beta3=1", "optimizer `adam` has no option `beta3`; its options: learning_rate=…"),
        ("adam:beta1=0,beta1=0.5", "option `beta1` of optimizer `adam` is given twice; give it once"),
        ("adam:beta1=big", "`big` does not fit option `beta1` of optimizer `adam`; give a number"),
        ("adam:beta2=1", "option `beta2` of optimizer `adam` is 1.0; give at least 0 and less than 1"),
        ("momentum:momentum=1.5", "option `momentum`"),
        ("sgd:weight_decay=-1", "option `weight_decay`"),
        ("sgd:learning_rate=-1", "option `learning_rate`"),
        ("adam:epsilon=-1", "option `epsilon`"),
        ("sgd:learning_rate=1e60", "option `learning_rate` of optimizer `sgd` is 1e+60; give at most 3.40282e+38"),
    ],
)
def test_bad_options(spec: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_optimizer(spec)
    assert said in f"{caught.value.message}; {caught.value.hint}"


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_norms(norm: float) -> None:
    with pytest.raises(UsageError, match=r"`--clip-norm` is .*; give a positive number"):
        step_of("sgd", norm)


def test_a_step_is_made_once() -> None:
    with pytest.raises(UsageError, match="makes new parameters already"):
        add_optimizer(step_of("sgd"), parse_optimizer("sgd"))


def test_without_parameters_there_is_nothing_to_update() -> None:
    training = ckplan.build_training_graph(network(), wrt=["x"])
    with pytest.raises(UsageError, match="has no parameter to update"):
        add_optimizer(training, parse_optimizer("sgd"))


def test_unscaled_gradients_and_those_of_zero_are_taken() -> None:
    model = network()
    idle = ir.Value(name="idle", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape([3]))
    idle.const_value = ir.Tensor(np.ones(3), name="idle")
    model.graph.register_initializer(idle)
    for spec, scale in (("sgd", None), ("sgd:weight_decay=1", 1024.0)):
        training = ckplan.build_training_graph(model, unused="zero", wrt=["w", "b", "u", "idle"], loss_scale=scale)
        made = train(add_optimizer(training, parse_optimizer(spec)), batches(np.float64), np.asarray(0.5))[0]
        np.testing.assert_allclose(made["idle"], 0.5 if scale else 1.0)


@pytest.mark.parametrize("spec", CASES)
def test_spelling(spec: str) -> None:
    assert parse_optimizer(str(parse_optimizer(spec))) == parse_optimizer(spec)
    assert str(parse_optimizer("adamw:weight_decay=0.01,beta2=0.95")) == "adamw:beta2=0.95"


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "momentum"])
def test_an_update_takes_two_tensors_of_the_parameters_size(optimizer: str) -> None:
    """The gradient or what takes its place, and one more; none is made before the gradient is there."""
    step = ckplan.open_model(MLP, optimizer=optimizer, dims={"batch": 1})
    largest = max(value.const_value.nbytes for value in step.model.graph.initializers.values())
    assert ckplan.rewrite(step, strategy="memory").after.peak_activations < 2.1 * largest
