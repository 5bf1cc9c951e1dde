"""What installed packages add through entry points, and what is said when they cannot be loaded."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import onnx
import onnx_ir as ir
import pytest

from ckplan import build_training_graph, extensions
from ckplan.autodiff.registry import collect, lookup
from ckplan.errors import EnvironmentUnavailableError, UsageError
from ckplan.meter.memory import meters
from ckplan.model.costs import node_cost
from ckplan.operators import gradients, table
from ckplan.operators.record import Operator
from ckplan.planner import strategies
from ckplan.planner.strategies import parse_strategy
from ckplan.planner.strategies.keep_all import KeepAll
from ckplan.report import writers
from ckplan.report.document import Document
from tests.planner.problems import chain

RULES = """
from ckplan import rule

@rule("Fancy", domain="my.ops")
def fancy(op, node, dy):
    return [op.Mul(dy[0], 2.0)]
"""
STRATEGY = """
from dataclasses import dataclass
from typing import ClassVar
from ckplan.planner.strategies import Strategy

@dataclass(frozen=True)
class Twice(Strategy):
    name: ClassVar[str] = "twice"
    times: int = 2

    def schedules(self, problem):
        yield range(len(problem.ops))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `added` with a distribution beside it, as pip leaves one, on the path for the time of a test."""

    def install(source, group, entry):
        (tmp_path / "added.py").write_text(source, encoding="utf-8")
        info = tmp_path / "added-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        extensions.load_group.cache_clear()

    collect()
    monkeypatch.setattr(gradients, "_RULES", {key: list(found) for key, found in gradients._RULES.items()})
    yield install
    extensions.load_group.cache_clear()
    sys.modules.pop("added", None)


def test_rules_of_an_installed_package(package):
    assert lookup("Fancy", 1, "my.ops") is None
    package(RULES, gradients.GROUP, "fancy = added")
    assert lookup("Fancy", 1, "my.ops") is not None
    assert "Fancy" in {entry.op_type for entry in gradients.entries()}


def test_strategies_of_an_installed_package(package):
    package(STRATEGY, strategies.GROUP, "twice = added:Twice")
    assert str(parse_strategy("twice:times=3")) == "twice:times=3"
    assert [kind.name for kind in strategies.strategies()][-1] == "twice"


def test_a_registered_strategy(monkeypatch):
    monkeypatch.setattr(strategies, "_OTHERS", [])

    @strategies.register_strategy
    class AsItIs(KeepAll):
        """Nothing is recomputed."""

        name = "as-it-is"

    assert isinstance(parse_strategy("as-it-is"), AsItIs)
    with pytest.raises(UsageError, match="two strategies are called `as-it-is`"):
        strategies.register_strategy(AsItIs)


@pytest.mark.parametrize(
    ("module", "group"), [(strategies, strategies.GROUP), (meters, meters.GROUP), (writers, writers.GROUP)]
)
def test_what_is_of_another_kind_is_named_with_its_package(package, module, group):
    package("number = 3\n", group, "mine = added:number")
    with pytest.raises(EnvironmentUnavailableError, match=r"`added:number`, which added registers .* is 3; give a "):
        module.writer("mine") if module is writers else getattr(module, module.__name__.split(".")[-1])()


def test_what_has_the_name_of_something_of_ckplans_is_named(package):
    package(STRATEGY.replace('"twice"', '"auto"'), strategies.GROUP, "twice = added:Twice")
    with pytest.raises(EnvironmentUnavailableError, match=r"which added registers .*two strategies are called `auto`"):
        strategies.strategies()


def test_what_cannot_be_loaded_is_named(package):
    package("import nothing_of_this_name\n", gradients.GROUP, "broken = added")
    with pytest.raises(
        EnvironmentUnavailableError, match=r"`added`, which added registers as `broken`.*uninstall added"
    ):
        lookup("Fancy", 1, "my.ops")


def test_an_entry_point_without_a_distribution_is_named_too():
    point = EntryPoint(name="gone", value="gone_module", group="ckplan.rules")
    with pytest.raises(EnvironmentUnavailableError, match="an installed package registers as `gone`"):
        extensions._loaded(point, None)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("[]", "0 gradients for 1 inputs"),
        ("None", "'NoneType' object is not iterable"),
        ("[dy[0], dy[0]]", "returns more gradients than there are inputs"),
        ("[op.ReduceSum(dy[0], keepdims=0)]", r"the gradient of 'x' is FLOAT\[\], not \[2\]"),
        ("[1 / 0]", "division by zero"),
    ],
)
def test_a_rule_of_others_that_fails_is_named_with_the_node(package, returned, said):
    """One that returned too few gradients left parameters without one in silence."""
    package(RULES.replace("[op.Mul(dy[0], 2.0)]", returned), gradients.GROUP, "fancy = added")
    text = """<ir_version: 10, opset_import: ["" : 21, "my.ops" : 1]> m (float[2] x) => (float[2] y)
    { y = my.ops.Fancy(x) } <domain: "my.ops", opset_import: ["" : 21]> Fancy (a) => (b) { b = Add(a, a) }"""
    with pytest.raises(EnvironmentUnavailableError, match=rf"the gradient rule of Fancy 'node' fails .*{said}"):
        build_training_graph(onnx.parser.parse_model(text), loss="sum", wrt=["x"])


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ("iter(())", "it offers no schedule"),
        ("iter([range(1)])", "never run"),
        ("iter([[*range(len(problem.ops)), -1]])", "there is no op -1"),
        ("1 / 0", "division by zero"),
    ],
)
def test_a_strategy_of_others_that_fails_is_named(package, offered, said):
    package(STRATEGY.replace("yield range(len(problem.ops))", f"return {offered}"), strategies.GROUP, "t = added:Twice")
    with pytest.raises(EnvironmentUnavailableError, match=rf"strategy `twice` fails .*{said}"):
        parse_strategy("twice").solve(chain(2))


@pytest.mark.parametrize(("made", "said"), [("1 / 0", "division by zero"), ("b'x'", "it makes bytes and no text")])
def test_a_format_of_others_that_fails_is_named(package, made, said):
    package(f"def titles(document):\n    return {made}\n", writers.GROUP, "titles = added:titles")
    with pytest.raises(EnvironmentUnavailableError, match=f"format `titles` fails .*{said}"):
        writers.writer("titles")(Document("", "", ()))


def test_a_record_of_others_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(table, "_OTHERS", {})
    table.register_operator(Operator("Fancy", "my.ops", cost=lambda node: 1 / 0))
    with pytest.raises(EnvironmentUnavailableError, match=r"`cost` in the record of my.ops::Fancy fails .*by zero"):
        node_cost(ir.node("Fancy", [], domain="my.ops"))
