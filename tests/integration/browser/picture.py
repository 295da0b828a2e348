# SPDX-License-Identifier: Apache-2.0
"""Renders the picture in README.md from the bundled recording, its slowest request: `make picture`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from otel_gpuflame.cli.outputs import write_html
from otel_gpuflame.cli.slowest_request import slowest_request
from otel_gpuflame.export.recorded_traces import read_traces
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions

ROOT: Final = Path(__file__).resolve().parents[3]
CAPTURE: Final = ROOT / "examples" / "captures" / "h200_service.ogfcap"
PICTURE: Final = ROOT / "docs" / "images" / "demo.png"


def render(page_file: Path, picture: Path, options: argparse.Namespace) -> None:
    """A screenshot of the page with the sample type chosen and the largest frame of a name zoomed in to."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an optional tool of this tier

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(viewport={"width": options.width, "height": options.height})
        page.goto(page_file.as_uri())
        page.get_by_text(options.type, exact=False).first.click()
        if options.zoom:
            frames = page.locator("#chart g").filter(has_text=options.zoom)
            frames.first.click()
            page.wait_for_timeout(1_000)  # the chart moves to where it zooms in
        page.mouse.move(
            options.width - 1, options.height - 1
        )  # off all frames: one would show its details
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=PICTURE)
    parser.add_argument("--type", default="gpu_time", help="sample type that is shown")
    parser.add_argument("--zoom", default="", help="text of the frame that is clicked")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=940)
    options = parser.parse_args()
    bundles = replay(CAPTURE, AggregateOptions(window_ns=None)).bundles
    slow = slowest_request(bundles, read_traces(CAPTURE.with_suffix(".json")))
    if slow is None:
        sys.exit(f"{CAPTURE} has no request")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        write_html(page, slow.bundles, f"{slow.span.name} {slow.span_id.hex()}")
        render(page, options.output, options)


if __name__ == "__main__":
    main()
