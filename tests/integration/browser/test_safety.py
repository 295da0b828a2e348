# SPDX-License-Identifier: Apache-2.0
"""Hostile names in a real browser, and text that can be read."""

from __future__ import annotations

import pytest

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.sample_types import GPU_WAIT
from tests.integration.browser.conftest import OpenPage
from tests.integration.browser.pages import detail, trainer
from tests.unit.encode_html.builders import api, bundle, gpu, mark, native, python, span

pytestmark = pytest.mark.browser

SCRIPT = "</script><img src=x onerror=alert(1)><script>alert(1)</script>"

CONTRAST_BY_LAYER = """() => {
  const channels = (css) => css.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const luminance = (css) => {
    const [r, g, b] = channels(css).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll("g.frame")].map((frame) => {
    const fill = luminance(getComputedStyle(frame.querySelector("rect")).fill);
    const text = luminance(getComputedStyle(frame.querySelector("div")).color);
    const ratio = (Math.max(fill, text) + 0.05) / (Math.min(fill, text) + 0.05);
    return [frame.getAttribute("class"), ratio];
  });
}"""


def test_hostile_names_do_not_run(open_page: OpenPage) -> None:
    """Markup in a name, file, module, service or title is shown letter by letter everywhere."""
    frame = gpu(SCRIPT, SCRIPT)._replace(file=SCRIPT, module=SCRIPT)
    rows = [((python(SCRIPT, SCRIPT), mark(f"lost {SCRIPT}"), frame), span(1), 5)]
    resources = [(("service.name", SCRIPT),), (("service.name", "other"),)]
    page = open_page([bundle({GPU_WAIT: rows}, resource=r) for r in resources], title=SCRIPT)
    assert page.locator("h1").inner_text() == SCRIPT
    assert page.title() == SCRIPT
    kernel = page.locator("g.frame.gpu").first
    kernel.hover()
    assert detail(page)[0] == SCRIPT
    kernel.click()
    page.locator("#query").fill(SCRIPT)
    page.locator("#target").select_option(label=SCRIPT)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3


def test_policy_stops_injected_scripts(open_page: OpenPage, problems: list[str]) -> None:
    """Even a script that got into the page would not run."""
    page = open_page([trainer()])
    page.evaluate("window.refused = []")
    page.evaluate(
        "document.addEventListener('securitypolicyviolation', "
        "(event) => window.refused.push(event.effectiveDirective))"
    )
    ran = page.evaluate(
        """async () => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          await new Promise((resolve) => setTimeout(resolve, 0));
          return [Boolean(window.ran), window.refused];
        }"""
    )
    assert ran == [False, ["script-src-elem"]]
    (refusal,) = problems
    assert "Content Security Policy" in refusal
    problems.clear()


def test_characters_that_deceive_are_written_out(open_page: OpenPage) -> None:
    """Control characters and those that reorder text cannot make a name look like another."""
    page = open_page([bundle({GPU_WAIT: [((gpu("a\u202eb\x07c\u2066d"),), None, 1)]})])
    page.locator("g.frame.gpu").hover()
    assert detail(page)[0] == "a\\u{202e}b\\u{7}c\\u{2066}d"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_have_contrast(open_page: OpenPage, theme: str) -> None:
    """In both themes text on every layer has the contrast that WCAG AA asks for, 4.5."""
    layers = [
        python("a"),
        native("b"),
        api("c"),
        Frame(FrameKind.OS_KERNEL, "d"),
        gpu("e"),
        mark("spin"),
        mark("lost"),
    ]
    rows = [
        ((frame._replace(name=f"{frame.name}{i}"),), None, 1) for frame in layers for i in "xyz"
    ]
    page = open_page([bundle({GPU_WAIT: rows})], theme=theme)
    ratios = page.evaluate(CONTRAST_BY_LAYER)
    assert len({name.split()[1] for name, _ in ratios}) == 1 + len(layers)
    assert [each for each in ratios if each[1] < 4.5] == []
