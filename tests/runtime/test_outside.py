"""What `ckplan.operators.outside` says of onnxruntime's kernels, asked of the heap meter, each kernel alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ckplan.isolation.arrays import save_arrays
from ckplan.meter import measure
from ckplan.meter.running.process import run_job
from ckplan.runtime.cpu import CPU

ROWS, WIDTH = 2000, 64
TABLE = np.ones((ROWS, WIDTH), np.float32)
ELEMENTS = np.zeros((ROWS, WIDTH), np.int64)
TUPLES = np.zeros((ROWS, 1), np.int64)
IMAGES = np.arange(8 * 16 * 32 * 32, dtype=np.float32).reshape(8, 16, 32, 32)
GRID = np.random.default_rng(0).uniform(-1, 1, (8, 40, 50, 2)).astype(np.float32)
VOLUME = np.random.default_rng(0).uniform(-1, 1, (8, 16, 8, 8, 16)).astype(np.float32)
SMALL = 16 * 1024
"""What the heap holds of a run beside values: frames, the interpreter."""

CASES: dict[str, tuple[str, list[np.ndarray], dict[str, Any], int]] = {
    "elements put": ("ScatterElements", [TABLE, ELEMENTS, TABLE], {}, ELEMENTS.nbytes),
    "elements added": (
        "ScatterElements",
        [TABLE, ELEMENTS.astype(np.int32), TABLE],
        {"reduction": "add"},
        8 * TABLE.size,
    ),
    "rows put": ("ScatterND", [TABLE, TUPLES, TABLE], {}, 8 * ROWS),
    "rows read": ("GatherND", [TABLE, TUPLES], {}, 8 * ROWS),
    "elements read": ("GatherElements", [TABLE, ELEMENTS], {}, 0),
    "slices read": ("Gather", [TABLE, TUPLES], {}, 0),
    "ones": ("OneHot", [ELEMENTS, np.array(3), np.array([0, 1], np.float32)], {}, ELEMENTS.nbytes),
    "sampled": ("GridSample", [IMAGES, GRID], {}, 56 * 40 * 50),
    "sampled in double precision": ("GridSample", [IMAGES.astype(float), GRID.astype(float)], {}, 72 * 40 * 50),
    "sampled beyond the border": ("GridSample", [IMAGES, GRID], {"padding_mode": "border"}, 0),
    "sampled by cubes": ("GridSample", [IMAGES, GRID], {"mode": "cubic"}, 0),
    "sampled in a volume": ("GridSample", [VOLUME, np.zeros((8, 4, 20, 25, 3), np.float32)], {}, 0),
    "unpooled": ("MaxUnpool", [IMAGES, IMAGES.astype(np.int64)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 0),
}


def model_of(op_type: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one node, whose inputs are all fed."""
    names = [f"x{place}" for place in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(op_type, names, ["y"], name="probed", **attributes)
    graph = helper.make_graph([node], "probe", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("case", CASES)
def test_is_what_the_heap_shows(case: str, tmp_path: Path) -> None:
    op_type, arrays, attributes, expected = CASES[case]
    model = model_of(op_type, arrays, attributes)
    onnx.save(model, tmp_path / "probe.onnx")
    save_arrays(tmp_path / "inputs", {f"x{place}": array for place, array in enumerate(arrays)})
    request = {"path": str(tmp_path / "probe.onnx"), "inputs": str(tmp_path / "inputs"), "device": "cpu", "threads": 1}
    seen = run_job("ckplan.meter.memory.heap", request)["activations"]
    (node,) = ir.serde.deserialize_model(model).graph
    assert CPU.outside(node) == expected
    assert CPU.workspace(node, 1) == 0
    assert expected <= seen <= expected + SMALL
    found = measure(tmp_path / "probe.onnx", device="cpu", runs=1, threads=1, heap=False)
    assert found.peak_activations == expected
