"""How examples in the documentation are found and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.examples import alike, blocks, commands, difference, refreshed, run_page

PAGE = """# A page

```text
$ not run
```

<!-- file: say.py -->
```python
print("said", 12)
```

```console
$ python say.py
said 12
$ seq 3 \\
  | head -n 2
...
2
```

<!-- not run: it would hurt -->
```sh
exit 1
```

<!-- needs: no_such_module -->

```python
import no_such_module
```
"""


def test_blocks_are_found_with_what_is_said_before_them() -> None:
    found = blocks(PAGE)
    assert [(block.language, block.what, block.detail, block.is_run) for block in found] == [
        ("text", "", "", False),
        ("python", "file", "say.py", True),
        ("console", "", "", True),
        ("sh", "not run", "it would hurt", False),
        ("python", "needs", "no_such_module", True),
    ]
    assert found[-1].missing() == ["no_such_module"]
    assert all(PAGE[block.start :].startswith(block.text) for block in found)


def test_a_page_is_run_in_order(tmp_path: Path) -> None:
    results = [(command.line.split()[0], code, text) for _, command, code, text in run_page(PAGE, tmp_path) if command]
    assert results == [("python", 0, "said 12\n"), ("seq", 0, "1\n2\n")]


def test_a_diff_is_run_as_it_is_after_the_change(tmp_path: Path) -> None:
    page = "```diff\n-import nothing\n+import sys\n \n if sys:\n-    print(1)\n+    print(2)\n```\n"
    assert [(code, text) for *_, code, text in run_page(page, tmp_path)] == [(0, "2\n")]


def test_any_language_may_be_a_file(tmp_path: Path) -> None:
    page = "<!-- file: a.toml -->\n```toml\nkey = 1\n```\n\n```sh\ncat a.toml\n```\n"
    assert [text for *_, text in run_page(page, tmp_path)] == ["key = 1\n"]


def test_failures_are_seen(tmp_path: Path) -> None:
    ((_, _, code, text),) = run_page("```sh\necho before\nfalse\necho after\n```\n", tmp_path)
    assert (code, text) == (1, "before\n")


def test_commands_have_their_output() -> None:
    (block,) = blocks("```console\n$ first\n$ second a \\\n  b\none\n\ntwo\n```\n")
    assert [(command.line, command.shown) for command in commands(block)] == [
        ("first", ()),
        ("second a \\\n  b", ("one", "", "two")),
    ]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("measured: 45.2 MiB -> 9.1 MiB (-79.9 %)", "measured: 45.9 MiB ->  9.0 MiB (-80.4 %)"),
        ("  peak  1.0 MiB", "  peak  1023.0 KiB"),
        ("  step time    484.6 ms   1.12", "  step time   5.1 s   2.50"),
        ("time +12 %, outputs equal", "time +180 %, outputs equal"),
        ("96 of 103 nodes ran again", "97 of 104 nodes ran again"),
        ("  40 MiB┤ ▁▄▅█▄▂", "  40 MiB┤   ▂▂▅██"),
    ],
)
def test_lines_that_differ_by_machine_are_alike(shown: str, printed: str) -> None:
    assert alike(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("measured: 45.2 MiB", "measured: 55.2 MiB"),
        ("saved 80 %", "saved 70 %"),
        ("96 nodes", "196 nodes"),
        ("outputs equal", "outputs differ"),
        ("9.1 MiB", "9.1 KiB"),
        ("9 MiB", "9 %"),
    ],
)
def test_lines_that_say_something_else_are_not(shown: str, printed: str) -> None:
    assert not alike(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed", "first"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["a", "..."], ["a", "b", "c"], ""),
        (["...", "c"], ["a", "b", "c"], ""),
        (["a", "...", "c"], ["a", "c"], ""),
        (["a"], ["a", "b"], "not shown: b"),
        (["a", "c"], ["a", "b", "c"], "shown: c\nprinted: b"),
        (["...", "x"], ["a"], "shown: x\nprinted: a"),
        (["a", "b"], ["a"], "shown: b\nprinted: nothing more"),
    ],
)
def test_output_is_compared_in_order(shown: list[str], printed: list[str], first: str) -> None:
    assert difference(shown, printed) == first


def test_a_page_is_refreshed_with_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = "Text.\n\n```console\n$ seq 11 14\n...\n10\n...\n$ echo new\nold\n```\n\nMore.\n"
    assert refreshed(page) == page.replace("\n10\n", "\n11\n").replace("\nold\n", "\nnew\n")
    assert capsys.readouterr().err == ""
    gone = "```console\n$ echo new\n...\nold\n```\n"
    assert refreshed(gone) == gone
    assert "no longer printed: old" in capsys.readouterr().err
