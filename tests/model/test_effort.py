"""What folding would take is told before it starts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.effort import is_quick


def test_work_is_told_before_it_starts() -> None:
    def quick(op_type: str, *arrays: np.ndarray, **attributes: object) -> bool:
        values = [ir.Value(name=f"v{index}") for index in range(len(arrays))]
        return is_quick(ir.node(op_type, values, attributes), list(arrays))

    small, filled = np.ones((4, 4)), np.broadcast_to(np.float64(1), (1_000_000_000,))
    assert quick("NonZero", small)
    assert not quick("NonZero", filled)
    assert quick("Shrink", small)
    assert quick("MatMul", small, small)
    assert not quick("MatMul", np.ones((1000, 1000)), np.ones((1000, 1000)))
    assert quick("Einsum", np.ones(3), np.ones(5), equation="i,j->ij")
    assert not quick("Einsum", *[np.ones(64)] * 20, equation=",".join("abcdefghijklmnopqrst") + "->")
    assert not quick("MaxPool", small, pads=[1 << 40, 0], kernel_shape=[1])
