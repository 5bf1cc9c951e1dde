"""Files as torch's default exporter writes them, with what it notes of parameters, buffers and lines."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

import ckplan
from ckplan.model.loading import normalise
from tests.model.models import normal, parse

LINE = "pkg.torch.onnx.fx_node"
PREFIX = "pkg.torch.export"


def exported(
    nodes: str, arrays: dict[str, np.ndarray], operands: dict[str, tuple[str, str]], lines: list[str]
) -> onnx.ModelProto:
    """A file as torch writes it.

    Args:
        nodes: the graph in ONNX's text form, from x to y.
        arrays: initializers.
        operands: name in the program -> kind and target in the module; an initializer of that target is this operand.
        lines: of each node, the line of the program that it was made of.
    """
    nodes = re.sub(r"\w+(\.\w+)+", r'"\g<0>"', nodes)  # as the text form has names with dots
    model = parse(f'<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y) {{ {nodes} }}', arrays)
    model.producer_name = "pytorch"
    listed = "".join(f"{name}: {kind} target='{target}'\n" for name, (kind, target) in operands.items())
    model.graph.metadata_props.add(
        key=f"{PREFIX}.ExportedProgram.graph_signature", value=f"\n# inputs\n{listed}x: USER_INPUT"
    )
    for node, line in zip(model.graph.node, lines, strict=True):
        node.metadata_props.add(key=LINE, value=f"%made : [num_users=1] = call_function[target={line}")
    for name, (kind, target) in operands.items():
        if target in arrays:
            info = onnx.helper.make_tensor_value_info(target, onnx.TensorProto.FLOAT, arrays[target].shape)
            info.metadata_props.add(key=f"{PREFIX}.graph_signature.InputSpec.kind", value=kind)
            info.metadata_props.add(key="pkg.torch.onnx.original_node_name", value=name)
            model.graph.value_info.append(info)
    return model


def in_modules(
    nodes: str, lines: list[str], modules: list[str], arrays: dict[str, np.ndarray], listed: tuple[str, ...]
) -> onnx.ModelProto:
    """A file as torch writes it of several modules.

    Args:
        nodes: the graph in ONNX's text form, from x to y.
        lines: of each node, the line of the program that it was made of; empty for what has none.
        modules: that each was made in.
        arrays: initializers.
        listed: the names in the module of the parameters of the program, in its order.
    """
    made = exported(nodes, arrays, {f"p_{name.replace('.', '_')}": ("PARAMETER", name) for name in listed}, lines)
    for node, line, module in zip(made.graph.node, lines, modules, strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', 'node']")
        for metadata in [one for one in node.metadata_props if one.key == LINE and not line]:
            node.metadata_props.remove(metadata)
    return made


def gradients(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The gradients of a mean squared error, by the names of parameters."""
    step = ckplan.open_model(model, loss="mse")
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    names = step.training.gradients
    found = session.run(list(names.values()), {"x": normal(1, 2, 4), "target": normal(2, 2, 4)})
    return dict(zip(names, found, strict=True))


def loaded(model: onnx.ModelProto) -> tuple[ir.Model, str]:
    forward = normalise(ir.from_proto(model))
    return forward.model, " ".join(forward.notes)


def recurrent(state: np.ndarray, states: str, operands: dict[str, str], name: str = "val_4") -> onnx.ModelProto:
    """An LSTM over one step of two samples.

    Args:
        state: what it begins with.
        states: the names of its states in the program.
        operands: names of parameters in the program beside the weights -> in the module.
        name: of the state in the file.
    """
    leaves = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = ", ".join(f"%p_{leaf}" for leaf in leaves)
    return exported(
        f"s = Unsqueeze(x, one) h = LSTM<hidden_size=4>(s, val_1, val_2, val_3, , {name}, {name}) y = Squeeze(h, both)",
        {
            "val_1": normal(0, 1, 16, 4),
            "val_2": normal(1, 1, 16, 4),
            "val_3": normal(2, 1, 32),
            name: state,
            "one": np.array([0]),
            "both": np.array([0, 1]),
        },
        {f"p_{leaf}": ("PARAMETER", f"r.{leaf}") for leaf in leaves}
        | {operand: ("PARAMETER", target) for operand, target in operands.items()},
        [
            "aten.unsqueeze](args = (%x, 0))",
            f"aten.lstm.input](args = (%unsqueeze, [{states}], [{weights}], True, 1, 0.0), kwargs = {{}})",
            "aten.squeeze](args = (%lstm, 1))",
        ],
    )


FOLDED = "pkg.onnxscript.optimizer.folded_from"


def add_source(model: onnx.ModelProto, name: str, source: str, *others: str) -> None:
    """Say of an initializer what it was computed of, and by which operations, as torch's optimiser does."""
    (array,) = [one for one in model.graph.initializer if one.name == name]
    info = onnx.helper.make_tensor_value_info(name, array.data_type, list(array.dims))
    info.metadata_props.add(key=FOLDED, value=repr([source, *(others or ["mul_3"])]))
    model.graph.value_info.append(info)
