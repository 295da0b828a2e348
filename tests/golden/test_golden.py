"""Replays of recorded captures give what they gave before: folded stacks, reviewed as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.encode.folded import encode_folded
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import ValueType
from otel_gpuflame.profile.top import total

CAPTURES = Path(__file__).parents[2] / "examples" / "captures"
EXPECTED = Path(__file__).parent / "expected"
NAMES = sorted(path.stem for path in CAPTURES.glob("*.ogfcap"))
FOLDED = [name for name in NAMES if name != "h200_service"]
"""Those whose stacks are few enough to be reviewed; see test_service_capture."""
HOW_TO_UPDATE = "look at the difference, then: pytest tests/golden --update-golden"


def folded(name: str, sample_type: ValueType) -> str:
    """Folded stacks of a capture, with Python lines."""
    bundles = replay(CAPTURES / f"{name}.ogfcap", AggregateOptions(window_ns=None)).bundles
    return encode_folded(bundles, sample_type, lines=True)


def test_there_are_captures() -> None:
    """Without a capture the tests below would check nothing."""
    assert NAMES, f"no capture in {CAPTURES}"


@pytest.mark.parametrize("sample_type", sample_types.ALL, ids=lambda t: t.type)
@pytest.mark.parametrize("name", FOLDED)
def test_replay_gives_the_expected_stacks(
    name: str, sample_type: ValueType, update_golden: bool
) -> None:
    """Every stack of the recording has the value that it had when the expectation was written."""
    expected = EXPECTED / f"{name}.{sample_type.type}.folded"
    found = folded(name, sample_type)
    if update_golden:
        EXPECTED.mkdir(exist_ok=True)
        expected.unlink(missing_ok=True)
        if found:
            expected.write_text(found)
    # A type of which the recording has nothing has no file.
    before = expected.read_text() if expected.is_file() else ""
    assert before or not found, f"{expected.name} is missing; {HOW_TO_UPDATE}"
    assert found.splitlines() == before.splitlines(), HOW_TO_UPDATE


def test_every_expectation_has_its_capture() -> None:
    """Files of captures or sample types that are gone are removed, so that none is taken for tested."""
    wanted = {f"{name}.{t.type}.folded" for name in FOLDED for t in sample_types.ALL}
    assert {path.name for path in EXPECTED.glob("*.folded")} <= wanted


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_whole_and_lost_nothing(name: str) -> None:
    """A recording that is shown to people has no damage, no loss, and samples of its headline."""
    result = replay(CAPTURES / f"{name}.ogfcap", AggregateOptions(window_ns=None))
    assert result.damage is None
    assert result.skipped_blocks == {}
    assert all(account.lost == account.pending == 0 for account in result.ledger.accounts())
    assert total(result.bundles, sample_types.HEADLINE) > 0
