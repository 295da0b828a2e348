# SPDX-License-Identifier: Apache-2.0
"""Numbers as the page writes them, by the page's own functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import otel_gpuflame

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

FORMAT = Path(otel_gpuflame.__file__).parent / "encode" / "html_assets" / "format.js"

VALUES = [
    ((0, "nanoseconds"), "0 ns"),
    ((999, "nanoseconds"), "999 ns"),
    ((1_000, "nanoseconds"), "1.00 µs"),
    ((12_345, "nanoseconds"), "12.3 µs"),
    ((999_499, "nanoseconds"), "999 µs"),
    ((999_600, "nanoseconds"), "1.00 ms"),
    ((9_996_000, "nanoseconds"), "10.0 ms"),
    ((1_500_000_000, "nanoseconds"), "1.50 s"),
    ((7_200_000_000_000, "nanoseconds"), "7,200 s"),
    ((1023, "bytes"), "1,023 B"),
    ((1024, "bytes"), "1.00 KiB"),
    ((3 * 1024**3, "bytes"), "3.00 GiB"),
    ((1_234_567, "count"), "1,234,567"),
    ((5, "joules"), "5 joules"),
]


def test_values_are_written_for_people(browser: Browser) -> None:
    """Three significant digits, the unit that keeps the number small, counts in full."""
    page = browser.new_page()
    program = f"(values) => {{ {FORMAT.read_text(encoding='utf-8')}; "
    program += "return values.map(([value, unit]) => formatValue(value, unit)); }"
    assert page.evaluate(program, [list(given) for given, _ in VALUES]) == [
        text for _, text in VALUES
    ]
    page.close()


def test_percent_is_never_zero_for_something(browser: Browser) -> None:
    """A share that rounds to nothing still shows that there is something."""
    page = browser.new_page()
    program = f"(values) => {{ {FORMAT.read_text(encoding='utf-8')}; "
    program += "return values.map(([part, whole]) => formatPercent(part, whole)); }"
    shares = [[0, 5], [1, 10**6], [1, 3], [9_9999, 10**6], [1, 1], [0, 0]]
    texts = ["0.00 %", "<0.01 %", "33.3 %", "10.0 %", "100 %", "0.00 %"]
    assert page.evaluate(program, shares) == texts
    page.close()
