"""How the gradients of a value with many readers are summed: as they come (eagerly), or all at the end (lazily).

Eagerly there is one running sum: each new gradient is added to it and goes. Lazily all gradients wait for one n-ary
``Sum``. The numbers are the same bit for bit, since onnxruntime's Sum adds in the order of its inputs. Memory is not:
a value with n readers keeps up to n gradients waiting, and Sum works in one more tensor of that size. Waiting costs
nothing where the gradients are there anyway, because other nodes still have to read them: then it is the running sum
that takes one tensor more. Time hardly differs. ``docs/gradients.md`` has figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import onnx_ir as ir

from ckplan.arguments import check_word
from ckplan.autodiff.builder import FORWARD, Builder
from ckplan.keys import PHASE
from ckplan.model.node_reads import reads

Accumulation = Literal["auto", "eager", "lazy"]

_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class Chain:
    """A running sum of at least three gradients.

    Attributes:
        parts: the gradients, in the order in which they come.
        adds: the Adds, one less.
    """

    parts: tuple[ir.Value, ...]
    adds: tuple[ir.Node, ...]


def settle_sums(op: Builder, mode: Accumulation) -> None:
    """Turn running sums into n-ary ones, all of them or where that takes no more memory.

    Args:
        op: builder of the graph; ``op.sums`` lists the running sums.
        mode: ``eager`` leaves them, ``lazy`` turns all, ``auto`` those that at no step hold fewer bytes, in the order
            of the graph, than their gradients would while waiting.

    Raises:
        UsageError: there is no such mode.
    """
    check_word("the accumulation", mode, get_args(Accumulation))
    chains = [] if mode == "eager" else _chains(op.sums)
    if not chains:
        return
    readers = _readers(op.graph) if mode == "auto" else {}
    place = {node: position for position, node in enumerate(op.graph)}
    for chain in chains:
        if mode == "lazy" or _waits_for_free(chain, place, readers):
            _join(op, chain)


def _chains(sums: Iterable[ir.Value]) -> list[Chain]:
    """Find the runs of Adds of which each is read by the next one alone."""
    adds = {value: node for value in sums if (node := value.producer()) is not None and node.graph is not None}
    before = {node.inputs[0]: node for node in adds.values()}
    continued = {
        value: before[value]
        for value in adds
        if value in before and len(value.uses()) == 1 and not value.is_graph_output()
    }
    chains = []
    for value, node in adds.items():
        if node.inputs[0] in continued:
            continue
        run = [node]
        while value in continued:
            run.append(continued[value])
            value = run[-1].outputs[0]
        parts = [part for part in (run[0].inputs[0], *(add.inputs[1] for add in run)) if part is not None]
        if len(parts) > 2:
            chains.append(Chain(tuple(parts), tuple(run)))
    return chains


def _root(value: ir.Value) -> ir.Value:
    """Return the value whose memory a value is a view of."""
    while (node := value.producer()) is not None and node.op_type in _VIEWS and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _readers(graph: ir.Graph) -> dict[ir.Value, list[tuple[int, ir.Node | None]]]:
    """Return who reads each buffer, and at which step; None reads the outputs of the graph, at its end."""
    readers: dict[ir.Value, list[tuple[int, ir.Node | None]]] = {}
    for position, node in enumerate(graph):
        if node.op_type not in _VIEWS:
            for value in reads(node):
                readers.setdefault(_root(value), []).append((position, node))
    for value in graph.outputs:
        readers.setdefault(value, []).append((len(graph), None))
    return readers


def _waits_for_free(
    chain: Chain, place: Mapping[ir.Node, int], readers: Mapping[ir.Value, Sequence[tuple[int, ir.Node | None]]]
) -> bool:
    """Say whether waiting gradients take no more memory at any step than the running sum would.

    What other nodes keep alive is counted for neither. All tensors are of one size, so counting them is enough.
    """
    steps = [place[add] for add in chain.adds]
    end = steps[-1]
    adds = set(chain.adds)
    made: dict[ir.Value, int] = {}
    kept: dict[ir.Value, int] = {}  # last step at which another node needs it
    consumed: dict[ir.Value, int] = {}  # step of the Add
    for part, step in zip(chain.parts, [steps[0], *steps], strict=True):
        root = _root(part)
        maker = root.producer()
        made[root] = -1 if maker is None else place[maker]
        others = [position for position, node in readers.get(root, ()) if node not in adds]
        kept[root] = max(others, default=-1)
        consumed[root] = step
    changes = {*steps, *made.values(), *(step + 1 for step in kept.values())}
    for step in sorted(step for step in changes if steps[0] <= step <= end):
        free = [root for root in made if made[root] <= step and kept[root] < step]
        eager = sum(consumed[root] >= step for root in free)
        eager += sum(first <= step <= second for first, second in zip(steps, [*steps[1:], end], strict=True))
        lazy = len(free) + (2 if step == end else 0)  # the result and the workspace of Sum
        if lazy > eager:
            return False
    return True


def _join(op: Builder, chain: Chain) -> None:
    """Put one Sum in the place of a chain's last Add."""
    last = chain.adds[-1]
    result = ir.Value(name=last.outputs[0].name, type=last.outputs[0].type, shape=last.outputs[0].shape)
    node = ir.node("Sum", chain.parts, outputs=[result], name=last.name, metadata_props={PHASE: "backward"})
    node.meta[FORWARD] = last.meta.get(FORWARD)
    op.graph.insert_before(last, node)
    last.outputs[0].replace_all_uses_with(result, replace_graph_outputs=True)
    op.graph.remove(list(reversed(chain.adds)), safe=True)
