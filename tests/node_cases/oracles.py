"""Other implementations of gradients, asked about the same cases: torch's autograd and onnx-ad.

Both need packages of the extra ``oracle``; without them the answer says so.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ckplan.model.loading import normalise
from tests.node_cases.functions import by_onnxruntime, by_reference
from tests.node_cases.prepare import LOSS, Prepared

AGREES, DIFFERS = "agrees", "differs"
_EXACT, _SINGLE = 1e-6, 2e-3


def ask_torch(case: Prepared, gradients: Mapping[str, np.ndarray]) -> str:
    """Compare with torch's gradients in float64; say what came of it.

    Args:
        case: a gradient case.
        gradients: those to compare, by parameter.
    """
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    from tests.oracles.torch_oracle import torch_gradients

    model, names = _forward(case, gradients)
    try:
        _, theirs = torch_gradients(model, {}, LOSS, names)
    except NotImplementedError as error:
        return f"cannot: {error}"
    except Exception as error:  # torch refuses in many ways what it does not know
        return f"cannot: {_brief(error)}"
    return _verdict(case, gradients, theirs)


def ask_onnx_ad(case: Prepared, gradients: Mapping[str, np.ndarray]) -> str:
    """Compare with the gradients of onnx-ad's adjoint model; arguments and result as in `ask_torch`."""
    if importlib.util.find_spec("onnx_ad") is None:
        return "onnx-ad is not installed"
    import onnx_ad

    model, names = _forward(case, gradients)
    fed: dict[str, np.ndarray] = {}
    kept: list[onnx.TensorProto] = []
    for tensor in model.graph.initializer:
        if tensor.name in names:
            fed[tensor.name] = numpy_helper.to_array(tensor)
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            kept.append(tensor)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    kind = model.graph.output[0].type.tensor_type.elem_type
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adjoint = onnx_ad.reverse(
                model, inputs=names, outputs=[LOSS], prefix="adjoint_", dim="seeds", layout="onnx"
            )
        feeds = {**fed, f"adjoint_{LOSS}": np.ones((1,), helper.tensor_dtype_to_np_dtype(kind))}
        try:
            found = by_reference(adjoint)(feeds)
        except Exception:  # the evaluator does not know everything either
            found = by_onnxruntime(adjoint)(feeds)
    except Exception as error:
        return f"cannot: {_brief(error)}"
    outputs = dict(zip([output.name for output in adjoint.graph.output], found, strict=True))
    theirs = {name: np.asarray(outputs[f"adjoint_{name}"]) for name in names}
    # One seed, on an axis of its own at the end.
    return _verdict(case, gradients, {name: array[..., 0] for name, array in theirs.items()})


def _forward(case: Prepared, gradients: Mapping[str, np.ndarray]) -> tuple[onnx.ModelProto, list[str]]:
    model = ir.to_proto(normalise(ir.from_proto(case.model)).model)
    present = {tensor.name for tensor in model.graph.initializer}
    return model, [name for name in gradients if name in present]


def _verdict(case: Prepared, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> str:
    for name, array in theirs.items():
        wanted = ours[name].astype(np.float64)
        rtol = _EXACT if case.exact and ours[name].dtype == np.float64 else _SINGLE
        size = float(np.abs(wanted).max(initial=0.0)) + 1e-3
        if not np.isfinite(array).all():
            return f"cannot: its gradient of '{name}' is not finite"
        if array.shape != wanted.shape:
            return f"{DIFFERS} in the shape of the gradient of '{name}'"
        if not np.all(np.abs(array - wanted) <= rtol * size):
            return f"{DIFFERS} in the gradient of '{name}' by {np.abs(array - wanted).max():.2g} of {size:.2g}"
    return AGREES


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
