"""The queue in front of an exporter: order, retries, bounds, and books that add up. No real time passes."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.encode import otlp
from otel_gpuflame.export.delivery import (
    FAILURES_AT_HEAD,
    FIRST_PAUSE_S,
    MAX_AGE_S,
    MAX_ASKED_PAUSE_S,
    MAX_PAUSE_S,
    Delivery,
)
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.profile.model import Bundle, Link
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.unit.encode.bundles import STEP, bundle
from tests.unit.export.deliveries import (
    ACCEPTED,
    BUSY,
    REFUSED,
    TYPES,
    Receiver,
    Sent,
    Setup,
    check,
    of_service,
    script,
)


def test_bundles_are_sent_in_order_and_counted() -> None:
    """What is put first is sent first; every profile counts, and the exporter is closed at the end."""
    setup = Setup()
    setup.put("a", "b", "c", types=TYPES)

    counts = setup.run()

    assert setup.receiver.services == ["a", "b", "c"]
    assert (counts.put, counts.exported, counts.waiting) == (9, 9, 0)
    assert (counts.waiting_samples, counts.waiting_bytes) == (0, 0)
    assert setup.receiver.closes == 1


def test_what_waits_is_known() -> None:
    """Profiles, samples and bytes in the queue can be read while nothing has been sent."""
    setup = Setup()
    setup.put("a", "b", types=TYPES)

    counts = setup.counts

    assert (counts.waiting, counts.waiting_samples) == (6, 6)
    assert counts.waiting_bytes > 0


def test_bundles_without_samples_are_not_queued() -> None:
    """Nothing to send is nothing to count."""
    setup = Setup()
    setup.delivery.put(bundle({GPU_WAIT: []}))

    assert setup.run().put == 0
    assert setup.receiver.sent == []


def test_a_full_queue_drops_the_oldest() -> None:
    """Where there is room for two bundles, the newest two are kept and the others counted."""
    one = Setup()
    one.put("x", types=TYPES)
    setup = Setup(max_bytes=2 * one.counts.waiting_bytes)
    setup.put("a", "b", "c", "d", types=TYPES)

    counts = setup.run()

    assert setup.receiver.services == ["c", "d"]
    assert counts.dropped == (("queue_full", 6),)
    assert counts.exported == 6


def test_a_bundle_larger_than_the_queue_is_still_sent() -> None:
    """The bound holds back the second bundle, not the only one."""
    setup = Setup(max_bytes=1)
    setup.put("a")

    assert setup.run().exported == 1


def test_many_tiny_bundles_are_bounded_too() -> None:
    """A bundle of one sample takes kilobytes, so that the number of bundles is bounded as well."""
    setup = Setup(max_bytes=1 << 20)
    setup.put(*(str(number) for number in range(1_000)))

    assert setup.counts.waiting < 256
    assert setup.counts.waiting_bytes <= 1 << 20


def test_a_busy_receiver_gets_the_same_bundle_again_before_all_others() -> None:
    """A bundle that is to be sent again goes back to its place."""
    setup = Setup(script(ACCEPTED, BUSY, BUSY))
    setup.put("a", "b", "c")

    counts = setup.run()

    assert setup.receiver.services == ["a", "b", "b", "b", "c"]
    assert (counts.exported, counts.retries) == (3, 2)


def test_pauses_double_up_to_a_bound_and_start_anew_after_success() -> None:
    """1, 2, 4 … seconds, spread by a fifth, at most 30; the next trouble begins with 1 again."""
    setup = Setup(script(*[BUSY] * 7, ACCEPTED, BUSY))
    setup.put("a", "b")

    setup.run()

    planned = [FIRST_PAUSE_S * 2**n for n in range(5)] + [MAX_PAUSE_S] * 2 + [FIRST_PAUSE_S]
    assert setup.clock.waits_s == pytest.approx(planned, rel=0.2)
    assert setup.clock.waits_s != planned


@pytest.mark.parametrize(
    ("asked_s", "waited_s"), [(45.0, 45.0), (1e9, MAX_ASKED_PAUSE_S)], ids=["kept", "bounded"]
)
def test_a_pause_that_the_receiver_asks_for_is_kept(asked_s: float, waited_s: float) -> None:
    """OTLP: a client honours Retry-After and RetryInfo; one that silences us for good is cut."""
    setup = Setup(script(replace(BUSY, retry_after_s=asked_s)))
    setup.put("a")

    assert setup.run().exported == 1
    assert setup.clock.waits_s == [waited_s]


def test_what_is_too_old_is_dropped() -> None:
    """A bundle that has waited longer than backends take is not sent any more."""
    setup = Setup()
    setup.put("old")
    setup.clock.now_s += MAX_AGE_S / 2
    setup.put("young")
    setup.clock.now_s += MAX_AGE_S / 2 + 1

    counts = setup.run()

    assert setup.receiver.services == ["young"]
    assert counts.dropped == (("expired", 1),)


def test_the_queue_lets_go_of_old_bundles_while_the_sender_is_held_up() -> None:
    """Age bounds the queue at each put, not only when the sender comes round."""
    setup = Setup()
    setup.put("old")
    setup.clock.now_s += MAX_AGE_S + 1
    setup.put("young")

    assert setup.counts.dropped == (("expired", 1),)


def test_a_bundle_that_fails_alone_does_not_hold_up_the_others() -> None:
    """A receiver that times out on one bundle gets the others after a few attempts; order is kept otherwise."""
    setup = Setup(lambda sent: BUSY if sent.service == "poison" else ACCEPTED)
    setup.put("poison", "a", "b", "c")

    counts = setup.run(deadline_s=MAX_AGE_S / 2)

    others = [service for service in setup.receiver.services if service != "poison"]
    assert others == ["a", "b", "c"]
    assert setup.receiver.services[:FAILURES_AT_HEAD] == ["poison"] * FAILURES_AT_HEAD
    assert (counts.exported, counts.dropped) == (3, (("shutdown", 1),))


def test_order_survives_a_long_outage() -> None:
    """When nothing gets through for a while, at most the first two bundles change places."""
    setup = Setup(script(*[BUSY] * 12))
    setup.put("a", "b", "c", "d")

    assert setup.run().exported == 4
    sent = setup.receiver.services[12:]
    assert sorted(sent[:2]) == ["a", "b"]
    assert sent[2:] == ["c", "d"]


def test_a_bundle_that_was_passed_over_gets_another_turn() -> None:
    """When the next bundle gets through, it was the receiver after all: the first one goes before all others."""
    setup = Setup(script(*[BUSY] * (FAILURES_AT_HEAD + 1)))
    setup.put("a", "b", "c")

    assert setup.run().exported == 3
    assert setup.receiver.services == [*["a"] * FAILURES_AT_HEAD, "b", "b", "a", "c"]


@pytest.mark.parametrize("bad", [t.type for t in TYPES])
def test_one_bad_profile_does_not_cost_its_neighbours(bad: str) -> None:
    """A request that is refused as a whole is sent again profile by profile, each once."""
    setup = Setup(lambda sent: REFUSED if bad in sent.types else ACCEPTED)
    setup.put("a", types=TYPES)

    counts = setup.run()

    assert [sent.types for sent in setup.receiver.sent[1:]] == [(t.type,) for t in TYPES]
    assert (counts.exported, counts.rejected) == (2, 1)


def test_an_outage_while_profiles_go_one_by_one_loses_none() -> None:
    """After a retryable answer the sending one by one goes on where it was."""
    setup = Setup(script(REFUSED, ACCEPTED, BUSY, ACCEPTED, REFUSED))
    setup.put("a", types=TYPES)

    counts = setup.run()

    names = [t.type for t in TYPES]
    assert [sent.types[0] for sent in setup.receiver.sent[1:]] == [
        names[0],
        *names[1:2] * 2,
        names[2],
    ]
    assert (counts.exported, counts.rejected) == (2, 1)


def test_a_receiver_that_refuses_everything_is_not_asked_seven_times_as_often() -> None:
    """Once sending one by one has not helped, bundles refused for the same reason are given up whole."""
    setup = Setup(lambda _: REFUSED)
    setup.put("a", "b", "c", types=TYPES)

    counts = setup.run()

    assert setup.receiver.services == ["a"] * 4 + ["b", "c"]
    assert counts.rejected == 9


def test_sending_one_by_one_is_tried_again_for_another_reason_and_after_success() -> None:
    """What did not help once may help for another fault, or when the receiver has been put right."""
    answers = [REFUSED] * 4 + [replace(REFUSED, message="other")] + [ACCEPTED] * 3 + [REFUSED]
    setup = Setup(script(*answers))
    setup.put("a", "b", "c", types=TYPES)

    counts = setup.run()

    assert setup.receiver.services == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert (counts.rejected, counts.exported) == (3, 6)


@pytest.mark.parametrize(("said", "counted"), [(1, 1), (3, 3), (1_000, 3), (-1, 0)])
def test_partial_success_is_counted_and_not_sent_again(said: int, counted: int) -> None:
    """OTLP: what was rejected in part must not be retried; no count is above what was sent."""
    partial = ExportResult(outcome=Outcome.PARTIAL, message="some", rejected_profiles=said)
    setup = Setup(script(partial))
    setup.put("a", types=TYPES)

    counts = setup.run()

    assert len(setup.receiver.sent) == 1
    assert (counts.rejected, counts.exported) == (counted, 3 - counted)


@pytest.fixture
def two_requests(monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle of two types with six stacks, where a request takes four samples of a type."""
    monkeypatch.setattr(otlp, "MAX_PROFILE_SAMPLES", 4)
    rows = [(stack, -1, 0, 10 + stack) for stack in range(6)]
    return bundle({GPU_WAIT: rows, GPU_LAUNCH: rows}, stacks=[(n,) for n in range(6)])


def samples_of(sent: Sent) -> int:
    """Samples in a request."""
    (resource,) = sent.request.resource_profiles
    return sum(len(p.samples) for scope in resource.scope_profiles for p in scope.profiles)


def test_a_request_that_was_accepted_is_not_sent_again(two_requests: Bundle) -> None:
    """Of a bundle in several requests, only those that did not get through are repeated."""
    setup = Setup(script(ACCEPTED, BUSY))
    setup.delivery.put(two_requests)

    counts = setup.run()

    first, second, again = setup.receiver.sent
    assert again.request == second.request != first.request
    assert samples_of(first) + samples_of(second) == 12
    assert (counts.put, counts.exported, counts.retries) == (2, 2, 1)


def test_a_profile_in_pieces_counts_once(two_requests: Bundle) -> None:
    """A profile of which a piece was refused is rejected; of the refused request every piece is sent alone, once."""
    setup = Setup(script(ACCEPTED, REFUSED, REFUSED))
    setup.delivery.put(two_requests)

    counts = setup.run()

    first, refused, *alone = setup.receiver.sent
    assert [sent.types for sent in alone] == [("gpu_wait",), ("gpu_launch",)]
    assert sum(map(samples_of, alone)) == samples_of(refused) == 12 - samples_of(first)
    assert (counts.put, counts.exported, counts.rejected) == (2, 1, 1)


def test_profiles_that_go_alone_keep_their_place(two_requests: Bundle) -> None:
    """What was refused as a whole comes before the requests after it."""
    setup = Setup(script(REFUSED))
    setup.delivery.put(two_requests)

    assert setup.run().exported == 2
    assert [len(sent.types) for sent in setup.receiver.sent] == [2, 1, 1, 2]


def test_no_request_of_a_bundle_is_sent_after_the_deadline(two_requests: Bundle) -> None:
    """Time may be up between two requests of a bundle."""

    def answer(_: Sent) -> ExportResult:
        setup.clock.now_s += 30
        return ACCEPTED

    setup = Setup(answer)
    setup.delivery.put(two_requests)

    counts = setup.run(deadline_s=10)

    assert len(setup.receiver.sent) == 1
    assert counts.dropped == (("shutdown", 2),)


def test_pieces_left_at_the_deadline_are_dropped(two_requests: Bundle) -> None:
    """A profile of which a piece was not sent in time is not counted as exported."""
    setup = Setup(script(ACCEPTED, *[BUSY] * 100))
    setup.delivery.put(two_requests)

    assert setup.run(deadline_s=10).dropped == (("shutdown", 2),)


def test_what_cannot_be_encoded_does_not_cost_its_neighbours() -> None:
    """A profile with a broken span link is dropped alone."""
    setup = Setup()
    broken = bundle(
        {GPU_WAIT: [(0, 0, 0, 5)], GPU_LAUNCH: [(1, -1, 0, 2)]}, links=[Link(b"short", b"too")]
    )
    setup.delivery.put(broken)
    setup.put("next")

    counts = setup.run()

    assert [sent.types for sent in setup.receiver.sent] == [("gpu_launch",), ("gpu_wait",)]
    assert (counts.exported, counts.dropped) == (2, (("not_encodable", 1),))


def test_a_bundle_that_breaks_the_encoder_does_not_end_the_thread() -> None:
    """An index outside of its table is nobody's plan; it costs that profile only."""
    setup = Setup()
    setup.delivery.put(bundle({GPU_WAIT: [(99, -1, 0, 5)]}))
    setup.put("next")

    counts = setup.run()

    assert (counts.exported, counts.dropped) == (1, (("not_encodable", 1),))


def test_a_profile_too_large_for_any_request_is_dropped_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One stack larger than a request costs the profiles that have no other, and is logged with its value."""
    frames = [STEP._replace(name=f"{n}{'x' * 1_000}") for n in range(5_000)]
    setup = Setup()
    setup.delivery.put(
        bundle(
            {GPU_WAIT: [(0, -1, 0, 55)], GPU_LAUNCH: [(0, -1, 0, 1), (1, -1, 0, 3)]},
            frames=frames,
            stacks=(tuple(range(5_000)), (0,)),
        )
    )

    counts = setup.run()

    assert (counts.exported, counts.dropped) == (1, (("too_large", 1),))
    assert "55 of gpu_wait are dropped" in caplog.text


def test_an_exporter_that_raises_loses_one_bundle() -> None:
    """An exporter that breaks its promise must not end the thread."""

    def answer(sent: Sent) -> ExportResult:
        if sent.service == "a":
            raise RuntimeError("odd state")
        return ACCEPTED

    setup = Setup(answer)
    setup.put("a", "b")

    counts = setup.run()

    assert (counts.rejected, counts.exported) == (1, 1)


def test_an_exporter_that_cannot_be_closed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The end of the thread is orderly whatever `close` does."""
    setup = Setup()
    setup.receiver.close = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]

    setup.run()

    assert "could not be closed" in caplog.text


def test_the_rest_is_sent_before_the_deadline() -> None:
    """Closing sends what waits, and tries again where that may help."""
    setup = Setup(script(BUSY))
    setup.put("a", "b")

    assert setup.run(deadline_s=5).exported == 2


def test_what_is_left_at_the_deadline_is_dropped() -> None:
    """A receiver that stays away costs the deadline, not longer."""
    setup = Setup(lambda _: BUSY)
    setup.put("a", "b")
    began_s = setup.clock.now_s

    counts = setup.run(deadline_s=5)

    assert counts.dropped == (("shutdown", 2),)
    assert setup.clock.now_s == began_s + 5


def test_nothing_is_sent_after_the_deadline() -> None:
    """A receiver that takes long for one bundle leaves no time for the next."""

    def answer(_: Sent) -> ExportResult:
        setup.clock.now_s += 3
        return ACCEPTED

    setup = Setup(answer)
    setup.put("a", "b", "c")

    counts = setup.run(deadline_s=5)

    assert setup.receiver.services == ["a", "b"]
    assert (counts.exported, counts.dropped) == (2, (("shutdown", 1),))


def test_the_earliest_deadline_counts() -> None:
    """Closing again does not give more time."""
    setup = Setup(lambda _: BUSY)
    setup.put("a")
    setup.delivery.close(5)
    began_s = setup.clock.now_s

    setup.run(deadline_s=500)

    assert setup.clock.now_s == began_s + 5


def test_what_comes_after_the_end_is_counted() -> None:
    """A bundle that is put when nobody sends any more is a drop, not a leak."""
    setup = Setup()
    setup.run()
    setup.put("late")

    assert setup.counts.dropped == (("shutdown", 1),)
    assert setup.counts.waiting == 0


def test_abort_ends_a_request_on_its_way() -> None:
    """The exporter is closed under the request; that its answer is "closed" does not make it a rejection."""

    def answer(_: Sent) -> ExportResult:
        setup.delivery.abort()
        return ExportResult(outcome=Outcome.REJECTED, message="the exporter is closed")

    setup = Setup(answer)
    setup.put("a", "b", types=TYPES)

    counts = setup.run()

    assert setup.receiver.services == ["a"]
    assert counts.dropped == (("shutdown", 6),)
    assert setup.receiver.closes == 1


def test_drops_are_logged_by_the_thread_that_sends(caplog: pytest.LogCaptureFixture) -> None:
    """Putting only counts: the capture must not wait for a log; the sender then names number and reason."""
    setup = Setup(max_bytes=1)
    with caplog.at_level(logging.WARNING):
        setup.put("a", "b", "c")
        assert caplog.text == ""
        setup.run()

    assert "2 profiles dropped: queue full" in caplog.text


def test_what_the_receiver_says_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A warning beside success reaches the log, and so does a refusal."""
    setup = Setup(script(replace(ACCEPTED, message="deprecated"), REFUSED))
    setup.put("a", "b")

    setup.run()

    assert "deprecated" in caplog.text
    assert "bad profile" in caplog.text


def test_threads_may_put_while_another_sends() -> None:
    """Bundles of several threads arrive each once, and the counts add up at every moment."""
    setup = Setup()
    receiver = Receiver(setup.clock)
    delivery = Delivery(receiver)
    receiver.answer = lambda _: check(delivery.counts()) or ACCEPTED  # type: ignore[func-returns-value]
    sender = threading.Thread(target=delivery.run)
    sender.start()

    def feed(name: str) -> None:
        for number in range(50):
            delivery.put(of_service(f"{name}{number}", TYPES))

    feeders = [threading.Thread(target=feed, args=(name,)) for name in "abcd"]
    for thread in feeders:
        thread.start()
    for thread in feeders:
        thread.join()
    delivery.close(3_600)
    sender.join()

    assert sorted(receiver.services) == sorted(f"{n}{i}" for n in "abcd" for i in range(50))
    assert (delivery.counts().put, delivery.counts().exported) == (600, 600)


_ANSWERS = st.sampled_from(
    [
        ACCEPTED,
        BUSY,
        REFUSED,
        replace(REFUSED, message="other"),
        replace(BUSY, retry_after_s=50.0),
        ExportResult(outcome=Outcome.PARTIAL, rejected_profiles=2),
        None,
    ]
)
"""None: the exporter raises."""


@given(
    answers=st.lists(st.tuples(_ANSWERS, st.floats(0, 300), st.integers(0, 2)), max_size=40),
    first=st.integers(0, 6),
    room=st.integers(1, 5),
    deadline_s=st.floats(0, 500),
)
def test_counts_add_up_whatever_happens(
    answers: list[tuple[ExportResult | None, float, int]],
    first: int,
    room: int,
    deadline_s: float,
) -> None:
    """What was put is exported, rejected, dropped or waiting at every request; nothing waits at the end.

    Requests take time, and bundles come while they do.
    """
    left = list(answers)
    put = first

    def answer(_: Sent) -> ExportResult:
        nonlocal put
        result, took_s, arrivals = left.pop(0) if left else (ACCEPTED, 0.0, 0)
        setup.clock.now_s += took_s
        setup.put(*"x" * arrivals, types=TYPES)
        put += arrivals
        check(setup.delivery.counts())
        if result is None:
            raise RuntimeError("odd state")
        return result

    probe = Setup()
    probe.put("x", types=TYPES)
    setup = Setup(answer, max_bytes=room * probe.counts.waiting_bytes)
    setup.put(*"x" * first, types=TYPES)

    counts = setup.run(deadline_s)

    assert counts.put == 3 * put
    assert (counts.waiting, counts.waiting_samples, counts.waiting_bytes) == (0, 0, 0)
    accepted = sum(len(sent.types) for sent in setup.receiver.sent)
    assert counts.exported <= accepted
