"""A delivery on a clock that only moves when told, to a receiver that answers as told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.export.delivery import Delivery, DeliveryCounts
from otel_gpuflame.export.result import ExportResult, Outcome
from otel_gpuflame.profile.model import Bundle, ValueType
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from tests.unit.encode.bundles import bundle

ACCEPTED = ExportResult(outcome=Outcome.ACCEPTED)
BUSY = ExportResult(outcome=Outcome.RETRYABLE, message="busy")
REFUSED = ExportResult(outcome=Outcome.REJECTED, message="bad profile")
TYPES = (GPU_WAIT, GPU_LAUNCH, GPU_COPY)

Answer = Callable[["Sent"], ExportResult]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a receiver sees of a request: the service, the sample types, when it came."""

    service: str
    types: tuple[str, ...]
    at_s: float
    request: ExportProfilesServiceRequest = field(repr=False)


class Clock:
    """Seconds; waiting moves it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.waits_s: list[float] = []

    def __call__(self) -> float:
        """Now."""
        return self.now_s

    def wait(self, _condition: threading.Condition, seconds: float | None) -> None:
        """Nobody else is there to end a wait early, or at all."""
        assert seconds is not None, "waits for a bundle that nobody will bring"
        self.waits_s.append(seconds)
        self.now_s += seconds


class Receiver:
    """An exporter; `answer` says what becomes of each request, and may raise."""

    def __init__(self, clock: Clock, answer: Answer = lambda _: ACCEPTED) -> None:
        self._clock = clock
        self.answer = answer
        self.sent: list[Sent] = []
        self.closes = 0

    def export(self, request: ExportProfilesServiceRequest) -> ExportResult:
        """Keep the request, then answer."""
        sent = _seen(request, self._clock())
        self.sent.append(sent)
        return self.answer(sent)

    def close(self) -> None:
        """Count."""
        self.closes += 1

    @property
    def services(self) -> list[str]:
        """Whose requests came, in order."""
        return [sent.service for sent in self.sent]


class Setup:
    """A delivery with its clock and receiver."""

    def __init__(self, answer: Answer = lambda _: ACCEPTED, **options: int) -> None:
        self.clock = Clock()
        self.receiver = Receiver(self.clock, answer)
        self.delivery = Delivery(self.receiver, clock=self.clock, wait=self.clock.wait, **options)

    def put(self, *services: str, types: Iterable[ValueType] = (GPU_WAIT,)) -> None:
        """A bundle for each service."""
        for service in services:
            self.delivery.put(of_service(service, types))

    def run(self, deadline_s: float = 1e6) -> DeliveryCounts:
        """Send everything, or give up after `deadline_s`; what became of it."""
        self.delivery.close(deadline_s)
        self.delivery.run()
        return self.counts

    @property
    def counts(self) -> DeliveryCounts:
        """The counts, which add up at any time."""
        counts = self.delivery.counts()
        check(counts)
        return counts


def check(counts: DeliveryCounts) -> None:
    """Every profile is accounted for once."""
    dropped = sum(count for _, count in counts.dropped)
    assert counts.put == counts.exported + counts.rejected + dropped + counts.waiting, counts


def script(*answers: ExportResult) -> Answer:
    """These answers in order, then success."""
    left = list(answers)
    return lambda _: left.pop(0) if left else ACCEPTED


def of_service(service: str, types: Iterable[ValueType] = (GPU_WAIT,)) -> Bundle:
    """A small bundle with one sample in a profile of each type."""
    return bundle(
        {sample_type: [(0, -1, 0, 7)] for sample_type in types},
        resource=(("service.name", service),),
    )


def _seen(request: ExportProfilesServiceRequest, at_s: float) -> Sent:
    (resource,) = request.resource_profiles
    strings = request.dictionary.string_table
    types = [
        strings[profile.sample_type.type_strindex]
        for scope in resource.scope_profiles
        for profile in scope.profiles
    ]
    service = next(a.value.string_value for a in resource.resource.attributes)
    return Sent(service, tuple(types), at_s, request)
