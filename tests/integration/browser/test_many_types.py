# SPDX-License-Identifier: Apache-2.0
"""A page of one request, with exact parts and estimates of all sample types beside one another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_gpuflame.profile.sample_types import ALL, ESTIMATED_SCOPE
from tests.integration.browser.conftest import OpenPage
from tests.integration.browser.pages import trainer

pytestmark = pytest.mark.browser


def test_nothing_is_beyond_the_right_edge(open_page: OpenPage) -> None:
    """However many sample types there are, their row breaks: the page is as wide as the window."""
    bundle = trainer()
    profiles = tuple(replace(bundle.profiles[0], sample_type=each) for each in ALL)
    exact = replace(bundle, profiles=profiles)
    page = open_page([exact, replace(exact, scope=ESTIMATED_SCOPE)])
    assert page.locator(".segments label").filter(has_text="(estimated)").count() == len(ALL)
    widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    scrolled, visible = page.evaluate(widths)
    assert scrolled <= visible
    rights = page.locator(".segments label").evaluate_all(
        "labels => labels.map(each => each.getBoundingClientRect().right)"
    )
    assert max(rights) <= visible
