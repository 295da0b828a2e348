"""What the agent tells about itself: copies of books that go on being written."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from otel_gpuflame.export.agent_snapshot import CaptureSnapshot, EventKey, ServiceTotals
from otel_gpuflame.pipeline.status import (
    MAX_OVERHEADS,
    MAX_SERVICES,
    OTHER_SERVICES,
    PUBLISH_EVERY_NS,
    AgentStatus,
)
from otel_gpuflame.profile.ledger import Ledger
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    GPU_COPY,
    GPU_LAUNCH,
    GPU_TIME,
    GPU_WAIT,
)
from tests.unit.encode.bundles import bundle
from tests.unit.profile.builders import counters


def of_service(
    service: str, wait: int = 0, launches: int = 0, copied: int = 0, executed: int = 0
) -> Bundle:
    """A bundle with these totals."""
    totals = {GPU_WAIT: wait, GPU_LAUNCH: launches, GPU_COPY: copied, GPU_TIME: executed}
    samples = {t: [(0, -1, 0, value)] for t, value in totals.items() if value}
    return bundle(samples, resource=(("service.name", service),))


def ledger(**kinds: dict[str, int]) -> Ledger:
    """Books with these counts of the source; what was sent has been profiled."""
    books = Ledger()
    books.take_source(counters(0, **kinds))
    books.profiled.update({kind: counts.get("sent", 0) for kind, counts in kinds.items()})
    return books


def published(status: AgentStatus, *, is_capturing: bool = True) -> CaptureSnapshot:
    """The snapshot after publishing."""
    status.publish(is_capturing=is_capturing)
    return status.snapshot


def test_nothing_is_seen_before_it_is_published() -> None:
    """A reader gets whole snapshots, not what is being written."""
    status = AgentStatus()
    before = status.snapshot
    status.add(of_service("train", wait=5))

    assert status.snapshot is before
    assert published(status).services == (ServiceTotals(service="train", wait_ns=5),)
    assert before.services == ()


def test_values_of_a_service_add_up_exact_and_estimated_apart() -> None:
    """All processes and windows of a service are one total; estimates have their own."""
    status = AgentStatus()
    status.add(of_service("train", wait=5, launches=2, copied=10))
    status.add(of_service("train", wait=7, launches=1))
    status.add(
        replace(of_service("train", launches=40, copied=30, executed=9), scope=ESTIMATED_SCOPE)
    )
    status.add(of_service("serve", launches=1))

    assert published(status).services == (
        ServiceTotals(
            service="train",
            wait_ns=12,
            launches=3,
            estimated_launches=40,
            copied_bytes=10,
            estimated_copied_bytes=30,
            estimated_executed_ns=9,
        ),
        ServiceTotals(service="serve", launches=1),
    )


def test_services_beyond_the_limit_are_one() -> None:
    """The first ones keep their metrics, the others share one, nothing is lost, and it is counted."""
    status = AgentStatus()
    for number in range(MAX_SERVICES + 50):
        status.add(of_service(f"s{number}", wait=1, launches=2))
    status.add(of_service("s0", wait=1))

    snapshot = published(status)

    by_name = {totals.service: totals for totals in snapshot.services}
    assert len(by_name) == MAX_SERVICES + 1
    assert (by_name["s0"].wait_ns, by_name[OTHER_SERVICES].wait_ns) == (2, 50)
    assert snapshot.overflowed_profiles == 100


def test_a_service_has_one_name_in_all_metrics() -> None:
    """Whoever asks first: what has its own name here has no part in what others share, and the other way round."""
    status = AgentStatus()
    names = [status.label(f"s{number}") for number in range(MAX_SERVICES)]
    status.add(of_service("late", wait=3))
    status.add(of_service("s7", wait=4))

    assert names == [f"s{number}" for number in range(MAX_SERVICES)]
    assert status.label("late") == OTHER_SERVICES
    assert published(status).services == (
        ServiceTotals(service=OTHER_SERVICES, wait_ns=3),
        ServiceTotals(service="s7", wait_ns=4),
    )
    assert published(status).overflowed_profiles == 1


def test_a_target_without_a_name_is_counted() -> None:
    """It has the name that OpenTelemetry gives to what has none."""
    status = AgentStatus()
    status.add(replace(of_service("", wait=3), resource=()))

    assert published(status).services[0].service == "unknown_service"


def test_every_event_is_told_by_what_became_of_it() -> None:
    """Seen = profiled + lost + nested + left out + pending, by stage, kind and reason."""
    status = AgentStatus()
    books = ledger(
        launch={"seen": 20, "sent": 10, "ring_full": 3, "nested": 2},
        stack={"seen": 5, "lost": 1},
        symbolize={"python_frames": 9, "python_frames_unreadable": 4, "native_stacks_cut": 2},
    )
    books.profiled["launch"] -= 1
    books.dropped["launch", "outside_window"] = 1
    books.remarks["late for their window"] = 6
    books.links.update({("launch", "linked"): 5, ("launch", "too_many"): 3, ("wait", "no_span"): 1})
    status.begin(books)

    snapshot = published(status)

    assert dict(snapshot.events) == {
        EventKey("source", "launch", "seen"): 20,
        EventKey("profile", "launch", "profiled"): 9,
        EventKey("source", "launch", "lost", "ring_full"): 3,
        EventKey("source", "launch", "nested"): 2,
        EventKey("profile", "launch", "left_out", "outside_window"): 1,
        EventKey("source", "stack", "seen"): 5,
        EventKey("source", "stack", "lost", "lost"): 1,
        EventKey("symbolize", "python_frames", "resolved"): 9,
        EventKey("symbolize", "python_frames", "unreadable"): 4,
        EventKey("symbolize", "native_stacks", "cut"): 2,
        EventKey("link", "launch", "linked"): 5,
        EventKey("link", "launch", "unlinked", "too_many"): 3,
        EventKey("link", "wait", "unlinked", "no_span"): 1,
    }
    assert snapshot.pending == (("launch", 5),)
    assert snapshot.remarks == (("late for their window", 6),)


def test_counts_go_on_over_stretches_of_capture() -> None:
    """Switching off and on starts new books; totals never go back, and calls cut off are accounted for."""
    status = AgentStatus()
    status.begin(ledger(wait={"seen": 10, "sent": 8}))
    first = published(status)
    ended = published(status, is_capturing=False)
    books = ledger(wait={"seen": 3, "sent": 1})
    books.remarks["odd"] = 1
    status.begin(books)
    second = published(status)

    cut_off = EventKey("source", "wait", "left_out", "capture_ended")
    assert cut_off not in dict(first.events)
    assert (dict(ended.events)[cut_off], ended.pending) == (2, ())
    assert dict(second.events) == {
        EventKey("source", "wait", "seen"): 13,
        EventKey("profile", "wait", "profiled"): 9,
        cut_off: 2,
    }
    assert second.pending == (("wait", 2),)
    for earlier, later in ((first, ended), (ended, second)):
        assert all(count <= dict(later.events)[key] for key, count in earlier.events)


def test_remarks_go_on_too() -> None:
    """Remarks of all stretches are one total."""
    status = AgentStatus()
    for _ in range(2):
        books = Ledger()
        books.remarks["odd"] = 2
        status.begin(books)

    assert published(status).remarks == (("odd", 4),)


def test_it_is_time_once_a_second() -> None:
    """A copy costs a little: not at every round of the capture."""
    status = AgentStatus()

    due = [status.is_due(step * PUBLISH_EVERY_NS // 4) for step in range(9)]

    assert due == [True, False, False, False] * 2 + [True]


def test_the_state_of_the_capture_is_copied() -> None:
    """Duty, targets and switching are those given; the processes with the largest overhead are kept."""
    status = AgentStatus()
    overheads = {pid: ("train", pid / 1e6) for pid in range(1, MAX_OVERHEADS + 10)}
    status.publish(targets=3, is_capturing=True, duty=0.5, switch_ns=9.0, overheads=overheads)

    snapshot = status.snapshot
    overheads.clear()

    assert (snapshot.targets, snapshot.is_capturing) == (3, True)
    assert (snapshot.duty, snapshot.switch_ns) == (0.5, 9.0)
    assert len(snapshot.overheads) == MAX_OVERHEADS
    assert snapshot.overheads[0].pid == MAX_OVERHEADS + 9
    assert min(overhead.pid for overhead in snapshot.overheads) == 10


def test_nothing_is_being_captured_at_the_end() -> None:
    """Publishing without arguments says that capture is over."""
    status = AgentStatus()
    status.publish(targets=3, is_capturing=True, duty=0.5)
    status.publish()

    snapshot = status.snapshot
    assert (snapshot.targets, snapshot.is_capturing, snapshot.duty) == (0, False, 0.0)


def test_reading_while_writing_is_safe() -> None:
    """A reader sees totals that only grow and belong together, while the capture thread adds services and kinds."""
    status = AgentStatus()
    books = Ledger()
    status.begin(books)
    done = threading.Event()
    problems: list[str] = []

    def read() -> None:
        last = 0
        while not done.is_set():
            snapshot = status.snapshot
            waits = sum(totals.wait_ns for totals in snapshot.services)
            remarked = sum(count for _, count in snapshot.remarks)
            if waits < last or waits != remarked:
                problems.append(f"{last} {waits} {remarked}")
            last = waits

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        status.add(of_service(f"s{number % 40}", wait=1))
        books.remarks[f"remark {number}"] += 1
        status.publish(is_capturing=True)
    done.set()
    reader.join()

    assert problems == []


@pytest.mark.parametrize("kind", ["launch", "cpu_sample", "driver"])
def test_all_kinds_with_an_account_are_told_as_events(kind: str) -> None:
    """Calls, samples and system calls go the same way."""
    status = AgentStatus()
    status.begin(ledger(**{kind: {"seen": 4, "sent": 4}}))

    assert dict(published(status).events)[EventKey("profile", kind, "profiled")] == 4
