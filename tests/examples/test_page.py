"""The page learns in a real browser what Python learns, and its plan takes less memory there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from examples.loops.safetensors import tensors
from examples.loops.train import train
from examples.page.build import BATCH, PLAN, build
from tests.examples.toolchains import node_package
from tests.report.browser import NAMES, Page, chromium, opened

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason=f"no browser: none of {', '.join(NAMES)}, and CHROMIUM is not set"),
]

SIZES = {60: 50, BATCH: 4}
"""Steps by images in a step: many to see that the numbers stay together, and many images to see the memory."""
PATIENCE = 300.0


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    runtime = node_package("onnxruntime-web") / "onnxruntime-web" / "dist"
    for batch in SIZES:
        plan = PLAN if batch == BATCH else {"budget": "75%"}
        build(folder / str(batch), runtime, batch, plan)
    return folder


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=built)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(tmp_path_factory.mktemp("profile")) as page:
        yield page


def visit(browser: Page, url: str) -> None:
    """Open an address and wait until both trainings are through."""
    browser.errors.clear()
    browser.requests.clear()
    browser.call("Page.navigate", url=url)
    end = time.monotonic() + PATIENCE
    while not browser.value("location.protocol === 'http:' && document.documentElement?.dataset.ready === 'yes'"):
        assert time.monotonic() < end, browser.errors
        time.sleep(0.1)


@pytest.mark.parametrize("batch", SIZES)
def test_the_browser_learns_what_python_learns(browser: Page, served: str, built: Path, batch: int) -> None:
    visit(browser, f"{served}{batch}/?steps={SIZES[batch]}")
    assert browser.value("document.getElementById('error').textContent") == ""
    assert browser.errors == []
    assert {url.split("/")[2] for url in browser.requests if url.startswith("http")} == {served.split("/")[2]}
    batches = tensors((built / str(batch) / "batches.safetensors").read_bytes())
    expected = list(train(built / str(batch) / "plain", batches, SIZES[batch]))
    found = browser.value("results")
    for run in ("plain", "planned"):
        np.testing.assert_allclose(found[run]["loss"], expected, rtol=0, atol=1e-5)
    assert browser.value("document.querySelectorAll('#heap polyline.planned').length") == 1


def test_a_plan_takes_less_of_the_heap(browser: Page, served: str) -> None:
    visit(browser, f"{served}{BATCH}/?steps=2")
    planned, plain = (browser.value("results")[run]["heap"] for run in ("planned", "plain"))
    # The memory of WebAssembly grows by a fifth at a time, so a plan saves in such leaps only. From the
    # second step on onnxruntime takes a block for all tensors beside what it has, and the saving does not reach a leap.
    assert planned[0] < 0.9 * plain[0]
    assert max(planned) <= max(plain)


def test_a_missing_file_is_told_in_one_line(browser: Page, served: str, built: Path) -> None:
    update = built / "60" / "planned" / "update.onnx"
    update.rename(built / "elsewhere")
    try:
        visit(browser, f"{served}60/?steps=1")
        told = browser.value("document.getElementById('error').textContent")
    finally:
        (built / "elsewhere").rename(update)
    assert told == "planned/update.onnx: 404 File not found"
