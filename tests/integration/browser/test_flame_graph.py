# SPDX-License-Identifier: Apache-2.0
"""What a reader sees and does in the flame graph."""

from __future__ import annotations

import pytest

from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from tests.integration.browser.conftest import OpenPage
from tests.integration.browser.pages import MS, box, detail, server, trainer, width_px
from tests.unit.encode_html.builders import api, bundle, python, span

pytestmark = pytest.mark.browser


def test_opens_with_the_widest_frames_of_gpu_wait(open_page: OpenPage) -> None:
    """The page starts with gpu_wait, and widths are shares of it."""
    page = open_page([trainer()], title="My run")
    assert page.locator("h1").inner_text() == "My run"
    assert page.locator("#types input:checked + span").inner_text() == "gpu_wait800 ms"
    assert page.locator("#window").inner_text() == "2026-11-30 00:53:20.123 UTC · 10.0 s window"
    whole = width_px(page, "trainer")
    assert whole > 1200
    assert width_px(page, "sgemm<float>") == pytest.approx(whole * 600 / 800, abs=2)
    page.get_by_text("epoch (train.py:88)").wait_for()


def test_boxes_are_in_place_at_once(open_page: OpenPage) -> None:
    """Right after a click, in the same turn of the browser, every box has its place and label."""
    page = open_page([trainer()])
    width = page.locator("#chart svg").get_attribute("width")
    places = page.evaluate("""() => {
      document.querySelector('g[aria-label="[blocked]"]')
        .dispatchEvent(new MouseEvent("click", {bubbles: true}));
      return [...document.querySelectorAll("g.frame")].map((box) => [
        box.transform.baseVal.consolidate()?.matrix.f ?? 0,
        box.querySelector("rect").getAttribute("width"),
        box.querySelector("div").textContent,
      ]);
    }""")
    labels = ["trainer", "<module> (train.py:112)", "epoch (train.py:88)", "cuMemcpyDtoH_v2"]
    rows = enumerate([*labels, "[blocked]"])
    assert sorted(places) == [[20 * i, width, text] for i, text in rows]


def test_header_shows_totals_of_all_types(open_page: OpenPage) -> None:
    """Each sample type stands in the header with its total in its unit."""
    page = open_page([trainer()])
    texts = page.locator("#types span").all_inner_texts()
    assert texts == ["gpu_wait800 ms", "gpu_launch12,345", "gpu_copy3.00 MiB"]


def test_pointing_at_a_frame_shows_it_in_full(open_page: OpenPage) -> None:
    """Tooltip and bottom lines name the frame, its place, and its total and self value."""
    page = open_page([trainer()])
    box(page, "epoch (train.py:88)").hover()
    expected = [
        "epoch",
        "Python · /app/train.py:88",
        "total 750 ms (93.8 %) · self 0 ns (0.00 %)",
    ]
    assert detail(page) == expected
    assert page.locator("#tip p").all_inner_texts() == expected
    box(page, "sgemm<float>").hover()
    assert detail(page)[1:] == [
        "GPU kernel · _Z5sgemmIfEvv",
        "total 600 ms (75.0 %) · self 600 ms (75.0 %)",
    ]


def test_search_counts_and_marks_matches(open_page: OpenPage) -> None:
    """Ctrl-F goes to the search; matches are marked and their value counted once."""
    page = open_page([trainer()])
    page.keyboard.press("Control+f")
    page.keyboard.type("TRAIN.PY")
    assert page.locator("#result").inner_text() == "2 matches · 750 ms (93.8 %)"
    labels = page.locator("g.match").evaluate_all("all => all.map(g => g.ariaLabel)")
    assert labels == ["<module> (train.py:112)", "epoch (train.py:88)"]
    page.locator("#clear").click()
    assert page.locator("g.match").count() == 0
    assert page.locator("#result").inner_text() == ""


@pytest.mark.parametrize(
    ("query", "result"),
    [
        ("/^cu(Stream|Memcpy)/", "2 matches · 750 ms (93.8 %)"),
        ("libcuda.so", "2 matches · 750 ms (93.8 %)"),
        ("_Z5sgemm", "1 match · 600 ms (75.0 %)"),
        ("/(/", "not a regular expression"),
        ("(", "4 matches · 750 ms (93.8 %)"),
        ("nowhere", "no match"),
    ],
)
def test_search_understands(open_page: OpenPage, query: str, result: str) -> None:
    """Plain text, regular expressions, modules and mangled names are found; errors are said."""
    page = open_page([trainer()])
    page.locator("#query").fill(query)
    assert page.locator("#result").inner_text() == result


def test_sample_type_switch_changes_the_picture(open_page: OpenPage) -> None:
    """After the switch, boxes and totals are those of the other type."""
    page = open_page([trainer()])
    page.get_by_text("gpu_launch").click()
    assert box(page, "cuStreamSynchronize").count() == 0
    box(page, "cuLaunchKernel").hover()
    assert detail(page)[2] == "total 12,345 (100 %) · self 0 (0.00 %)"


def test_target_filter(open_page: OpenPage) -> None:
    """With several targets each has its box, and one can be chosen alone."""
    page = open_page([trainer(), server()])
    whole = width_px(page, "all targets")
    assert width_px(page, "server") == pytest.approx(whole * 200 / 1000, abs=2)
    page.locator("#target").select_option(label="server")
    assert width_px(page, "server") == pytest.approx(whole, abs=2)
    assert page.locator("#types b").first.inner_text() == "200 ms"
    assert box(page, "trainer").count() == 0


def test_span_filter(open_page: OpenPage) -> None:
    """Spans are listed by value; choosing one leaves its samples only."""
    page = open_page([trainer()])
    assert page.locator("#link option").all_inner_texts() == [
        "all",
        "0000000000000001 (trace 00000000…) · 500 ms",
        "no span · 200 ms",
        "0000000000000002 (trace 00000000…) · 100 ms",
    ]
    page.locator("#link").select_option(index=3)
    assert page.locator("#types b").all_inner_texts() == ["100 ms", "0", "0 B"]
    page.get_by_text("gpu_launch").click()
    assert page.locator("#message h2").inner_text() == "No gpu_launch here"
    assert not page.locator("#chart").is_visible()
    page.locator("#link").select_option(label="all")
    assert page.locator("#chart").is_visible()


def test_many_spans_are_listed_by_value_and_counted(open_page: OpenPage) -> None:
    """The list of spans holds the largest hundred and says how many it leaves out."""
    rows = [((python("f"),), span(i), (i + 1) * MS) for i in range(130)]
    options = open_page([bundle({GPU_WAIT: rows})]).locator("#link option").all_inner_texts()
    assert len(options) == 102
    assert options[1] == "0000000000000081 (trace 00000000…) · 130 ms"
    assert options[-1] == "30 smaller spans not listed"


def test_zoom_and_ways_back(open_page: OpenPage) -> None:
    """A click zooms in; Escape, an ancestor and the path zoom out."""
    page = open_page([trainer()])
    whole = width_px(page, "trainer")
    spin = width_px(page, "[spin]")
    for back in (
        lambda: page.keyboard.press("Escape"),
        lambda: page.locator("#reset").click(),
        lambda: box(page, "trainer").click(position={"x": 300, "y": 5}),
        lambda: page.locator("#path").get_by_text("trainer").click(),
    ):
        box(page, "[spin]").click()
        page.locator("#reset").wait_for()
        assert width_px(page, "[spin]") == pytest.approx(whole, abs=2)
        assert box(page, "[blocked]").count() == 0
        back()
        page.locator("#reset").wait_for(state="detached")
        assert width_px(page, "[spin]") == pytest.approx(spin, abs=2)


def test_zoomed_values_are_also_shares_of_the_zoom(open_page: OpenPage) -> None:
    """Under a zoom a frame has two shares, and search counts inside the zoom."""
    page = open_page([trainer()])
    box(page, "[spin]").click()
    box(page, "sgemm<float>").hover()
    expected = "600 ms (75.0 %, 100 % of zoom)"
    assert detail(page)[2] == f"total {expected} · self {expected}"
    page.locator("#query").fill("cuMemcpy")
    assert page.locator("#result").inner_text() == "no match"
    page.locator("#query").fill("sgemm")
    assert page.locator("#result").inner_text() == "1 match · 600 ms (100 % of zoom)"


def test_orientation(open_page: OpenPage) -> None:
    """An icicle has its root above, a flame below."""
    page = open_page([trainer()])

    def top_px(label: str) -> float:
        area = box(page, label).bounding_box()
        assert area is not None
        return area["y"]

    assert top_px("trainer") < top_px("sgemm<float>")
    page.get_by_text("Flame", exact=True).click()
    page.wait_for_function("document.querySelector('#chart.flame')")
    page.locator("#chart").get_by_text("trainer").wait_for()
    assert top_px("trainer") > top_px("sgemm<float>")


def test_keyboard_walks_and_zooms(open_page: OpenPage) -> None:
    """Arrow keys go to the widest child, the parent and the neighbour; Enter zooms."""
    page = open_page([trainer()])
    page.locator("#chart").focus()
    names = []
    keys = ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home"]
    for key in keys:
        page.keyboard.press(key)
        names.append(detail(page)[0])
    assert names == [
        "trainer",
        "<module>",
        "[no stack: ring full]",
        "<module>",
        "epoch",
        "<module>",
        "trainer",
    ]
    for key in ("ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#path button").all_inner_texts() == [
        "Reset zoom",
        "trainer",
        "<module> (train.py:112)",
    ]


def test_losses_are_named_in_the_header(open_page: OpenPage) -> None:
    """A loss mark stands in the header with its share, and leads to its frame."""
    page = open_page([trainer()])
    page.get_by_role("button", name="[no stack: ring full] 6.25 %").click()
    assert page.locator("#result").inner_text() == "1 match · 50.0 ms (6.25 %)"
    page.get_by_text("gpu_launch").click()
    assert page.locator("#losses").inner_text() == "no loss marks"


def test_legend_names_the_layers_drawn(open_page: OpenPage) -> None:
    """Only colours that occur are explained."""
    page = open_page([server()])
    assert page.locator("#legend li").all_inner_texts() == ["Target", "Python", "Driver API"]


def test_empty_profile_says_so(open_page: OpenPage) -> None:
    """Without samples there is a message in place of an empty chart."""
    page = open_page([bundle({GPU_WAIT: [], GPU_COPY: []})], title="idle")
    assert page.locator("#message h2").inner_text() == "No samples in this window"
    assert not page.locator("#chart").is_visible()
    assert page.locator("#window").inner_text().endswith("10.0 s window")


def test_narrow_frames_are_merged_and_opened_by_clicks(open_page: OpenPage) -> None:
    """5,000 siblings are a few boxes; clicking goes down to single frames."""
    rows = [((python(f"f{i:04}"), api("cuCtxSynchronize")), None, 5_000) for i in range(5_000)]
    page = open_page([bundle({GPU_WAIT: rows})])
    shown = []
    while page.locator("g.group:not(.fade)").count() and len(shown) < 5:
        groups = page.locator("g.group:not(.fade)")
        shown.append(groups.last.get_attribute("aria-label"))
        groups.last.click()
        page.locator("#reset").wait_for()
        if page.get_by_text("cuCtxSynchronize").count():
            break
    assert shown == ["250 small frames"]
    assert page.locator("g.frame.python").count() == 250


def test_ten_thousand_deep_stacks_draw_few_boxes(open_page: OpenPage) -> None:
    """However large the profile is, the browser gets a bounded number of boxes."""
    rows = []
    for i in range(10_000):
        path = [python(f"f{depth}_{i % 300}") for depth in range(40)]
        rows.append(((*path, api(f"cu{i}")), None, 1))
    page = open_page([bundle({GPU_LAUNCH: rows})])
    box(page, "trainer").wait_for()
    assert 20 <= page.locator("g.frame").count() <= 3000
