# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that opens pages from files and reports everything that goes wrong in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_gpuflame.encode.html import encode_html
from otel_gpuflame.profile.model import Bundle
from tests.tiers import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]
OpenFile = Callable[..., "Page"]
WIDTH_PX, HEIGHT_PX = 1280, 760
LIMIT_MS = 300_000
"""Against hanging, however busy the machine is."""


def _chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module, with a profile directory of its own.

    Not for longer: playwright runs an event loop in this thread, in which no span is ever published.
    """
    require("browser", _chromium() != "", "no chromium on PATH; apt-get install chromium")
    has_driver = find_spec("playwright") is not None
    require("browser", has_driver, "playwright is missing; pip install playwright")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an optional tool of this tier

    with sync_playwright() as playwright:
        # Root has no sandbox in containers.
        arguments = ["--no-sandbox", "--disable-gpu"]
        running = playwright.chromium.launch(
            executable_path=_chromium(), args=arguments, timeout=LIMIT_MS
        )
        yield running
        running.close()


@pytest.fixture
def problems() -> list[str]:
    """What went wrong in the pages so far; a test takes out what it expects."""
    return []


@pytest.fixture
def open_file(browser: Browser, problems: list[str]) -> Iterator[OpenFile]:
    """Opens a file as a page. Afterwards: no errors, and no request except for the file."""
    contexts = []

    def open_it(file: Path, *, theme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": WIDTH_PX, "height": HEIGHT_PX},
            color_scheme="dark" if theme == "dark" else "light",
        )
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                None if request.url == file.as_uri() else problems.append(f"request: {request.url}")
            ),
        )
        page.goto(file.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def open_page(open_file: OpenFile, tmp_path: Path) -> OpenPage:
    """Opens bundles as a page, as `open_file` does."""
    numbers = count()

    def open_bundles(bundles: Sequence[Bundle], *, title: str = "t", theme: str = "light") -> Page:
        file = tmp_path / f"page{next(numbers)}.html"
        file.write_bytes(encode_html(bundles, title=title).encode("utf-8"))
        return open_file(file, theme=theme)

    return open_bundles
