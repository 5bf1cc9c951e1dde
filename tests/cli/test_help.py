"""The command line is documented: every command, every option, and the README means them."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ckplan
from ckplan.cli import cli

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(cli.commands)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_commands_are_these() -> None:
    assert list(cli.list_commands(click.Context(cli))) == [
        "demo",
        "analyze",
        "pareto",
        "grad",
        "plan",
        "rewrite",
        "fit",
        "artifacts",
        "train",
        "export-weights",
        "explain",
        "report",
        "measure",
        "verify",
        "compare",
        "strategies",
        "ops",
        "doctor",
    ]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_answers_for_itself(name: str, flag: str) -> None:
    result = CliRunner().invoke(cli, [name, flag])
    assert result.exit_code == 0
    command = cli.commands[name]
    assert command.help
    assert command.get_short_help_str(limit=60) in CliRunner().invoke(cli, ["--help"]).output
    assert not command.get_short_help_str(limit=60).endswith("...")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    options = [parameter for parameter in cli.commands[name].params if isinstance(parameter, click.Option)]
    assert not [option.name for option in options if not option.help]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_talk_json_and_be_quiet(name: str) -> None:
    flags = {flag for parameter in cli.commands[name].params for flag in parameter.opts}
    assert {"--json", "--quiet", "--no-color", "--debug"} <= flags


def test_the_same_option_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for command in cli.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name not in {"strategies", "strategy"}:
                meanings.setdefault(parameter.opts[-1], set()).add(str(parameter.help))
    assert not {flag for flag, helps in meanings.items() if len(helps) > 1}


def test_version() -> None:
    result = CliRunner().invoke(cli, ["--version"], prog_name="ckplan")
    assert result.output == f"ckplan {ckplan.__version__}\n"


def test_version_and_metadata_agree() -> None:
    assert f'version = "{ckplan.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"## [{ckplan.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def command_lines(page: Path) -> list[str]:
    """Every `ckplan ...` in a fenced block or in backquotes of a page, continuation lines joined."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL)
    lines = [re.sub(r"^[$] ", "", line) for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`(ckplan [^`]+)`", text)
    return [match[0] for line in (*lines, *spans) for match in re.finditer(r"\bckplan (?!\.)[a-z-][^&|;#]*", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation_names_real_commands_and_options(page: Path) -> None:
    for line in command_lines(page):
        words = line.split()[1:]
        if words[0].startswith("-"):
            continue
        assert words[0] in cli.commands, line
        flags = {flag for parameter in cli.commands[words[0]].params for flag in parameter.opts} | {"-h", "--help"}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= flags, line


def test_the_readme_shows_commands() -> None:
    assert len(command_lines(ROOT / "README.md")) >= 5


def test_python_m_ckplan_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckplan", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"ckplan {ckplan.__version__}\n"


def test_the_package_hands_on_what_it_names() -> None:
    for home, names in ckplan._HOMES.items():
        for name in names:
            assert getattr(ckplan, name) is getattr(importlib.import_module(f"ckplan.{home}"), name)
    assert set(ckplan.__all__) <= set(dir(ckplan))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = ckplan.nonsense
