"""Planning problems as files: our own JSON, published formats, and the measures that published tables use."""

from __future__ import annotations

from ckplan.planner.instances.kusumoto import parse_kusumoto
from ckplan.planner.instances.load import SUFFIXES, load_problem
from ckplan.planner.instances.node_link import parse_node_link
from ckplan.planner.instances.problem_json import problem_from_json, problem_to_json
from ckplan.planner.instances.reference import forward_cost, forward_overhead, naive_bytes

__all__ = [
    "SUFFIXES",
    "forward_cost",
    "forward_overhead",
    "load_problem",
    "naive_bytes",
    "parse_kusumoto",
    "parse_node_link",
    "problem_from_json",
    "problem_to_json",
]
