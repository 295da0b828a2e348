"""When a process is looked at after it has changed."""

from __future__ import annotations

from otel_gpuflame.capture.target import SETTLE_NS, Target

MS = 1_000_000


def looked_at(target: Target, until_ms: int) -> list[int]:
    """Milliseconds at which it was looked at, asked once in each."""
    return [ms for ms in range(until_ms) if target.take_due(ms * MS)]


def test_a_change_is_looked_at_soon_and_again() -> None:
    """Once it has settled, then less and less often."""
    target = Target(7)
    target.changed(0)
    assert looked_at(target, 1_100) == [SETTLE_NS // MS, 20, 200, 1_000]


def test_a_program_that_goes_on_mapping_is_looked_at_all_the_same() -> None:
    """Whoever maps a library each millisecond may launch before it is done."""
    target = Target(7)
    seen = []
    for ms in range(30):
        target.changed(ms * MS)
        if target.take_due(ms * MS):
            seen.append((ms, target.is_first_look))
    assert seen == [(5, True), (11, True), (17, True), (23, True), (29, True)]


def test_looks_that_were_missed_are_one() -> None:
    """Nobody asked for a second: what was due is done once."""
    target = Target(7)
    target.changed(0)
    assert target.take_due(1_000 * MS)
    assert not target.is_first_look
    assert not target.take_due(1_001 * MS)


def test_a_process_that_has_not_changed_is_left_alone() -> None:
    """It has no looks."""
    assert not Target(7).take_due(0)
