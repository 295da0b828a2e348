# SPDX-License-Identifier: Apache-2.0
"""`replay --span-id ID --html`: the page of one span, in the browser, against `go tool pprof` of the same span.

The recording is that of a batching service (see `tests/integration/collector/test_trace_drilldown.py`): a request has
its prompt's four kernels of 0.2 ms, a step of the worker two kernels in each of four layers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner

from otel_gpuflame.cli.main import cli
from otel_gpuflame.profile.model import ValueType
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_TIME, GPU_WAIT
from tests.integration.browser.conftest import OpenFile
from tests.integration.browser.pages import box, detail
from tests.tiers import require
from tests.unit.cli.pprof_tool import pprof_top

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

CAPTURES = Path(__file__).parents[2] / "golden" / "captures"
CAPTURE = CAPTURES / "inference_spans.ogfcap"
MS = 1_000_000

SELF_BY_NAME = """(type) => {
  const { frames, series, stacks, strings, types } = JSON.parse(document.getElementById("data").textContent);
  const leaves = [];
  const path = [];
  for (let i = 0; i < stacks.length; i += 2 + stacks[i + 1]) {
    path.splice(stacks[i], Infinity, ...stacks.slice(i + 2, i + 2 + stacks[i + 1]));
    leaves.push(strings[frames.name[path[path.length - 1]]]);
  }
  const found = {};
  for (const each of series.filter(({ type: index }) => types[index].type === type)) {
    each.stack.forEach((stack, i) => {
      found[leaves[stack]] = (found[leaves[stack]] ?? 0) + each.value[i];
    });
  }
  return found;
}"""
"""What the page has of a sample type: own values by the name of the leaf."""
_SCALES = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "B": 1, "KiB": 1024, "": 1}


class Written(NamedTuple):
    """Files that one command wrote of one span."""

    span_id: str
    html: Path
    pprof: Path
    types: tuple[ValueType, ...]


def ids_of(name: str) -> list[str]:
    """Spans of the recorded traces with this name."""
    path = CAPTURES / "inference_spans.traces.json"
    return [
        span["spanId"]
        for line in path.read_text().splitlines()
        for of_resource in json.loads(line)["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
        if span["name"] == name
    ]


@pytest.fixture(params=["POST /infer", "gpu.batch"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """The first request, and the first step."""
    has_pprof = shutil.which("go") is not None
    require("collector", has_pprof, "there is no Go, whose pprof says what is right")
    span_id = ids_of(request.param)[0]
    html, pprof = tmp_path / "span.html", tmp_path / "span.pb.gz"
    command = ["replay", str(CAPTURE), "--span-id", span_id, "--html", str(html)]
    result = CliRunner().invoke(cli, [*command, "--pprof", str(pprof)])
    assert result.exit_code == 0, result.output
    copies = (GPU_COPY,) if request.param == "POST /infer" else ()
    return Written(span_id, html, pprof, (GPU_WAIT, GPU_TIME, GPU_LAUNCH, *copies))


def shown_total(page: Page, sample_type: ValueType) -> float:
    """The total of a sample type as the header has it: three digits and a unit."""
    text = page.locator("#types span").filter(has_text=sample_type.type).locator("b").inner_text()
    number, _, unit = text.partition(" ")
    return float(number) * _SCALES[unit]


def labels(page: Page) -> set[str]:
    """What is written on boxes."""
    return set(page.locator("g.frame").evaluate_all("all => all.map(g => g.ariaLabel)"))


def test_the_title_says_the_span(written: Written, open_file: OpenFile) -> None:
    """In the page and in its tab, with the recording that it is from."""
    page = open_file(written.html)
    expected = f"inference_spans.ogfcap · span {written.span_id}"
    assert page.locator("h1").inner_text() == expected
    assert page.title() == expected


def test_values_are_those_of_pprof(written: Written, open_file: OpenFile) -> None:
    """Each sample type has the leaves that pprof has of that span, with the same values, to the nanosecond."""
    page = open_file(written.html)
    for sample_type in written.types:
        theirs = pprof_top(written.pprof, sample_type)
        assert page.evaluate(SELF_BY_NAME, sample_type.type) == theirs
        total = pytest.approx(theirs.total(), rel=0.005)
        assert shown_total(page, sample_type) == total
        page.locator("#types label").filter(has_text=sample_type.type).click()
        box(page, "inference").hover()
        number, unit = detail(page)[2].split(" ")[1:3]
        assert float(number) * _SCALES.get(unit, 1) == total


def test_only_that_span_is_there(written: Written, open_file: OpenFile) -> None:
    """No other can be chosen, or found in the file, which somebody may want to pass on."""
    page = open_file(written.html)
    options = page.locator("#link option").all_inner_texts()
    assert [text[:16] for text in options] == ["all", written.span_id]
    text = written.html.read_text()
    known = {*ids_of("POST /infer"), *ids_of("gpu.batch")}
    assert {span_id for span_id in known if span_id in text} == {written.span_id}
    assert ("feed_forward" in text) == (written.span_id in ids_of("gpu.batch"))


@pytest.mark.parametrize(
    ("name", "kernels", "others"),
    [
        ("POST /infer", {"prefill"}, {"attention", "feed_forward"}),
        ("gpu.batch", {"attention", "feed_forward"}, {"prefill"}),
    ],
)
def test_the_flame_graph_has_the_kernels_of_that_span(
    name: str, kernels: set[str], others: set[str], open_file: OpenFile, tmp_path: Path
) -> None:
    """A request has its prompt, a step its two kernels under the lines that launched them, all of known length; what
    other spans did is not drawn.
    """
    for span_id in ids_of(name)[:3]:
        html = tmp_path / f"{span_id}.html"
        command = ["replay", str(CAPTURE), "--span-id", span_id, "--html", str(html)]
        assert CliRunner().invoke(cli, command).exit_code == 0
        page = open_file(html)
        page.locator("#types label").filter(has_text=GPU_TIME.type).click()
        seen = labels(page)
        assert kernels <= seen
        assert not others & seen
        assert {"inference", "Device.launch (device.py:77)"} <= seen
        of_kernels = page.evaluate(SELF_BY_NAME, GPU_TIME.type)
        assert sum(of_kernels[kernel] for kernel in kernels) == len(kernels) * 4 * MS // 5
        page.screenshot(path=tmp_path / f"{span_id}.png")
