"""Encoding elsewhere gives what encoding here gives."""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpuflame.encode.otlp import encode_otlp, encode_requests
from otel_gpuflame.export.delivery import Delivery, DeliveryCounts
from otel_gpuflame.export.result import ExportResult
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.pipeline import encoding, replay
from otel_gpuflame.pipeline.encoding import EncodingProcess
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle, Link
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    GPU_LAUNCH,
    GPU_WAIT,
    PROBABILITY_ATTRIBUTE,
)
from tests.unit.encode.bundles import bundle, waits_and_launches
from tests.unit.export.deliveries import ACCEPTED, REFUSED, Answer, Clock, Receiver, Sent
from tests.unit.findings.programs import unpinned_copy

SERVICE = Path(__file__).parents[3] / "examples" / "captures" / "h200_service.ogfcap"


@pytest.fixture
def encode() -> Iterator[EncodingProcess]:
    """An encoding process, ended with the test."""
    process = EncodingProcess()
    yield process
    process.close()


def test_requests_are_the_same(encode: EncodingProcess) -> None:
    """Byte for byte, and nothing is dropped."""
    dropped: Counter[str] = Counter()
    there = encode([waits_and_launches()], dropped=dropped)
    here = encode_requests([waits_and_launches()], dropped=Counter())
    assert [e.request for e in there] == [e.request for e in here]
    assert not dropped


def test_findings_come_from_where_bundles_are_encoded() -> None:
    """Rules are asked there, too, and only if somebody wants to know."""
    noted: list[Finding] = []
    encode = EncodingProcess(noted.extend)
    bundles = unpinned_copy().bundles()
    requests = encode.with_findings(bundles, dropped=Counter())
    encode.close()
    assert noted == find(bundles)
    assert len(noted) == 1
    assert [e.request for e in requests] == encode_otlp(bundles)


def delivered(
    bundles: Sequence[Bundle],
    note: Callable[[Sequence[Finding]], None],
    answer: Answer = lambda _: ACCEPTED,
) -> DeliveryCounts:
    """What becomes of `bundles` on the agent's way."""
    clock = Clock()
    encode = EncodingProcess(note)
    delivery = Delivery(
        Receiver(clock, answer),
        encode=encode,
        encode_whole=encode.with_findings,
        clock=clock,
        wait=clock.wait,
    )
    for each in bundles:
        delivery.put(each)
    delivery.close(3_600)
    delivery.run()
    encode.close()
    return delivery.counts()


def refusing_company(sent: Sent) -> ExportResult:
    """Profiles are taken one by one only."""
    return REFUSED if len(sent.types) > 1 else ACCEPTED


def test_profiles_that_go_one_by_one_are_no_windows_for_rules() -> None:
    """Each window is judged once and whole: the idle time alone would be `input-bound` in the first."""
    bundles = replay(SERVICE, AggregateOptions(window_ns=10_000_000_000)).bundles
    bundles += unpinned_copy().bundles()
    noted: list[Finding] = []

    counts = delivered(bundles, noted.extend, refusing_company)

    assert counts.put == counts.exported
    assert noted == [finding for each in bundles for finding in find([each])]
    assert [finding.rule for finding in noted] == ["launch-bound", "unpinned-copy"]


def test_a_window_of_which_a_profile_cannot_be_encoded_is_judged_once_and_whole() -> None:
    """A broken span link keeps back its profile, and no finding."""
    (whole,) = unpinned_copy().bundles()
    odd = bundle({GPU_LAUNCH: [(0, 0, 0, 5)]}, links=[Link(b"short", b"too")])
    wait, *others = whole.profiles
    assert wait.sample_type == GPU_WAIT
    broken = replace(whole, links=odd.links, profiles=(replace(wait, link=0 * wait.link), *others))
    noted: list[Finding] = []

    counts = delivered([broken], noted.extend)

    assert counts.dropped == (("not_encodable", 1),)
    assert counts.exported == counts.put - 1
    assert noted == find([broken])
    assert len(noted) == 1


def test_rules_that_fail_cost_no_profile(caplog: pytest.LogCaptureFixture) -> None:
    """Of a window that rules cannot read, everything is sent; the log says why nothing was found."""
    odd = replace(
        waits_and_launches(),
        scope=ESTIMATED_SCOPE,
        profile_attributes=((PROBABILITY_ATTRIBUTE, "a third"),),
    )

    counts = delivered([odd], lambda _: None)

    assert (counts.put, counts.exported) == (2, 2)
    assert "findings of a window are lost" in caplog.text
    assert "a third" in caplog.text


def test_a_log_of_findings_that_fails_costs_no_profile(caplog: pytest.LogCaptureFixture) -> None:
    """Nor a second request."""

    def note(_: Sequence[Finding]) -> None:
        raise RuntimeError("odd state")

    counts = delivered(unpinned_copy().bundles(), note)

    assert (counts.put, counts.dropped) == (counts.exported, ())
    assert "findings of a window are lost, its profiles are not: RuntimeError: odd state" in (
        caplog.text
    )


def test_a_process_that_dies_is_replaced() -> None:
    """The window in hand is encoded here, the next one in another process."""
    # Those of earlier tests end in their own time.
    others = set(multiprocessing.active_children())
    encode = EncodingProcess()
    expected = [e.request for e in encode([waits_and_launches()], dropped=Counter())]
    (worker,) = set(multiprocessing.active_children()) - others
    worker.kill()
    worker.join()
    again = [e.request for e in encode([waits_and_launches()], dropped=Counter())]
    assert again == expected
    assert [e.request for e in encode([waits_and_launches()], dropped=Counter())] == expected
    (successor,) = set(multiprocessing.active_children()) - others
    encode.close()
    successor.join()


@pytest.mark.parametrize("more", [0, 2])
def test_capture_goes_before_encoding(
    more: int, encode: EncodingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the niceness of the agent's module, which a benchmark varies (`encode_beside`)."""
    niceness = encoding._NICENESS + more
    monkeypatch.setattr(encoding, "_NICENESS", niceness)
    others = set(multiprocessing.active_children())
    encode([waits_and_launches()], dropped=Counter())
    (worker,) = set(multiprocessing.active_children()) - others
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(ours + niceness, 19)


def test_a_process_that_cannot_be_started_costs_no_window(
    encode: EncodingProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """A host out of file descriptors: windows are encoded here, and elsewhere again when there are some."""
    others = set(multiprocessing.active_children())
    expected = [e.request for e in encode_requests([waits_and_launches()], dropped=Counter())]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        for _ in range(2):
            assert [
                e.request for e in encode([waits_and_launches()], dropped=Counter())
            ] == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caplog.text.count("Too many open files): encoding here") == 2
    assert set(multiprocessing.active_children()) <= others
    assert [e.request for e in encode([waits_and_launches()], dropped=Counter())] == expected
    (_worker,) = set(multiprocessing.active_children()) - others
