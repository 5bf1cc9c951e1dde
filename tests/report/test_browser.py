"""The page in a real browser: no error, no request, bands under the pointer, tables in order, both schemes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckplan.report.html import render
from tests.report.browser import NAMES, Page, chromium, opened
from tests.report.pages import EVIL, findings

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium() is None, reason=f"no Chromium: none of {', '.join(NAMES)} is on the path, and CHROMIUM names none"
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(findings(24, odd=EVIL)), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Page, report: Path) -> Page:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(report)
    return browser


def place_of(page: Page, chart: int, across: float, down: float) -> tuple[float, float]:
    """A point of a chart, as shares of the room between its axes."""
    x, y, width, height = page.value(
        f"((box) => {{ box.scrollIntoView({{block: 'center'}}); const r = box.getBoundingClientRect();"
        f" return [r.x, r.y, r.width, r.height]; }})(document.querySelector('[data-chart=\"{chart}\"]'))"
    )
    left, top, right, bottom = x + 74, y + 34, x + width - 8, y + height - 40
    return left + across * (right - left), top + down * (bottom - top)


def tip(page: Page) -> str:
    return str(page.value("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"))


def column(page: Page, table: str, number: int) -> list[str]:
    rows = f"[...document.querySelectorAll('{table} tbody tr')]"
    found: list[str] = page.value(f"{rows}.map((row) => row.cells[{number}].innerText.trim())")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_fails_nothing_is_requested_and_nothing_sticks_out(
    browser: Page, report: Path, width: int, scheme: str
) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(report, width, scheme=scheme)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.errors == []
    assert [url for url in browser.requests if url != report.as_uri() and not url.startswith("data:")] == []
    assert browser.value("document.scripts.length") == 2, "a name has become a script"
    painted = "((c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0))"
    assert browser.value(f"[...document.querySelectorAll('.canvas canvas:first-child')].every({painted})")


def test_the_pointer_tells_the_tensor(page: Page) -> None:
    page.mouse(*place_of(page, 0, 0.5, 0.97))
    told = tip(page)
    # The oldest tensor lies at the bottom; its name is text, whatever is in it.
    assert f"/model/encoder/layer.0/attention/output/dense{EVIL}_out".split("\u2028")[0] in told
    assert "4.0 KiB, 8×128 float32" in told
    assert "kept for the backward pass; made by MatMul" in told
    assert "steps 1 to 48 of 48" in told
    assert "of activations" in told
    page.mouse(*place_of(page, 0, 0.02, 0.05))
    assert "dense" in tip(page)
    assert "kept" not in tip(page), "there is no band up there"
    page.mouse(2, 2)
    assert tip(page) == ""


def test_a_recomputed_band_says_so(page: Page) -> None:
    content = page.value("JSON.stringify(ckplan.data)")
    data = json.loads(content)
    chart = data["charts"][1]
    band = next(b for b in chart["bands"] if data["roles"][b[4]] == "recomputed")
    alive = [(min(b[4::4]), place) for place, b in enumerate(chart["bands"]) if b[1] <= band[1] <= b[2]]
    mine = (min(band[4::4]), chart["bands"].index(band))
    below = sum(chart["bands"][place][0] for rank, place in alive if (rank, place) < mine)
    top = max(max(c["bytes"]) for c in data["charts"]) * 1.04
    across = (band[1] + 0.5) / len(chart["bytes"])
    page.mouse(*place_of(page, 1, across, 1 - (below + band[0] / 2) / top))
    assert "recompute1" in tip(page)
    assert "recomputed; made by MatMul" in tip(page)


def test_the_keyboard_does_what_the_pointer_does(page: Page) -> None:
    page.value("document.querySelector('[data-chart=\"0\"] canvas').focus()")
    for key in ("ArrowLeft", "ArrowUp"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
    assert "made by" in tip(page)
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape")
    assert tip(page) == ""


def test_tables_are_sorted_by_the_heading_that_is_pressed(page: Page) -> None:
    table = "#alive-1"
    names = column(page, table, 0)
    heading = f"{table} th:nth-child(1) button"
    page.click(heading)
    ascending = column(page, table, 0)
    assert sorted(ascending) == sorted(names)
    assert page.value(f"document.querySelector('{table} th').getAttribute('aria-sort')") == "ascending"
    page.click(heading)
    assert column(page, table, 0) == ascending[::-1]
    page.click(f"{table} th:nth-child(8) button")
    steps = [int(text.replace(",", "")) for text in column(page, table, 7)]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) > 1
    assert page.value(f"document.querySelectorAll('{table} [aria-sort]').length") == 1


def test_tabs_and_scale(page: Page) -> None:
    assert page.value("document.getElementById('alive-0').hidden")
    page.click('[data-show="alive-0"]')
    assert not page.value("document.getElementById('alive-0').hidden")
    assert page.value("document.getElementById('alive-1').hidden")
    pixels = "document.querySelector('[data-chart=\"1\"] canvas').toDataURL()"
    before = page.value(pixels)
    page.click('[data-scale="own"]')
    assert page.value("document.querySelector('[data-scale=own]').getAttribute('aria-pressed')") == "true"
    assert page.value(pixels) != before


def test_the_colours_follow_the_system_and_the_switch(browser: Page, report: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    pixels = "document.querySelector('canvas').toDataURL()"
    browser.open(report, scheme="light")
    light, drawn = browser.value(ground), browser.value(pixels)
    browser.open(report, scheme="dark")
    dark = browser.value(ground)
    assert light != dark
    assert browser.value(pixels) != drawn
    browser.click("#scheme")
    assert browser.value(ground) == light
    assert browser.value(pixels) == drawn
    browser.click("#scheme")
    assert browser.value(ground) == dark


def contrast(browser: Page, element: str) -> float:
    """The ratio of luminances of a text and its ground, as the Web Content Accessibility Guidelines have it."""
    script = """((element) => {
      const parse = (text) => text.match(/[0-9.]+/g).map(Number);
      let at = element, ground = [0, 0, 0, 0];
      while (at && (ground.length === 4 && ground[3] === 0)) { ground = parse(getComputedStyle(at).backgroundColor); at = at.parentElement; }
      return [parse(getComputedStyle(element).color), ground];
    })"""  # noqa: E501
    colors = browser.value(f"{script}(document.querySelector({json.dumps(element)}))")

    def luminance(color: list[float]) -> float:
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in color[:3])]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted(map(luminance, colors), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


LEGIBLE = (
    "h1 .before", "h1 .after", ".good", ".cost", ".what", ".tiles dt", ".tiles small", ".legend li", ".switch button",
    "th button", "td", ".more", ".pattern small", "pre code", ".notes li",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_legible(browser: Page, report: Path, scheme: str) -> None:
    browser.open(report, scheme=scheme)
    for element in LEGIBLE:
        assert contrast(browser, element) >= 4.5, element


def test_ten_thousand_nodes_open_and_answer(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(render(findings(5000)), encoding="utf-8")
    browser.errors.clear()
    browser.open(path)
    assert browser.errors == []
    browser.mouse(*place_of(browser, 0, 0.5, 0.97))
    assert "of 10000" in tip(browser)


def shown(page: Page, chart: int = 0) -> list[int]:
    """The steps that a chart shows: by the text at its axis, as a user sees them, or all."""
    script = """((number) => {
      const texts = [];
      const drawing = CanvasRenderingContext2D.prototype;
      const original = drawing.fillText;
      drawing.fillText = function (text, ...rest) { texts.push([this.canvas.parentElement.dataset.chart, text]); original.call(this, text, ...rest); };
      document.getElementById("scheme").click();
      document.getElementById("scheme").click();
      drawing.fillText = original;
      return texts.filter(([box, text]) => box === String(number) && text.endsWith(" steps")).map(([, text]) => text)[0];
    })"""  # noqa: E501
    words = page.value(f"{script}({chart})").replace(",", "").split()
    return [1, int(words[0])] if len(words) == 2 else [int(words[0]), int(words[2])]


def key(page: Page, name: str, modifiers: int = 0) -> None:
    text = {"text": name} if len(name) == 1 else {}
    page.call("Input.dispatchKeyEvent", type="keyDown", key=name, modifiers=modifiers, **text)


def wheel(page: Page, place: tuple[float, float], delta: int) -> None:
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=place[0], y=place[1], deltaX=0, deltaY=delta)


def test_the_wheel_zooms_where_it_is_turned_once_the_chart_is_clicked(page: Page) -> None:
    place = place_of(page, 0, 0.75, 0.5)
    whole = shown(page)
    wheel(page, place, -120)
    assert shown(page) == whole, "a page scrolls over its charts"
    page.click('[data-chart="0"] canvas')
    place = place_of(page, 0, 0.75, 0.5)
    for _ in range(4):
        wheel(page, place, -120)
    first, last = shown(page)
    assert last - first < (whole[1] - whole[0]) / 2
    assert first <= 0.75 * whole[1] <= last
    assert shown(page, 1)[0] == 1, "the other chart stays"
    # Dragging to the right shows what was before.
    page.mouse(*place, "mousePressed")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + 150, y=place[1], button="left", buttons=1)
    page.mouse(place[0] + 150, place[1], "mouseReleased")
    assert shown(page)[0] < first
    page.click('[data-chart="0"] canvas')
    page.click("figure [data-whole]")
    assert shown(page) == whole
    assert page.value("document.querySelector('[data-whole]').hidden")
    assert page.errors == []


def test_the_keyboard_zooms_and_moves(page: Page) -> None:
    whole = shown(page)
    page.value("document.querySelector('[data-chart=\"0\"] canvas').focus()")
    key(page, "+")
    key(page, "+")
    middle = shown(page)
    assert whole[0] < middle[0]
    assert middle[1] < whole[1]
    key(page, "ArrowLeft", modifiers=8)
    left = shown(page)
    assert left[0] < middle[0]
    assert left[1] - left[0] == middle[1] - middle[0]
    key(page, "-")
    assert shown(page)[1] - shown(page)[0] > left[1] - left[0]
    key(page, "0")
    assert shown(page) == whole


def test_what_is_looked_for_is_found_shown_and_told(page: Page) -> None:
    page.value("document.querySelector('#search input').focus()")
    page.call("Input.insertText", text="LAYER.3/")
    listed = page.value("[...document.querySelectorAll('#search li')].map((row) => row.innerText)")
    assert listed
    assert all("layer.3/" in row for row in listed)
    assert any("tensor, with" in row for row in listed)
    assert page.value("document.querySelector('#search output').textContent") == f"{len(listed)} found"
    key(page, "Enter")
    assert "layer.3/" in tip(page)
    node = next(place for place, row in enumerate(listed) if "node, without a plan" in row)
    step = int(listed[node].rsplit("step ", 1)[1])
    page.click(f"#search li:nth-child({node + 1}) button")
    assert f"step {step}:" in tip(page)
    first, last = shown(page)
    assert first <= step <= last < first + 12
    page.value("document.querySelector('#search input').focus()")
    key(page, "Escape")
    assert page.value("document.querySelectorAll('#search li').length") == 0
    page.call("Input.insertText", text="no such name")
    assert page.value("document.querySelector('#search output').textContent") == "0 found"
    assert page.errors == []
