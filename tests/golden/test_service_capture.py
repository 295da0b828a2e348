"""The bundled recording of a service with its traces: every number by line and by leaf, and every span's part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.top import TopRow, top_leaves, top_python_lines
from tests.integration.gpu.span_checks import check

CAPTURES = Path(__file__).parents[2] / "examples" / "captures"
CAPTURE, TRACES = CAPTURES / "h200_service.ogfcap", CAPTURES / "h200_service.json"
ATTACHED = Path(__file__).parent / "captures" / "h200_service_attached.ogfcap"
EXPECTED = Path(__file__).parent / "expected" / "h200_service.lines.txt"
HOW_TO_UPDATE = "look at the difference, then: pytest tests/golden --update-golden"
REQUESTS = 128


def lines() -> list[str]:
    """Type, value and place: by Python line, then by leaf."""
    bundles = replay(CAPTURE, AggregateOptions(window_ns=None)).bundles
    found = []
    for sample_type in sample_types.ALL:
        for ranked in (top_python_lines(bundles, sample_type), top_leaves(bundles, sample_type)):
            found += [f"{sample_type.type} {line(row)}" for row in ranked]
    return found


def line(row: TopRow) -> str:
    """Exact value, function, file and line."""
    return f"{row.value} {row.frame.name} {row.place}".rstrip()


def test_replay_gives_the_expected_numbers(update_golden: bool) -> None:
    """To the nanosecond, in the order in which they are shown."""
    found = lines()
    if update_golden:
        EXPECTED.write_text("\n".join(found) + "\n")
    assert found == EXPECTED.read_text().splitlines(), HOW_TO_UPDATE


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, dict[str, int]]]:
    """What the recording says of the spans of its traces; sums have been compared."""
    return check(CAPTURE, TRACES)


def test_each_launch_is_on_the_span_in_which_it_was_made(
    figures: dict[str, dict[str, dict[str, int]]],
) -> None:
    """Every one of 128 requests at 64 at a time, and of their steps."""
    launches, spans = figures["launches"], figures["spans"]
    assert spans["call"] == spans["POST /infer"] == spans["prefill"] == REQUESTS
    assert launches["all"] == launches["on_a_span"] > 10_000
    assert launches["on_a_span_of_no_work"] == launches["farthest_outside_ns"] == 0


@pytest.mark.parametrize("mode", ["local_root", "active"])
def test_spans_and_the_rest_are_the_total(
    figures: dict[str, dict[str, dict[str, int]]], mode: str
) -> None:
    """Nothing that was executed or waited for is left over."""
    for sample_type in ("gpu_wait", "gpu_time", "gpu_queue", "gpu_launch", "gpu_copy"):
        of_type: dict[str, int] = figures[mode][sample_type]  # type: ignore[assignment]
        assert of_type["all"] > of_type["unlinked"] == of_type["unlinked_when_divided"] == 0


def test_a_service_that_ran_before_has_its_kernels_under_its_lines() -> None:
    """Recorded by --pid: none of its 10,224 launches of kernels has a handle that anybody named."""
    result = replay(ATTACHED, AggregateOptions(window_ns=None))
    (account,) = [each for each in result.ledger.accounts() if each.kind == "execution"]
    assert account.seen == account.profiled == 10_968
    remarks = result.ledger.remarks
    assert not [text for text in remarks if "without a stack" in text]
    lines = top_python_lines(result.bundles, sample_types.GPU_TIME)
    assert [row.frame.name for row in lines[:3]] == [
        "Block.forward",
        "Block.forward",
        "Block.attend",
    ]
    assert "[no Python frame]" not in {row.frame.name for row in lines}
