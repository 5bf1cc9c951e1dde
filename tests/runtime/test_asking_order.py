"""When kernels ask for their outputs, seen from where these lie: behind all that was asked for before and is there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from ckplan.planner.arena.regions import chunk_size
from ckplan.planner.problem import Freed, Mark
from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels.workspace import OUTPUTS_FIRST

MAPS = "float[2,8,8,8]"
UNARY = (
    *("Abs", "ArgMax", "ArgMin", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "Identity"),
    *("GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "IsNaN", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Round"),
    *("LpNormalization", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare"),
    *("Reciprocal", "Relu", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Softmax", "Softplus"),
    *("Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Transpose", "Trilu"),
)
BINARY = (
    *(
        "Add",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "MatMul",
        "Mul",
        "PRelu",
        "Pow",
        "Sub",
    ),
    *("Concat <axis = 1>", "com.microsoft.FusedMatMul <transA = 1>"),
)
CALLS: dict[str, tuple[str, str, str]] = {
    **{f"{name} of one": (f"{name} (m)", MAPS, "") for name in UNARY},
    **{f"{name} of two": (f"{name} (m, a)", MAPS, f"{MAPS} a") for name in BINARY},
    "Add, broadcast": ("Add (m, a)", MAPS, "float[8,1,1] a"),
    "And": ("And (m, a)", "bool[64,64]", "bool[64,64] a"),
    "AveragePool": ("AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (m)", MAPS, ""),
    "BatchNormalization": ("BatchNormalization (m, a, a, a, a)", MAPS, "float[8] a"),
    "BatchNormalization in training": (
        "BatchNormalization <training_mode = 1> (m, a, a, a, a)",
        MAPS,
        "float[8] a",
    ),
    "BiasGelu": ("com.microsoft.BiasGelu (m, a)", MAPS, "float[8] a"),
    "Cast": ("Cast <to = 11> (m)", MAPS, ""),
    "Clip": ("Clip (m, a, b)", MAPS, "float a, float b"),
    "Conv of few filters": ("Conv <pads = [1, 1, 1, 1]> (m, a)", MAPS, "float[8,8,3,3] a"),
    "Conv of many filters": ("Conv <pads = [1, 1, 1, 1]> (m, a)", MAPS, "float[80,8,3,3] a"),
    "Conv of one place": ("Conv (m, a)", MAPS, "float[8,8,1,1] a"),
    "Conv by groups": ("Conv <group = 8> (m, a)", MAPS, "float[8,1,3,3] a"),
    "ConvTranspose": ("ConvTranspose (m, a)", MAPS, "float[8,8,3,3] a"),
    "ConvTranspose by groups": ("ConvTranspose <group = 4, strides = [2, 2]> (m, a)", MAPS, "float[8,8,3,3] a"),
    "CumSum": ("CumSum (m, a)", MAPS, "int64 a"),
    "DepthToSpace": ("DepthToSpace <blocksize = 2> (m)", MAPS, ""),
    "Dropout": ("Dropout (m, a, b)", MAPS, "float a, bool b"),
    "Expand": ("Expand (m, a)", "float[1,64,64]", "int64[3] a"),
    "FastGelu": ("com.microsoft.FastGelu (m, a)", MAPS, "float[8] a"),
    "FusedConv": ('com.microsoft.FusedConv <activation = "Relu"> (m, a)', MAPS, "float[80,8,3,3] a"),
    "FusedGemm": ('com.microsoft.FusedGemm <activation = "Relu"> (m, a)', "float[64,64]", "float[64,64] a"),
    "Gather": ("Gather <axis = 1> (m, a)", MAPS, "int64[5] a"),
    "GatherElements": ("GatherElements <axis = 1> (m, a)", MAPS, "int64[2,5,8,8] a"),
    "GatherND": ("GatherND (m, a)", MAPS, "int64[5,2] a"),
    "Gelu by tanh": ('Gelu <approximate = "tanh"> (m)', MAPS, ""),
    "Gemm": ("Gemm (m, a)", "float[64,64]", "float[64,64] a"),
    "Gemm of both transposed": (
        "Gemm <transA = 1, transB = 1> (m, a, b)",
        "float[64,64]",
        "float[64,64] a, float[64] b",
    ),
    "InstanceNormalization": ("InstanceNormalization (m, a, a)", MAPS, "float[8] a"),
    "LRN": ("LRN <size = 3> (m)", MAPS, ""),
    "LayerNormalization": ("LayerNormalization (m, a, a)", MAPS, "float[8] a"),
    "LogSoftmax over channels": ("LogSoftmax <axis = 1> (m)", MAPS, ""),
    "MaxPool": ("MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (m)", MAPS, ""),
    "Not": ("Not (m)", "bool[64,64]", ""),
    "Or": ("Or (m, a)", "bool[64,64]", "bool[64] a"),
    "Pad": ("Pad (m, a)", MAPS, "int64[8] a"),
    "QuickGelu": ("com.microsoft.QuickGelu (m)", MAPS, ""),
    "RMSNormalization": ("RMSNormalization (m, a)", MAPS, "float[8] a"),
    "ReduceMean over the middle": ("ReduceMean <keepdims = 0> (m, a)", MAPS, "int64[1] a"),
    "Reshape": ("Reshape (m, a)", "float[64,64]", "int64[2] a"),
    "Resize to the nearest": ('Resize <mode = "nearest"> (m, "", a)', MAPS, "float[4] a"),
    "Resize by lines": ('Resize <mode = "linear"> (m, "", a)', MAPS, "float[4] a"),
    "RotaryEmbedding": ("RotaryEmbedding (m, a, a)", MAPS, "float[2,8,4] a"),
    "ScatterElements": ("ScatterElements (m, a, b)", "float[64,64]", "int64[4,64] a, float[4,64] b"),
    "ScatterND": ("ScatterND (m, a, b)", "float[64,64]", "int64[5,1] a, float[5,64] b"),
    "Slice": ("Slice (m, a, b, a)", MAPS, "int64[1] a, int64[1] b"),
    "Softmax over channels": ("Softmax <axis = 1> (m)", MAPS, ""),
    "SpaceToDepth": ("SpaceToDepth <blocksize = 2> (m)", MAPS, ""),
    "Split": ("Split <axis = 1, num_outputs = 2> (m)", MAPS, ""),
    "Tile": ("Tile (m, a)", MAPS, "int64[4] a"),
    **{
        f"{name} of {number}": (f"{name} (m{', a' * (number - 1)})", MAPS, f"{MAPS} a")
        for name in ("Max", "Mean", "Min", "Sum")
        for number in (2, 3)
    },
    "Sum of three, two of them small": ("Sum (a, a, m)", MAPS, "float[8] a"),
    "Where": ("Where (a, m, b)", MAPS, f"bool[2,8,8,8] a, {MAPS} b"),
    "Where of one row": ("Where (a, m, b)", MAPS, "bool[2,8,8,8] a, float[8] b"),
    "Einsum": ('Einsum <equation = "nchw,kc->nkhw"> (m, a)', MAPS, "float[5,8] a"),
}
"""What is called, the shape of what it is called with and which lies right before, and what is fed beside."""

FED: dict[str, object] = {
    "Dropout": 0.5,
    "Expand": [8, 64, 64],
    "Pad": [0, 0, 1, 1, 0, 0, 1, 1],
    "Reshape": [32, 128],
    "Resize": [1, 1, 2, 2],
    "Slice": [2],
}
"""What is fed where ones would not do."""


def model_of(call: str, shape: str, beside: str) -> onnx.ModelProto:
    """A model that makes what is called with, and calls; both are returned."""
    before = "Not" if shape.startswith("bool") else "Neg"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
        g ({", ".join(filter(None, (f"{shape} x", beside)))}) => ({shape} m) {{
            m = {before} (x)
            {"y, rest, more" if "training_mode" in call else "y, rest" if "Split" in call else "y"} = {call}
        }}"""
    )
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    return onnx.shape_inference.infer_shapes(model)


def fed(call: str, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Ones, but where others are asked for."""
    made = {}
    for value in model.graph.input:
        dims = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        made[value.name] = np.ones(dims, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    for name, numbers in FED.items():
        if call.startswith(name):
            which = "b" if name == "Slice" else "a"
            made[which] = np.array(numbers, made[which].dtype)
    return made


def offset(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> int:
    """Bytes between the end of the chunk of what is called with, and what the call returns."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = CPU.threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for name in ("m", "y"):
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    before, made = binding.get_outputs()
    return int(made.data_ptr() - before.data_ptr()) - chunk_size(before.numpy().nbytes)


@pytest.mark.parametrize("case", CALLS)
def test_outputs_lie_behind_what_was_asked_for_before(case: str) -> None:
    call, shape, beside = CALLS[case]
    model = model_of(call, shape, beside)
    node = ir.serde.deserialize_model(model).graph[-1]
    pieces = CPU.pieces(node)
    assert Mark.OUTPUTS in pieces
    before: dict[int, int] = {}
    for place, piece in enumerate(pieces[: pieces.index(Mark.OUTPUTS)]):
        if isinstance(piece, Freed):
            del before[place - piece.back]
        else:
            assert isinstance(piece, int)
            before[place] = piece
    assert offset(model, fed(call, model)) == sum(map(chunk_size, before.values()))


def test_all_operators_that_are_taken_for_it_are_called_here() -> None:
    called = {ir.serde.deserialize_model(model_of(*call)).graph[-1].op_type for call in CALLS.values()}
    assert called >= OUTPUTS_FIRST


def test_of_what_is_not_known_nothing_is_told() -> None:
    """A body of control flow asks for what it pleases, and four operands are joined in another order than three."""
    model = model_of("Sum (m, a, a, a)", MAPS, f"{MAPS} a")
    assert Mark.OUTPUTS not in CPU.pieces(ir.serde.deserialize_model(model).graph[-1])
