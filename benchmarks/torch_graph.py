"""torch's graph of a training step as a planning problem, and what torch's partitioner makes of it as a schedule.

The joint graph of forward and backward pass is traced by AOTAutograd with fake tensors: shapes without memory. A
node is an op, as eager torch runs it; costs are those of a roofline with the rates that ckplan uses by default.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._functorch import config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.compile_utils import fx_graph_cse
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from ckplan.model.costs import seconds
from ckplan.operators.costs import Cost
from ckplan.planner import Problem
from ckplan.planner.problem import Kind, Op, Tensor


@dataclass(frozen=True)
class Traced:
    """A training step of torch.

    Attributes:
        problem: its ops, in the order in which eager torch runs them.
        partitioned: by budget, the schedule that torch's partitioner chooses.
    """

    problem: Problem
    partitioned: dict[float, list[int]]


def eager(build: Callable[[], nn.Module], feed: Callable[[], torch.Tensor]) -> Problem:
    """A training step op by op as eager torch runs it, checkpoints included; no op is marked as repeated."""
    with FakeTensorMode():
        network = build()
        parameters: dict[str, torch.Tensor] = dict(network.named_parameters())

        def step(values: dict[str, torch.Tensor], fed: torch.Tensor) -> Any:
            loss = torch.func.functional_call(network, values, (fed,))
            return loss, *torch.autograd.grad(loss, list(values.values()))

        graph = make_fx(step)(parameters, feed()).graph
    graph.eliminate_dead_code()
    return _problem(graph, again=True)[1]


def trace(build: Callable[[], nn.Module], feed: Callable[[], torch.Tensor], budgets: Sequence[float]) -> Traced:
    """Trace a network's training step and have torch partition it; its loss is what the network returns.

    Args:
        build: makes the network.
        feed: makes what it is fed.
        budgets: values of ``activation_memory_budget`` at which torch is asked to partition the step.
    """
    found: list[Traced] = []

    def partition(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        joint = fx.GraphModule(joint, fx_graph_cse(joint.graph))  # as the partitioner itself does
        joint.graph.eliminate_dead_code()
        names, problem = _problem(joint.graph, again=False)
        schedules = {}
        for budget in budgets:
            with config.patch(activation_memory_budget=budget):
                parts = min_cut_rematerialization_partition(
                    copy.deepcopy(joint), inputs, num_fwd_outputs=num_fwd_outputs, **rest
                )
            # A saved tensor enters the backward graph as a placeholder of its own name; only calls run.
            called = [node.name for part in parts for node in part.graph.nodes if node.op == "call_function"]
            schedules[budget] = [names[name] for name in called if name in names]
        found.append(Traced(problem, schedules))
        return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **rest)

    with FakeTensorMode():
        network = build()
        parameters: dict[str, torch.Tensor] = dict(network.named_parameters())

        def step(values: dict[str, torch.Tensor], fed: torch.Tensor) -> Any:
            return torch.func.functional_call(network, values, (fed,))

        compiled = aot_function(step, lambda module, _: module, partition_fn=partition)
        compiled(parameters, feed())
    return found[0]


def _problem(graph: fx.Graph, again: bool) -> tuple[dict[str, int], Problem]:
    """The planning problem, and the op of each node by name.

    ``again``: the graph has repeats, so that its order stays as it is.

    What the loss depends on is the forward pass. Views of it that only the backward pass reads belong to it too, right
    after what they are views of, or else nothing that they are views of could be recomputed.
    """
    *nodes, last = graph.nodes
    returned = [node for node in pytree.tree_leaves(last.args) if isinstance(node, fx.Node)]
    ahead = _ancestors(returned[0])
    place: dict[fx.Node, int] = {}
    for index, node in enumerate(nodes):
        early = node.op == "placeholder" or node in ahead
        if not early and (_is_view(node) or node.target is operator.getitem) and not again:
            source = node.all_input_nodes[0]
            if source in ahead:
                ahead.add(node)
                place[node] = place[source]
                continue
        place[node] = index if early or again else len(nodes) + index
    nodes.sort(key=place.__getitem__)
    tensors: list[Tensor] = []
    ids: dict[fx.Node, int] = {}
    root: dict[int, int] = {}
    ops: list[Op] = []
    names: dict[str, int] = {}

    def add(node: fx.Node, value: torch.Tensor, kind: Kind = Kind.ACTIVATION) -> int:
        ids[node] = len(tensors)
        root[ids[node]] = ids[node]
        tensors.append(Tensor(node.name, value.numel() * value.element_size(), kind))
        return ids[node]

    for node in nodes:
        if node.op == "placeholder":
            add(node, node.meta["val"], Kind.PARAMETER)
        elif node.op == "call_function" and node.target is not operator.getitem:
            value = node.meta["val"]
            several = isinstance(value, (list, tuple))
            parts = [user for user in node.users if user.target is operator.getitem] if several else [node]
            outputs = [add(part, part.meta["val"]) for part in parts]
            inputs = tuple(ids[source] for source in node.all_input_nodes)
            views = {}
            if _is_view(node):
                views = dict.fromkeys(outputs, inputs[0])
                root.update((view, root[inputs[0]]) for view in outputs)
            names[node.name] = len(ops)
            cost = 0.0 if views else _seconds(node)
            heavy = getattr(node.target, "overloadpacket", None) in flop_registry
            ops.append(Op(node.name, inputs, tuple(outputs), cost, 0, node not in ahead, heavy=heavy, views=views))
    # What is returned is held by its memory, whatever view of it is returned; it counts as no activation.
    for node in returned:
        base = root[ids[node]]
        if tensors[base].kind is Kind.ACTIVATION:
            tensors[base] = Tensor(tensors[base].name, tensors[base].bytes, Kind.OUTPUT)
    return names, Problem(tuple(ops), tuple(tensors))


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found = {node}
    stack = [node]
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                stack.append(source)
    return found


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _seconds(node: fx.Node) -> float:
    """Time of a node by the roofline: arithmetic of products and convolutions, memory traffic of all."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    value = node.meta["val"]
    made = [part for part in (value if isinstance(value, (list, tuple)) else [value]) if part is not None]
    touched = [*(source.meta["val"] for source in node.all_input_nodes), *made]
    traffic = sum(part.numel() * part.element_size() for part in touched if isinstance(part, torch.Tensor))
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    flops = count(*args, **kwargs, out_val=value) if count else sum(part.numel() for part in made)
    return seconds(Cost(int(flops), traffic))
