"""What README.md and docs/ show is so: examples run, generated pages are up to date, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from ckplan.cli import cli
from ckplan.planner.strategies import STRATEGIES
from docs import examples, generate
from docs.examples import PAGES, ROOT, blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
FIGURES = [page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "benchmarks").rglob("*.md"))]
LINKING = [*TEXTS, *FIGURES]
RUNNING = [name for name, text in TEXTS.items() if any(block.is_run for block in blocks(text))]
NEEDING = [name for name, text in TEXTS.items() if any(block.what == "needs" for block in blocks(text))]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING)
def test_examples_run_and_print_what_is_shown(name: str, tmp_path: Path) -> None:
    programs: list[str] = []
    for block, command, code, printed in examples.run_page(TEXTS[name], tmp_path):
        assert code == 0, f"{command.line if command else block.text}\n{printed}"
        if command is not None and command.shown:
            missed = examples.difference(command.shown, printed.splitlines())
            assert not missed, f"$ {command.line}\n{missed}\nif it is right: python -m docs.examples {name}\n{printed}"
        if command is None and block.language == "python":
            programs.append(printed)
    if name == "README.md":
        training, planning = programs
        losses = [float(line.split()[1]) for line in training.splitlines()]
        assert losses[2] < losses[0], "the training loop does not train"
        assert float(planning.splitlines()[-1]) < 0.5, "the plan does not save"


@pytest.mark.parametrize("name", NEEDING)
def test_examples_that_need_more_than_ckplan_have_it(name: str) -> None:
    for block in blocks(TEXTS[name]):
        if missing := block.missing():
            pytest.skip(f"{name} has an example that was not run, for want of {', '.join(missing)}")


@pytest.mark.parametrize("name", TEXTS)
def test_every_example_is_run_or_says_why_not(name: str) -> None:
    fences = re.findall(r"^```(\w*)$", TEXTS[name], re.MULTILINE)
    assert len([fence for fence in fences if fence]) == len(blocks(TEXTS[name]))
    for block in blocks(TEXTS[name]):
        assert block.what in ("", "not run", "file", "needs"), block.what
        assert block.what == "" or block.detail
        assert block.language not in ("bash", "shell", "py", "pycon"), "say sh, console or python"


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    if name == "operators.md" and f"onnx {onnx.__version__}, opset" not in text:
        pytest.skip(f"docs/operators.md was written with another onnx than {onnx.__version__}")
    assert text == generate.PAGES[name](), "run: python -m docs.generate"


def test_every_command_and_strategy_has_its_section() -> None:
    assert set(cli.commands) <= set(re.findall(r"^## ckplan ([\w-]+)", generate.commands(), re.MULTILINE))
    assert {kind.name for kind in STRATEGIES} == set(re.findall(r"^## (\w+)", generate.strategies(), re.MULTILINE))


def test_the_readme_lists_every_command() -> None:
    listed = re.findall(r"^\| \[?`ckplan ([\w-]+)", README, re.MULTILINE)
    assert listed == list(cli.commands)


def test_the_picture_shows_what_the_readme_says() -> None:
    picture = (ROOT / "docs" / "saving.svg").read_text(encoding="utf-8")
    shown = re.search(r"measured: activations ([\d.]+ MiB) -> ([\d.]+ MiB)", README)
    assert shown is not None
    assert f"without a plan: {shown[1]}" in picture
    assert f"planned by ckplan: {shown[2]}" in picture


@pytest.mark.parametrize("name", LINKING)
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        file, _, heading = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), link


def test_ports_of_the_official_examples_are_short() -> None:
    page = TEXTS["docs/migration_examples.md"]
    counts = [
        tuple(sum(line.startswith(sign) and line != sign for line in block.text.splitlines()) for sign in "-+")
        for block in blocks(page)
    ]
    told = [tuple(map(int, pair)) for pair in re.findall(r"\| (\d+), (\d+) \|$", page, re.MULTILINE)]
    assert counts == [told[0], *told[2:]]
    assert max(map(max, told)) <= 20


def anchors(text: str) -> set[str]:
    """The headings of a page, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and page.name not in index
    ]
    assert not missing


def test_every_benchmark_is_in_the_index() -> None:
    folder = ROOT / "benchmarks"
    index = (folder / "README.md").read_text(encoding="utf-8")
    commands = {
        command
        for module in folder.rglob("*.py")
        for command in re.findall(r"python -m (benchmarks\.\w+)", module.read_text(encoding="utf-8"))
    }
    assert sorted(command for command in commands if not re.search(rf"{command}\b", index)) == []
    assert [page.name for page in (folder / "results").glob("*.md") if f"(results/{page.name})" not in index] == []


@pytest.mark.parametrize(("name", "most"), [("README.md", 120), ("CHANGELOG.md", 128)])
def test_lines_are_short(name: str, most: int) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > most] == []


def test_figures_of_rivals_are_those_of_the_benchmarks() -> None:
    measured = {}
    for row in (ROOT / "benchmarks" / "results" / "planner.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        measured[tuple(cells[:2])] = [re.sub(r" \(.*\)", "", cell) for cell in cells[2:]]
    table = TEXTS["docs/comparisons.md"].split("## Plans on the same graphs")[1].split("\n\n!")[0]
    rows = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in table.splitlines() if "0." in row]
    assert len(rows) == 9
    for network, plan, *figures in rows:
        assert measured[network, plan.replace("`", "")] == figures
