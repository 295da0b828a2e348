"""Which stacks are still known."""

from __future__ import annotations

from otel_gpuflame.capture.known_stacks import NO_STACK, KnownStacks
from otel_gpuflame.events.frames import ProcessKey, StackKey

ONE, OTHER = ProcessKey(1, 10), ProcessKey(2, 20)


def keys(*numbers: int) -> list[StackKey]:
    """Keys that differ in their low word."""
    return [StackKey(7, number) for number in numbers]


def test_what_was_never_delivered_is_unknown() -> None:
    """Only keys that were not added are reported; "no stack was taken" is no key."""
    known = KnownStacks()
    known.add(keys(1)[0], ONE)
    assert known.unknown([*keys(1, 2), NO_STACK]) == keys(2)


def test_least_recently_used_go_first() -> None:
    """Use keeps a stack; what is let go is unknown afterwards."""
    known = KnownStacks(max_stacks=10)
    for key in keys(*range(12)):
        known.add(key, ONE)
    assert known.unknown(keys(0, 1)) == []
    assert known.let_go() == tuple(keys(2, 3, 4))
    assert known.unknown(keys(2)) == keys(2)
    assert len(known) == 9
    assert known.let_go() == ()


def test_stacks_of_an_ended_process_go() -> None:
    """Those of others stay."""
    known = KnownStacks()
    first, second = keys(1, 2)
    known.add(first, ONE)
    known.add(second, OTHER)
    assert known.forget(ONE) == (first,)
    assert first not in known
    assert second in known
