"""Planning problems as files: our own JSON, published formats, and the measures that published tables use."""

from __future__ import annotations

from ckplan.plan.instances.kusumoto import parse_kusumoto
from ckplan.plan.instances.load import load_problem
from ckplan.plan.instances.node_link import parse_node_link
from ckplan.plan.instances.problem_json import problem_from_json, problem_to_json
from ckplan.plan.instances.reference import forward_cost, forward_overhead, naive_bytes

__all__ = [
    "forward_cost",
    "forward_overhead",
    "load_problem",
    "naive_bytes",
    "parse_kusumoto",
    "parse_node_link",
    "problem_from_json",
    "problem_to_json",
]
