"""Whether another client of CUPTI is at work, by its calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otel_gpuflame.capture.cupti.clients import (
    FLUSHED_NS,
    SILENT_NS,
    UNFLUSHED_NS,
    UNSEEN_NS,
    Change,
    Clients,
    OwnCalls,
)
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import BY_NAME

WORKER, MAIN, OTHER = 0x7000, 0x7100, 0x7200
KERNEL, COPY, SYNC = 10, 1, 38
REGISTER, FLUSH, FINALIZE = (
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityFlushAll",
    "cuptiFinalize",
)
ENABLE, DISABLE = "cuptiActivityEnable", "cuptiActivityDisable"
ENABLE_CONTEXT, DISABLE_CONTEXT = "cuptiActivityEnableContext", "cuptiActivityDisableContext"
MS = 1_000_000
OWN = OwnCalls(worker_thread=WORKER, init_thread=MAIN, init_begin_ns=10, init_end_ns=20)


class Story:
    """What one process does, and what is made of it."""

    def __init__(self, own: OwnCalls = OWN) -> None:
        self.clients = Clients()
        self.own = own
        self.now_ns = 1000 * MS

    def call(self, name: str, kind: int = 0, *, thread: int = OTHER, context: int = 0) -> None:
        """A call, now."""
        row = np.zeros(1, wire.CALL)
        row["start_ns"], row["thread_pointer"] = self.now_ns, thread
        row["api"], row["object"], row["stream"] = BY_NAME[name].id, kind, context
        self.clients.add(row)

    def after(self, wait_ns: int = 0, *, is_displaced: bool = False) -> Change | None:
        """What has changed so much later."""
        self.now_ns += wait_ns
        return self.clients.judge(self.own, self.now_ns, is_displaced=is_displaced)

    def begin(self) -> None:
        """A profiler as Kineto."""
        self.call(REGISTER)
        for kind in (COPY, KERNEL):
            self.call(ENABLE, kind)

    def disable(self) -> None:
        """It records no more."""
        for kind in (COPY, KERNEL):
            self.call(DISABLE, kind)


def test_nobody_is_at_work_where_nobody_calls() -> None:
    """However long."""
    story = Story()
    assert story.after() is None
    assert story.after(10 * SILENT_NS) is None


def test_a_profiler_is_at_work_until_it_has_fetched_what_it_recorded() -> None:
    """Its begin and its end are told once each, and so for the next one."""
    story = Story()
    for _ in range(3):
        story.begin()
        assert story.after(MS) is Change.BEGAN
        assert story.after(30_000 * MS) is None
        story.disable()
        assert story.after(5 * FLUSHED_NS) is None
        story.call(FLUSH)
        assert story.after(FLUSHED_NS - 1) is None
        assert story.after(1) is Change.ENDED
        assert story.after(SILENT_NS) is None


def test_the_second_of_two_profilers_in_a_row_counts_as_the_first_going_on() -> None:
    """It begins before the first is taken to have ended."""
    story = Story()
    story.begin()
    assert story.after() is Change.BEGAN
    story.disable()
    story.call(FLUSH)
    assert story.after(FLUSHED_NS // 2) is None
    story.begin()
    assert story.after(10 * FLUSHED_NS) is None
    story.disable()
    story.call(FLUSH)
    assert story.after(FLUSHED_NS) is Change.ENDED


def test_a_profiler_that_is_over_when_it_is_known_has_ended() -> None:
    """The library may have lost its window to it."""
    story = Story()
    story.begin()
    story.disable()
    story.call(FLUSH)
    assert story.after(FLUSHED_NS) is Change.ENDED
    assert story.after() is None


def test_our_own_calls_are_no_clients() -> None:
    """Those of the worker at any time; those of the program's thread while it is in our library, and no others."""
    story = Story()
    story.now_ns = 15
    for thread in (WORKER, MAIN):
        story.call(REGISTER, thread=thread)
        story.call(ENABLE, KERNEL, thread=thread)
    assert story.after() is None
    story.now_ns = 21
    story.call(ENABLE, KERNEL, thread=WORKER)
    assert story.after() is None
    story.call(ENABLE, KERNEL, thread=MAIN)
    assert story.after() is Change.BEGAN


@pytest.mark.parametrize(("time_ns", "expected"), [(9, Change.BEGAN), (10**9, None)])
def test_the_programs_thread_is_ours_until_it_says_otherwise(
    time_ns: int, expected: Change | None
) -> None:
    """From when InitializeInjection began."""
    story = Story(OwnCalls(worker_thread=0, init_thread=MAIN, init_begin_ns=10, init_end_ns=None))
    story.now_ns = time_ns
    story.call(ENABLE, KERNEL, thread=MAIN)
    assert story.after() is expected


def test_calls_of_no_known_thread_tell_nothing() -> None:
    """BCC has no thread pointers."""
    story = Story()
    story.call(ENABLE, KERNEL, thread=0)
    assert story.after() is None


def test_who_left_kinds_on_is_given_up_at_last() -> None:
    """It died, or forgot: ten minutes after its last call. One that lives then begins anew."""
    story = Story()
    story.begin()
    assert story.after() is Change.BEGAN
    assert story.after(SILENT_NS - 1) is None
    assert story.after(1) is Change.ENDED
    story.call(ENABLE, SYNC)
    assert story.after() is Change.BEGAN


def test_flushes_keep_a_profiler_at_work() -> None:
    """As XLA's, every now and then."""
    story = Story()
    story.begin()
    assert story.after() is Change.BEGAN
    for _ in range(5):
        story.call(FLUSH)
        assert story.after(SILENT_NS - 1) is None


@pytest.mark.parametrize("begins", [True, False])
def test_what_is_not_followed_by_a_flush_ends_later(*, begins: bool) -> None:
    """Kinds that are off and not fetched; a registration that nothing follows."""
    story = Story()
    story.call(REGISTER)
    if begins:
        story.begin()
        story.disable()
    assert story.after() is Change.BEGAN
    assert story.after(UNFLUSHED_NS - 1) is None
    assert story.after(1) is Change.ENDED


def test_a_flush_alone_begins_nothing() -> None:
    """Kineto flushes again when it has ended."""
    story = Story()
    story.call(FLUSH)
    assert story.after() is None


def test_finalizing_ends_everything() -> None:
    """Whatever was enabled."""
    story = Story()
    story.begin()
    story.call(ENABLE_CONTEXT, SYNC, context=0x5000)
    assert story.after() is Change.BEGAN
    story.call(FINALIZE)
    assert story.after(FLUSHED_NS) is Change.ENDED


def test_kinds_are_enabled_by_context_or_for_all() -> None:
    """Disabling one context leaves the others; disabling a kind leaves none. The upper half of a kind means nothing."""
    story = Story()
    for context in (0x5000, 0x6000):
        story.call(ENABLE_CONTEXT, KERNEL, context=context)
    story.call(DISABLE_CONTEXT, KERNEL, context=0x5000)
    story.call(FLUSH)
    assert story.after(FLUSHED_NS) is Change.BEGAN
    story.call(DISABLE, KERNEL | 7 << 32)
    story.call(FLUSH)
    assert story.after(FLUSHED_NS) is Change.ENDED


def test_one_that_began_before_us_ends_with_what_we_see() -> None:
    """The library says that it is there; its end is seen."""
    story = Story()
    assert story.after(is_displaced=True) is Change.BEGAN
    assert story.after(UNSEEN_NS - 1, is_displaced=True) is None
    story.disable()
    story.call(FLUSH)
    assert story.after(FLUSHED_NS, is_displaced=True) is Change.ENDED


def test_one_that_is_never_seen_to_call_is_taken_to_have_ended() -> None:
    """A minute after the library had said it, or after its last flush."""
    story = Story()
    assert story.after(is_displaced=True) is Change.BEGAN
    story.after(UNSEEN_NS - 1, is_displaced=True)
    story.call(FLUSH)
    assert story.after(UNSEEN_NS - 1, is_displaced=True) is None
    assert story.after(1, is_displaced=True) is Change.ENDED
    assert story.after() is None


def test_calls_of_two_rounds_need_not_come_in_order() -> None:
    """Rows of one batch are put in order: a disabling before its enabling would last for ever."""
    story = Story()
    rows = np.zeros(3, wire.CALL)
    rows["thread_pointer"] = OTHER
    rows["start_ns"] = [story.now_ns + offset for offset in (2, 0, 1)]
    rows["api"] = [BY_NAME[name].id for name in (FLUSH, ENABLE, DISABLE)]
    rows["object"] = [0, KERNEL, KERNEL]
    story.clients.add(rows)
    assert story.after(MS) is Change.BEGAN
    assert story.after(FLUSHED_NS) is Change.ENDED


def test_a_flood_of_calls_is_bounded() -> None:
    """Of a process that we may never know more of, and of one that enables whatever there is."""
    rows: Any = np.zeros(10_000, wire.CALL)
    rows["thread_pointer"], rows["api"] = OTHER, BY_NAME[ENABLE].id
    rows["object"] = np.arange(10_000)
    story = Story()
    story.clients.add(rows)
    assert len(story.clients._untold) == 1024
    assert story.after() is not None
    assert len(story.clients._known.enabled) == 256
