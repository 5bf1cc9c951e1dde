"""LSTM, GRU and RNN: gradients in double precision against finite differences of a numpy reference."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.control_flow.policy import STORABLE
from ckplan.autodiff.reading import size_of
from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.gradcheck import infer, onnxruntime_run, parse
from tests.autodiff.recurrent_cases import Case, check, fused, gradients, training_graph
from tests.autodiff.recurrent_reference import ACTIVATIONS, ALPHAS, DEFAULTS, recurrent

OPERATORS = ("LSTM", "GRU", "RNN")
DIRECTIONS = ("forward", "reverse", "bidirectional")
ONLY_HERE = ("Affine", "ScaledTanh", "ThresholdedRelu")
"""Activations whose parameters must be given."""


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [None, (5, 0, 3)])
@pytest.mark.parametrize("layout", [0, 1])
def test_directions(op_type, direction, lengths, layout):
    check(Case(op_type, {"direction": direction, "layout": layout}, "bhc", lengths))


@pytest.mark.parametrize("op_type", OPERATORS)
def test_any_subset_of_the_outputs(op_type):
    count = 3 if op_type == "LSTM" else 2
    for size in range(1, count + 1):
        for outputs in itertools.combinations(range(count), size):
            check(Case(op_type, {}, "bhc", (4, 2), outputs, (4, 2, 2, 3)))


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("optional", ["", "b", "h", "c", "p", "bhcp"])
def test_optional_inputs(op_type, optional):
    check(Case(op_type, {}, optional))


@pytest.mark.parametrize("coupled", [0, 1])
@pytest.mark.parametrize("optional", ["bhc", "bhcp"])
@pytest.mark.parametrize("clip", [None, 0.375])
def test_lstm_options(coupled, optional, clip):
    attributes = {"input_forget": coupled} | ({} if clip is None else {"clip": clip})
    check(Case("LSTM", attributes, optional, (5, 2, 3), (0, 1, 2)))


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("optional", ["h", "bh"])
@pytest.mark.parametrize("clip", [None, 0.375])
def test_gru_options(after, optional, clip):
    attributes = {"linear_before_reset": after} | ({} if clip is None else {"clip": clip})
    check(Case("GRU", attributes, optional, (5, 2, 3)))


def test_clipping_to_nothing_is_refused():
    # onnxruntime runs an RNN that clips to 0, or to less, and refuses others; it is not one that does not clip.
    text = """g (double[3,2,2] x) => (double loss) {
        y = RNN <hidden_size = 2, clip = 0.0> (x, w, r) loss = ReduceSum<keepdims = 0>(y) }"""
    weights = {"w": np.ones((1, 2, 2)), "r": np.ones((1, 2, 2))}
    with pytest.raises(UnsupportedOperatorsError, match="its clip is 0, which is not positive"):
        build_training_graph(parse(text, **weights), loss="loss", wrt=["w"])


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("alpha", "clip"), [(0.25, None), (-0.25, 0.625)])
def test_activations(op_type, name, alpha, clip):
    count = len(DEFAULTS[op_type])
    attributes = {
        "activations": [name] * count,
        "activation_alpha": [alpha] * count,
        "activation_beta": [0.375] * count,
    } | ({} if clip is None else {"clip": clip})
    check(Case(op_type, attributes, "bhc", sizes=(3, 2, 2, 3)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any recurrent node."""
    op_type = draw(st.sampled_from(OPERATORS))
    sizes = draw(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)))
    direction = draw(st.sampled_from(DIRECTIONS))
    attributes = {"direction": direction, "layout": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        names = [draw(st.sampled_from(sorted(ACTIVATIONS))) for _ in DEFAULTS[op_type]]
        names *= 2 if direction == "bidirectional" else 1
        attributes["activations"] = names
        attributes["activation_alpha"] = [draw(st.sampled_from([-0.5, 0.25, 0.75])) for _ in names]
        attributes["activation_beta"] = [draw(st.sampled_from([-0.25, 0.5])) for _ in names]
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.25, 1.0]))
    if op_type == "LSTM":
        attributes["input_forget"] = draw(st.integers(0, 1))
    if op_type == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    lengths = st.lists(st.integers(0, sizes[0]), min_size=sizes[1], max_size=sizes[1])
    count = 3 if op_type == "LSTM" else 2
    outputs = draw(st.sets(st.integers(0, count - 1), min_size=1))
    optional = "".join(sorted(draw(st.sets(st.sampled_from("bhcp")))))
    return Case(op_type, attributes, optional, draw(st.none() | lengths), sorted(outputs), sizes)


@given(cases())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_node(case):
    check(case, rtol=1e-4)


# -- in single precision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", OPERATORS)
def test_single_precision(op_type):
    case = Case(op_type, {"direction": "bidirectional"}, "bhcp", (5, 2, 3))
    exact, single = gradients(case), gradients(case, np.float32)
    for name, gradient in exact.items():
        assert single[name].dtype == np.float32
        np.testing.assert_allclose(single[name], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max(), err_msg=name)


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_reference_is_what_onnxruntime_computes(op_type, direction):
    names = list(DEFAULTS[op_type]) * (2 if direction == "bidirectional" else 1)
    for attributes in (
        {},
        {"clip": 0.375},
        {
            "activations": ["HardSigmoid", "Softsign", "Elu"][: len(DEFAULTS[op_type])]
            * (len(names) // len(DEFAULTS[op_type]))
        },
        {"input_forget": 1} if op_type == "LSTM" else {"linear_before_reset": 1} if op_type == "GRU" else {},
    ):
        case = Case(op_type, {"direction": direction, **attributes}, "bhcp", (5, 0, 3))
        expected = recurrent(op_type, *case.inputs(), **case.attributes)
        found = fused(case)
        for index in case.outputs:
            np.testing.assert_allclose(found[f"y{index}"], expected[index], rtol=0, atol=2e-6)


def test_parameters_of_activations_whose_default_is_disputed():
    for name in ONLY_HERE:
        assert name in ALPHAS
        with pytest.raises(UnsupportedOperatorsError, match=f"{name} has no activation_alpha"):
            training_graph(Case("RNN", {"activations": [name]}))


def test_an_unknown_activation():
    model = Case("RNN").model()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("activations", ["Sine"]))
    with pytest.raises(UnsupportedOperatorsError, match="activation 'Sine' is unknown"):
        build_training_graph(infer(model), loss="loss", wrt=["p*"])


# -- what is stored ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("attributes", [{}, {"direction": "bidirectional", "clip": 0.5}])
def test_gates_computed_again_are_the_same(op_type, attributes):
    case = Case(op_type, attributes, "bhcp", (5, 2, 3))
    stored = training_graph(case, np.float32)
    again = build_training_graph(infer(case.model(np.float32)), loss="loss", wrt=["p*"], store=["none"])
    first, second = onnxruntime_run(stored.model), onnxruntime_run(again.model)
    for name, gradient in again.gradients.items():
        np.testing.assert_array_equal(second[gradient], first[stored.gradients[name]], err_msg=name)
    clipped_or_gated = op_type != "RNN" or "clip" in attributes
    assert (stored_numbers(again) < stored_numbers(stored)) == clipped_or_gated


def stored_numbers(training) -> int:
    """How many numbers the forward loops give out over all steps."""
    loops = [node for node in training.model.graph if node.op_type == "Scan" and "/grad" not in node.name]
    assert loops
    return sum(size_of(value) for loop in loops for value in loop.outputs)


def test_what_the_default_stores():
    case = Case("LSTM", sizes=(5, 3, 2, 4))
    (loop,) = [node for node in training_graph(case).model.graph if node.op_type == "Scan" and "/grad" not in node.name]
    sizes = sorted(tuple(value.shape.numpy()) for value in loop.outputs[2:])
    assert sizes == sorted([(5, 3, 4), (5, 3, 4), (5, 4, 3), (5, 12, 3), (5, 4, 3)])  # y, h, c, i o f, candidate


def test_rules_name_what_can_be_stored():
    assert set(STORABLE) == set(OPERATORS)


# -- checkpoints along time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize(
    ("attributes", "lengths", "sizes", "chunks", "dtype"),
    [
        ({}, None, (6, 3, 2, 4), 3, np.float32),
        ({}, None, (6, 3, 2, 4), 3, np.float64),
        ({"direction": "bidirectional", "layout": 1}, None, (7, 3, 2, 4), "sqrt", np.float32),
        ({"direction": "reverse", "clip": 0.5}, (5, 0, 3), (5, 3, 2, 4), 2, np.float32),
        ({"direction": "bidirectional"}, (5, 2, 3), (5, 3, 2, 4), 2, np.float64),
    ],
)
def test_chunks_along_time_change_no_gradient(op_type, attributes, lengths, sizes, chunks, dtype):
    count = 3 if op_type == "LSTM" else 2
    case = Case(op_type, attributes, "bhcp", lengths, range(count), sizes)
    whole = gradients(case, dtype)
    training = build_training_graph(infer(case.model(dtype)), loss="loss", wrt=["p*"], time_checkpoints=chunks)
    assert not training.notes
    assert any(node.name.endswith("/chunks") for node in training.model.graph)
    got = onnxruntime_run(training.model)
    assert set(training.gradients) == set(whole)
    for name, gradient in training.gradients.items():
        size = np.abs(whole[name]).max()
        np.testing.assert_allclose(
            got[gradient], whole[name], rtol=0, atol=(1e-6 if dtype is np.float32 else 1e-13) * size, err_msg=name
        )


def test_what_is_too_short_is_not_cut():
    model = infer(Case("GRU", sizes=(3, 2, 2, 2)).model())
    training = build_training_graph(model, loss="loss", wrt=["p*"], time_checkpoints=5)
    assert training.notes == ("no checkpoints along time in GRU 'node': it has only 3 steps",)
