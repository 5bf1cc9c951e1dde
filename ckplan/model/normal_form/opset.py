"""Bring a model to the opset that the gradient rules are written for, without touching the weights' data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx_ir as ir

from ckplan.display import one_line
from ckplan.errors import ModelError
from ckplan.isolation.evaluate import MEMORY, SECONDS, EvaluationError, evaluate
from ckplan.isolation.folders import no_room, temporary_folder
from ckplan.keys import CONSTANT
from ckplan.model.normal_form.converted import mark_versions, put_right
from ckplan.model.normal_form.function_constants import share_constants
from ckplan.model.normal_form.function_opsets import level_functions, refusal_of_several
from ckplan.model.normal_form.generators import NEWEST_GENERATORS, is_generator
from ckplan.model.validity import check_calls
from ckplan.operators.gradients import find
from ckplan.operators.matching import is_op
from ckplan.operators.sessions import clean

if TYPE_CHECKING:
    import onnx

MINIMUM_OPSET = 21
CONVERTED = "attribute of an older operator set"
"""Origin of the constants that stand for attributes which are inputs since, such as the bounds of a Clip."""
MINIMUM_IR_VERSION = 10
NEWEST_IR_VERSION = 13
"""The newest that onnxruntime 1.31 loads. Later ones add only types of which it has no kernel."""
NEWEST_OPSET = 26
"""The newest that onnxruntime 1.31 loads; a model that needs no newer one is labelled with it."""
_POOLS_OPSET = 22
"""Since this opset ONNX tells the size of a pool's results as onnxruntime does, if it is rounded up."""
_POOLS = ("AveragePool", "LpPool", "MaxPool")
EXPORT_AGAIN = "the exporter wrote it so: export it again with another version of it, or to another opset"
"""What to do about a file that no size of its inputs makes valid."""
_SCAN_OPSET = 9
_UNCHANGED_OPSET = 18
_CHANGED = ("DFT", "GridSample", "GroupNormalization")
"""From that opset to 21 only these operators came to read or to mean something else. All others mean what they meant;
some have got more types and options."""
_TRAINING_MODE_OPSET = 14
"""Since this opset BatchNormalization has an attribute that says whether it is in training form."""
# Small initializers stay in the proto: the converter's adapters read some of them (axes, scales, ratios).
_KEEP_BYTES = 1024


def lift(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """Inline local functions, raise the default opset to at least 21, and label an IR version that onnxruntime loads.

    A function that has a gradient rule stays one node, and stays among the model's functions with those that it calls,
    so that the rule finds it; `ckplan.autodiff.inline.inline_functions` puts its body in its place.

    The weights do not pass through the converter: they go as typed graph inputs and are put back by name, so that
    models above protobuf's 2 GB are converted too and external data stays where it is.

    Args:
        model: weights in the main graph's initializers, none of which is a graph input. Left in an unspecified state.

    Returns:
        The lifted model, and notes.

    Raises:
        ModelError: an operator of an old opset has no counterpart.
    """
    _name_standard_operators(model)
    version = model.graph.opset_imports.get("", 0)
    if version >= MINIMUM_OPSET and not model.functions:
        mark_versions(model)
        put_right(model)
        _label_for_pools(model)
        model.ir_version = _loadable_ir_version(model)
        return model, relabel(model)
    check_calls(model)
    _write_defaults(model)
    _refuse_batched_scans(model, version)
    own = _with_rules(model)
    inlined = len(model.functions) - len(own)
    for identifier in own:
        del model.functions[identifier]
    share_constants(model)
    level_functions(model)
    mark_versions(model)
    lifted = model if _means_the_same(model, version) else _through_proto(model, version)
    if lifted is model:
        _label(model.graph, MINIMUM_OPSET)
    lifted.functions.update(own)
    put_right(lifted)
    _label_for_pools(lifted)
    lifted.ir_version = _loadable_ir_version(model)
    lifted.producer_name, lifted.producer_version = model.producer_name, model.producer_version
    lifted.metadata_props.update(model.metadata_props)
    lifted.graph.metadata_props.update(model.graph.metadata_props)
    notes = []
    if inlined:
        notes.append(f"{inlined} local function(s) inlined")
    if version < MINIMUM_OPSET:
        notes.append(f"converted from opset {version} to {lifted.graph.opset_imports['']}")
    return lifted, tuple(notes)


def _loadable_ir_version(model: ir.Model) -> int:
    """The IR version of a model, or the nearest to it that we write and onnxruntime loads."""
    return min(max(model.ir_version or 0, MINIMUM_IR_VERSION), NEWEST_IR_VERSION)


def _write_defaults(model: ir.Model) -> None:
    """Give each call of a function the attributes that it leaves to its defaults: onnx's inliner does not."""
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for node in scope.all_nodes():
            called = model.functions.get(node.op_identifier())
            for name, default in called.attributes.items() if called is not None else ():
                if default.value is not None and name not in node.attributes:
                    node.attributes[name] = default


def _refuse_batched_scans(model: ir.Model, version: int) -> None:
    called = (node for function in model.functions.values() for node in function.all_nodes())
    for node in (*model.graph.all_nodes(), *called) if version < _SCAN_OPSET else ():
        if is_op(node, "Scan"):
            raise ModelError(
                f"Scan '{node.name}' of opset {version} has a batch axis, which Scan no longer has from opset 9 on",
                "export the model with opset 9 or newer",
            )


def _with_rules(model: ir.Model) -> dict[ir.OperatorIdentifier, ir.Function]:
    """The functions of a model that a gradient rule is registered for, and those that they call."""
    imports = model.graph.opset_imports
    pending = [key for key in model.functions if find(key[1], imports.get(key[0], 1), key[0]) is not None]
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    while pending:
        key = pending.pop()
        if key in model.functions and key not in found:
            found[key] = model.functions[key]
            pending.extend(node.op_identifier() for node in found[key].all_nodes())
    return found


def relabel(model: ir.Model) -> tuple[str, ...]:
    """Label a model with the newest operator set that onnxruntime loads if it needs no newer one, in place.

    Returns:
        Notes; empty when the label stays.
    """
    version = model.graph.opset_imports.get("", MINIMUM_OPSET)
    if version <= NEWEST_OPSET or not _fits(model, NEWEST_OPSET):
        return ()
    _label(model.graph, NEWEST_OPSET)
    return (f"labelled opset {NEWEST_OPSET}, since nothing in it needs {version}",)


def _label_for_pools(model: ir.Model) -> None:
    """Label a model with the opset whose inference is right for its pools; the two differ in nothing else but types."""
    nodes = (node for node in model.graph.all_nodes() if is_op(node, _POOLS))
    if any(node.attributes.get_int("ceil_mode", 0) for node in nodes):
        raise_opset(model.graph, _POOLS_OPSET)


def may_raise(graph: ir.Graph, functions: Iterable[ir.Function], version: int) -> bool:
    """Whether onnxruntime has a kernel of all that a graph holds when it is labelled with a version.

    Args:
        graph: the main graph.
        functions: those that its nodes call.
        version: of the default operator set.
    """
    scopes: tuple[ir.Graph | ir.Function, ...] = (graph, *functions)
    return version <= NEWEST_GENERATORS or not any(is_generator(node) for one in scopes for node in one.all_nodes())


def raise_opset(graph: ir.Graph, version: int) -> None:
    """Label a graph with an operator set of at least a version, and the graphs inside of it, in place.

    From `MINIMUM_OPSET` on, no operator that is there has come to read or to mean something else.
    """
    if graph.opset_imports.get("", MINIMUM_OPSET) < version:
        _label(graph, version)


def _name_standard_operators(model: ir.Model) -> None:
    """Import ONNX's own operators by the empty name, where a file calls them ``ai.onnx``."""
    importing = [graph.opset_imports for graph in (model.graph, *model.graph.subgraphs())]
    importing += [function.opset_imports for function in model.functions.values()]
    for imports in importing:
        if (version := imports.pop("ai.onnx", None)) is not None:
            imports.setdefault("", version)


def _label(graph: ir.Graph, version: int) -> None:
    for one in (graph, *graph.subgraphs()):
        one.opset_imports[""] = version


def _fits(model: ir.Model, version: int) -> bool:
    """Say whether an older opset has every operator of a model, with the attributes that the model gives it."""
    import onnx

    for node in model.graph.all_nodes():
        if node.domain in ("", "ai.onnx"):
            try:
                schema = onnx.defs.get_schema(node.op_type, version)
            except onnx.defs.SchemaError:
                return False
            if not set(node.attributes) <= set(schema.attributes):
                return False
    return True


def _means_the_same(model: ir.Model, version: int) -> bool:
    """Whether a model means the same under the label of opset 21, so that it need not pass the converter.

    Whatever is unknown in its own opset is the converter's to refuse.
    """
    if version < _UNCHANGED_OPSET or model.functions or _unknown_operator(model, version):
        return False
    return not any(node.op_type in _CHANGED for node in model.graph.all_nodes())


def _through_proto(model: ir.Model, version: int) -> ir.Model:
    import onnx

    graph = model.graph
    real_inputs = len(graph.inputs)
    weights = {name: value for name, value in graph.initializers.items() if not _must_pass(value)}
    for name, value in weights.items():
        graph.inputs.append(value)
        del graph.initializers[name]
    model.ir_version = max(model.ir_version or 0, 4)  # from IR 4 on, an initializer need not be an input
    proto = ir.to_proto(model)
    if "" not in graph.opset_imports:
        proto.opset_import.append(onnx.helper.make_opsetid("", MINIMUM_OPSET))
        version = MINIMUM_OPSET
    training = _trim_training_form(proto) if version < _TRAINING_MODE_OPSET else set()
    try:
        proto = _converted(proto, bool(model.functions), version)
    except EvaluationError as error:
        if unknown := _unknown_operator(model, version) or _unknown_domain(model):
            raise ModelError(f"the file is not valid: {unknown}", EXPORT_AGAIN) from error
        reason = clean(str(error))[:300]
        raise refusal_of_several(model, reason) or ModelError(
            f"the model cannot be converted from opset {version} to {MINIMUM_OPSET} ({reason})",
            f"export it with opset {MINIMUM_OPSET} or newer",
        ) from error
    try:
        lifted = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        if refusal := refusal_of_several(model, one_line(error)):
            raise refusal from error
        raise
    _hand_on_marks(graph, lifted.graph)
    if not model.functions:  # bodies that were inlined have constants of their own
        for node in lifted.graph.all_nodes():
            if node.op_type == "Constant":
                node.metadata_props[CONSTANT] = CONVERTED
    for node in lifted.graph:
        if node.outputs and node.outputs[0].name in training:
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    placeholders = lifted.graph.inputs[real_inputs:]
    del lifted.graph.inputs[real_inputs:]
    for placeholder in placeholders:
        source = weights[placeholder.name or ""]
        placeholder.const_value = source.const_value
        placeholder.metadata_props.update(source.metadata_props)
        lifted.graph.register_initializer(placeholder)
    for name, value in lifted.graph.initializers.items():
        if name in graph.initializers:
            value.metadata_props.update(graph.initializers[name].metadata_props)
    return lifted


def _hand_on_marks(old: ir.Graph, new: ir.Graph) -> None:
    """Hand on what nodes bear, of which the converter writes nothing: where gradients stop, padding rows, lines.

    Nodes are the same that are of one operator and make a value of one name.
    """
    bearers = {node.outputs[0].name: node for node in old if node.outputs and node.metadata_props}
    for node in new:
        bearer = bearers.get(node.outputs[0].name) if node.outputs else None
        if bearer is not None and bearer.op_identifier() == node.op_identifier():
            node.metadata_props.update(bearer.metadata_props)


def _converted(proto: onnx.ModelProto, inline: bool, version: int) -> onnx.ModelProto:
    """Inline and convert in another process: onnx's converter takes attributes for what they should be, and crashes."""
    content = proto.SerializeToString()
    with temporary_folder() as folder:
        source, target = folder / "old.onnx", folder / "new.onnx"
        try:
            source.write_bytes(content)
        except OSError as error:
            raise no_room(error) from error
        evaluate(
            "convert",
            memory=MEMORY + 20 * len(content),
            seconds=SECONDS + len(proto.graph.node) / 50,
            source=str(source),
            target=str(target),
            inline=inline,
            version=MINIMUM_OPSET if version < MINIMUM_OPSET else None,
        )
        made = type(proto)()
        made.ParseFromString(target.read_bytes())
        return made


def _unknown_operator(model: ir.Model, version: int) -> str:
    """The first node of an operator that ONNX does not have in an opset, in words; empty if there is none."""
    import onnx

    for node in model.graph.all_nodes():
        local = any(name[:2] == (node.domain, node.op_type) for name in model.functions)
        if node.domain in ("", "ai.onnx") and not local and not onnx.defs.has(node.op_type, version, ""):
            return f"there is no operator {node.op_type} ('{node.name}') in opset {version}"
    return ""


def _unknown_domain(model: ir.Model) -> str:
    """The first node of a domain that the file does not import, in words; empty if there is none."""
    imported = {"", "ai.onnx", *model.graph.opset_imports, *(name[0] for name in model.functions)}
    found = next((node for node in model.graph.all_nodes() if node.domain not in imported), None)
    if found is None:
        return ""
    return f"{found.op_type} '{found.name}' is of domain {found.domain}, of which the file imports no opset"


def _trim_training_form(proto: onnx.ModelProto) -> set[str]:
    """Take from BatchNormalization in training form the outputs that opset 14 has no more, unless something reads them.

    Until then the number of outputs told training form (five) from inference form (one); the converter knows neither.

    Returns:
        Names of the first outputs of those nodes.
    """
    read = {name for node in proto.graph.node for name in node.input} | {value.name for value in proto.graph.output}
    found = set()
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization" and len(node.output) > 1 and read.isdisjoint(node.output[3:]):
            del node.output[3:]
            found.add(node.output[0])
    return found


def _must_pass(value: ir.Value) -> bool:
    """Whether an initializer goes through the converter.

    What lies in another file is read for that, since a proto does not know which folder its data file is in.
    """
    tensor = value.const_value
    if tensor is None or tensor.nbytes > _KEEP_BYTES:
        return False
    if isinstance(tensor, ir.ExternalTensor):
        if tensor.dtype.is_floating_point():
            return False
        value.const_value = ir.Tensor(tensor.numpy().copy(), name=tensor.name)
    return True
