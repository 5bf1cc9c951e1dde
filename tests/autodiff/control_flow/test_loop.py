"""Gradients of Loop."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError, UnsupportedOperatorsError
from tests.autodiff.control_flow.models import check, parse, run, single, training_graph
from tests.autodiff.control_flow.recurrences import loop_model
from tests.autodiff.gradcheck import onnxruntime_run


def kinds(training):
    return [node.op_type for node in training.model.graph if node.op_type in ("If", "Loop", "Scan")]


@pytest.mark.parametrize("chunks", [None, 3, "sqrt"])
def test_a_fixed_number_of_steps_is_a_scan(chunks):
    training, gradients = check(loop_model(7), time_checkpoints=chunks)
    assert kinds(training).count("Loop") == 0
    assert set(gradients) == {"W", "R", "h0", "X"}
    assert not training.notes


def test_a_sequence_of_as_many_rows_as_steps_is_read_row_by_row():
    """Else its gradient would be summed up, all of it in every step."""
    training = training_graph(loop_model(7))
    forward, backward = (node for node in training.model.graph if node.op_type == "Scan")
    assert "X" in [value.name for value in forward.inputs]
    assert not any(node.op_type == "ScatterElements" for node in backward.attributes["body"].as_graph())


def test_fewer_steps_than_rows():
    _, gradients = check(loop_model(5))
    assert not gradients["X"][5:].any()
    assert gradients["X"][4].any()


def test_no_steps():
    _, gradients = check(loop_model(0, stacked=False))
    assert gradients["h0"].any()
    assert set(gradients) == {"h0"}


LIMIT = "a2 = Mul(h, h) t = ReduceSum<keepdims = 0>(a2) goes = Less(t, limit)"


@pytest.mark.parametrize("limit", [-1.0, 0.9, 1.5, 2.5, 100.0])
def test_a_number_of_steps_that_depends_on_data(limit):
    model = loop_model(6, LIMIT, "double limit", stacked=False)
    training, gradients = check(model, {"limit": np.array(limit)})
    assert kinds(training) == ["Loop", "Loop"]
    assert gradients["h0"].any()


def test_the_tests_above_run_different_numbers_of_steps():
    model = loop_model(6, LIMIT, "double limit", stacked=False)
    training = training_graph(model)
    losses = {
        float(run(training.model, {"limit": np.array(limit)})[training.loss]) for limit in (-1.0, 0.9, 1.5, 2.5, 100.0)
    }
    assert len(losses) >= 3


def test_a_first_condition_that_is_false():
    text = """g (bool start) => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n) {
            goes = Identity(c)
            n = Mul(h, W)
        }> (M, start, H)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.array([1.0, 2.0, 3.0]), W=np.array([2.0, 3.0, 0.5]), M=np.array(4))
    for start in (True, False):
        _, gradients = check(model, {"start": np.array(start)})
        np.testing.assert_allclose(gradients["H"], np.array([16.0, 81.0, 0.0625]) if start else np.ones(3))


def test_an_unbounded_number_of_steps_is_refused():
    model = loop_model(2**62, LIMIT, "double limit", stacked=False)
    with pytest.raises(
        UnsupportedOperatorsError, match=r"Loop 'node' \(how often it runs depends on data and has no bound"
    ):
        training_graph(model)


def test_a_number_of_steps_that_is_fed_can_be_fixed():
    text = """g (int64 steps, bool start) => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n) {
            goes = Identity(c)
            n = Mul(h, W)
        }> (steps, start, H)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    with pytest.raises(UnsupportedOperatorsError, match=r"has no bound; fix it with --set steps=NUMBER"):
        training_graph(parse(text, H=np.ones(3), W=np.array([2.0, 3.0, 0.5])))


def again(model, training):
    """Differentiate the sum of the squares of all gradients of a training graph, in a model that holds them."""
    return build_training_graph(model, loss=[f"sum-of-squares:{name}" for name in training.gradients.values()])


def squares(training):
    return again(training.model, training)


def assert_slopes(training, feeds):
    """Compare the gradients of what `squares` made of a training graph with slopes, and with onnxruntime's."""
    found = squares(training)
    got, before = run(found.model, feeds), ir.to_proto(training.model)
    for name, gradient in found.gradients.items():
        start = training.model.graph.initializers[name].const_value.numpy()
        direction = np.random.default_rng(3).uniform(0.5, 1, start.shape)

        def along(t, name=name, start=start, direction=direction):
            made = run(before, {**feeds, name: start + t * direction})
            return sum((made[other] ** 2).sum() for other in training.gradients.values())

        slope, size = (along(1e-6) - along(-1e-6)) / 2e-6, np.abs(got[gradient] * direction).sum()
        np.testing.assert_allclose((got[gradient] * direction).sum(), slope, atol=1e-7 * (size + 1), rtol=1e-7)
    return found, got


@pytest.mark.parametrize("options", [{}, {"store": ["*"]}, {"store": ["none"]}], ids=str)
@pytest.mark.parametrize("limit", [-1.0, 0.9, 2.5])
def test_a_number_of_steps_that_depends_on_data_is_differentiated_again(limit, options):
    model, feeds = loop_model(6, LIMIT, "double limit", stacked=False), {"limit": np.array(limit)}
    second, expected = assert_slopes(training_graph(model, **options), feeds)
    assert kinds(second) == ["Loop"] * len(kinds(second))
    onnx.checker.check_model(ir.to_proto(second.model))
    narrow = squares(training_graph(single(model), **options))
    found = onnxruntime_run(narrow.model, {"limit": np.array(limit, np.float32)})
    for name, gradient in second.gradients.items():
        wanted = expected[gradient]
        np.testing.assert_allclose(found[narrow.gradients[name]], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def reader_of_rows(reads):
    """A Loop that makes rows until their sum is large enough, and one that reads them in as many steps."""
    text = f"""g (double limit) => (double loss) {{
        end, rows, numbers = Loop <
            body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n, double[3] r, int64 number) {{
                n = Mul(h, W)
                r = Identity(n)
                number = Identity(i)
                t = ReduceSum<keepdims = 0>(n)
                goes = Less(t, limit)
            }}
        > (M, , H)
        count = Size(numbers)
        last = Loop <body = d (int64 j, bool e, double[3] k) => (bool f, double[3] l) {{
            f = Identity(e)
            {reads}
            l = Mul(k, row)
        }}> (count, , H)
        loss = ReduceSum<keepdims = 0>(last)
    }}"""
    return parse(text, H=np.array([1.0, 2.0, 3.0]), W=np.array([2.0, 1.5, 0.5]), M=np.array(4), zero=np.array(0))


@pytest.mark.parametrize("limit", [1.0, 9.0, 100.0])
def test_rows_whose_number_depends_on_data_are_read_one_by_one(limit):
    check(reader_of_rows("row = Gather(rows, j)"), {"limit": np.array(limit)})


@pytest.mark.parametrize(
    "reads",
    ["row = Gather(rows, zero)", "one = Gather(rows, j) all = ReduceSum<keepdims = 0>(rows) row = Add(one, all)"],
)
def test_but_not_as_a_whole(reads):
    with pytest.raises(
        UnsupportedOperatorsError, match=r"it reads all of 'rows' at once, whose number of rows depends"
    ):
        training_graph(reader_of_rows(reads))


def test_and_a_third_time():
    training = squares(training_graph(loop_model(6, LIMIT, "double limit", stacked=False)))
    assert_slopes(training, {"limit": np.array(0.9)})


def test_no_step_at_all_is_differentiated_again():
    text = """g (bool start) => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n) {
            goes = Identity(c)
            n = Mul(h, W)
        }> (M, start, H)
        q = Mul(last, last)
        loss = ReduceSum<keepdims = 0>(q)
    }"""
    model = parse(text, H=np.array([1.0, 2.0, 3.0]), W=np.array([2.0, 3.0, 0.5]), M=np.array(2))
    for start in (True, False):
        found, got = assert_slopes(training_graph(model), {"start": np.array(start)})
        assert got[found.gradients["W"]].any() == start


def test_steps_of_a_file_are_counted_anew(tmp_path):
    """The sizes that a run tells when a file is loaded are those of one number of steps."""
    direct = training_graph(single(loop_model(6, LIMIT, "double limit", stacked=False)))
    ckplan.save(direct.model, tmp_path / "training.onnx")
    loaded, expected = again(ckplan.load(tmp_path / "training.onnx").model, direct), squares(direct)
    for limit in (-1.0, 0.9, 2.5):
        feeds = {"limit": np.array(limit, np.float32)}
        found, wanted = onnxruntime_run(loaded.model, feeds), onnxruntime_run(expected.model, feeds)
        for name, gradient in expected.gradients.items():
            np.testing.assert_allclose(found[loaded.gradients[name]], wanted[gradient], rtol=1e-5, atol=1e-5)


def test_rows_whose_number_depends_on_data_are_refused():
    with pytest.raises(ModelError, match=r"the size of '.*' depends on what Loop '.*' finds in the data"):
        training_graph(loop_model(6, LIMIT, "double limit"))


def test_a_state_that_grows_is_refused():
    text = """g () => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[N] h) => (bool goes, double[K] n) {
            goes = Identity(c)
            w = Mul(h, W)
            n = Concat<axis = 0>(w, H)
        }> (M, , H)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.ones(3), W=np.ones(1), M=np.array(4))
    with pytest.raises(
        UnsupportedOperatorsError, match=r"Loop 'node' \(its carried value 'h' changes its shape from step to step"
    ):
        training_graph(model)


def test_loops_in_loops_and_branches():
    text = """g () => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n) {
            goes = Identity(c)
            t = ReduceSum<keepdims = 0>(h)
            big = Greater(t, limit)
            m = If (big) <
                then_branch = then () => (double[3] a) {
                    a = Loop <body = d (int64 j, bool e, double[3] k) => (bool f, double[3] l) {
                        f = Identity(e)
                        l = Mul(k, W)
                    }> (two, , h)
                },
                else_branch = other () => (double[3] o) { o = Exp(h) }
            >
            n = Add(m, W)
        }> (M, , H)
        q = Mul(last, last)
        loss = ReduceSum<keepdims = 0>(q)
    }"""
    arrays = {"H": np.array([0.1, -0.2, 0.3]), "W": np.array([0.7, 0.4, -0.3])}
    model = parse(text, **arrays, M=np.array(4), two=np.array(2), limit=np.array(1.0))
    for chunks in (None, 2):
        training, _ = check(model, time_checkpoints=chunks)
        assert not training.notes


@pytest.mark.parametrize("options", [{}, {"time_checkpoints": 2}, {"store": ["*"]}], ids=str)
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_a_number_of_steps_that_depends_on_data_inside_a_loop(limit, options):
    text = """g (double limit) => (double loss) {
        last = Scan <num_scan_inputs = 1, body = b (double[3] h, double[3] x) => (double[3] n) {
            m = Loop <body = d (int64 j, bool e, double[3] k) => (bool f, double[3] l) {
                t = ReduceSumSquare<keepdims = 0>(k)
                f = Less(t, limit)
                w = Mul(k, W)
                l = Add(w, x)
            }> (six, , h)
            n = Tanh(m)
        }> (H, X)
        q = Mul(last, last)
        loss = ReduceSum<keepdims = 0>(q)
    }"""
    rng = np.random.default_rng(0)
    arrays = {"H": rng.normal(size=3), "W": rng.normal(size=3), "X": rng.normal(size=(4, 3)), "six": np.array(6)}
    check(parse(text, **arrays), {"limit": np.array(limit)}, **options)


def test_updates_of_one_place_are_made_in_turn():
    """onnxruntime's threads lose some of a ScatterND with a reduction."""
    model = parse(
        """g () => (double loss) {
            last = Loop <body = b (int64 i, bool c, double[3, 2] h) => (bool goes, double[3, 2] n) {
                goes = Identity(c)
                new = Tanh(W)
                n = ScatterND <reduction = "add"> (h, places, new)
            }> (M, , H)
            y = Mul(last, last)
            loss = ReduceSum <keepdims = 0> (y)
        }""",
        M=np.array(3),
        H=np.arange(6.0).reshape(3, 2),
        W=np.linspace(-1, 1, 8).reshape(4, 2),
        places=np.array([[1], [0], [1], [1]]),
    )
    training, _ = check(model)
    found = {node.op_type for node in training.model.graph.all_nodes()}
    assert "ScatterElements" in found
    assert "ScatterND" not in found
    assert any("ScatterND node(s) with a reduction" in note for note in training.notes)


@pytest.mark.parametrize("entering", ["h", "s"], ids=["made anew", "carried on"])
def test_a_state_that_an_operator_makes_which_its_definition_differentiates(entering):
    """Attention has no rule: it is written out in the body, and what makes the state is another node then."""
    step = "Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>"
    of_loop = f"""y = Loop(steps, , zeros) <body =
      b (int64 i, bool c, float[2,3,4] s) => (bool goes, float[2,3,4] r) {{
        goes = Identity(c)
        r = {step}({entering}, h, h)
    }}>"""
    written_out = f"y1 = {step}(zeros, h, h) y = {step}({'h' if entering == 'h' else 'y1'}, h, h)"
    x, w, v = np.random.default_rng(0).uniform(-1, 1, (3, 2, 3, 4)).astype(np.float32)
    found = []
    for nodes in (of_loop, written_out):
        model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23]> g (float[2,3,4] x) => (float loss)
            <int64 steps = {{2}}> {{ h = Mul(x, w) {nodes} z = Mul(y, v) loss = ReduceSum<keepdims = 0>(z) }}""")
        for name, array in {"w": w, "v": v, "zeros": np.zeros_like(x)}.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        training = ckplan.open_model(model, wrt=["w"]).training
        found.append(onnxruntime_run(training.model, {"x": x})[training.gradients["w"]])
    assert np.abs(found[1]).max() > 0.1
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
