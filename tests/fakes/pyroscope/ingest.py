# SPDX-License-Identifier: Apache-2.0
"""The way of an OTLP request into the store.

As in Pyroscope, every series of a request is tried. When one is refused, the answer is an error, and the
others are stored all the same: a sender that sends the request again stores those twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.encode._vendor import profile_pb2 as pprof
from tests.fakes.pyroscope.convert import Converted, convert
from tests.fakes.pyroscope.labels import (
    Labels,
    check_labels,
    labels_size,
    labels_text,
    series_labels,
    split_by_labels,
)
from tests.fakes.pyroscope.limits import Limits, Refusal, RefusedError, invalid
from tests.fakes.pyroscope.store import Store, stored_profile

_Series = tuple[Converted, Labels]


class Ingest:
    """Checks requests against `limits` and stores them. `unix_ns` and `monotonic_ns` are the clocks."""

    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        unix_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._limits = limits
        self._unix_ns = unix_ns
        self._bucket = _TokenBucket(limits, monotonic_ns)
        self._refusals: list[str] = []

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why requests were refused so far, as the log of Pyroscope would say."""
        return tuple(self._refusals)

    def push(self, request: ExportProfilesServiceRequest) -> None:
        """Store `request`.

        Raises:
            RefusedError: it does not convert, then nothing was stored; or some series of it were refused, then
                the others were.
        """
        try:
            self._push(request)
        except RefusedError as error:
            self._refusals.append(str(error))
            raise

    def _push(self, request: ExportProfilesServiceRequest) -> None:
        refused = [error for series in self._series(request) if (error := self._try(series))]
        if refused:
            # A profile that can never pass outranks one that may pass later.
            first = min(refused, key=lambda error: error.refusal is Refusal.RATE)
            raise RefusedError(first.refusal, "; ".join(map(str, refused)))

    def _series(self, request: ExportProfilesServiceRequest) -> list[_Series]:
        if not request.HasField("dictionary"):
            raise RefusedError(Refusal.CONVERSION, "missing profile metadata dictionary")
        if not request.resource_profiles:
            raise RefusedError(Refusal.CONVERSION, "missing resource profiles")
        now = self._unix_ns()
        return [
            (converted, series_labels(converted, resource, scope))
            for resource in request.resource_profiles
            for scope in resource.scope_profiles
            for profile in scope.profiles
            for converted in convert(profile, request.dictionary, now)
        ]

    def _try(self, series: _Series) -> RefusedError | None:
        converted, labels = series
        try:
            self._bucket.take(converted.message.ByteSize() + labels_size(labels))
            check_profile(converted.message, labels, self._limits, self._unix_ns())
            groups = list(split_by_labels(converted.message, labels))
            for group_labels, _ in groups:
                check_labels(group_labels, self._limits)
        except RefusedError as error:
            return error
        self._store.add(
            stored_profile(converted.message, samples, converted.name, dict(group_labels))
            for group_labels, samples in groups
        )
        return None


def check_profile(message: pprof.Profile, labels: Labels, limits: Limits, now_unix_ns: int) -> None:
    """Raise a `RefusedError` for what is too large, old or new; cut stacks that are too deep."""
    text = labels_text(labels)
    age_ns = now_unix_ns - message.time_nanos
    if not -limits.newest_ns <= age_ns <= limits.oldest_ns:
        raise invalid(
            f"profile with labels {text} is outside of ingestion window "
            f"(profile timestamp: {message.time_nanos}, now: {now_unix_ns})"
        )
    if message.ByteSize() > limits.max_profile_bytes:
        raise invalid(
            f"the profile with labels {text} exceeds the size limit (max_profile_size_byte, "
            f"actual: {message.ByteSize()}, limit: {limits.max_profile_bytes})"
        )
    if len(message.sample) > limits.max_samples:
        raise invalid(
            f"the profile with labels {text} exceeds the samples count limit "
            f"(max_profile_stacktrace_samples, actual: {len(message.sample)}, "
            f"limit: {limits.max_samples})"
        )
    for sample in message.sample:
        if len(sample.label) > limits.max_labels_per_sample:
            raise invalid(
                f"the profile with labels {text} exceeds the sample labels limit "
                f"(max_profile_stacktrace_sample_labels, actual: {len(sample.label)}, "
                f"limit: {limits.max_labels_per_sample})"
            )
        # The frames next to the leaf go, without a word.
        del sample.location_id[: max(len(sample.location_id) - limits.max_stack_depth, 0)]
    if "-" in message.string_table[message.sample_type[0].type]:
        raise invalid("sample type contains -")


class _TokenBucket:
    """Bytes per second with a burst; what is larger than the burst never passes."""

    def __init__(self, limits: Limits, monotonic_ns: Callable[[], int]) -> None:
        self._limits = limits
        self._monotonic_ns = monotonic_ns
        self._left_bytes = float(limits.ingest_burst_bytes)
        self._at_ns = monotonic_ns()
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        with self._lock:
            now_ns = self._monotonic_ns()
            refilled = (now_ns - self._at_ns) / 1e9 * self._limits.ingest_bytes_per_s
            self._at_ns = now_ns
            self._left_bytes = min(
                self._left_bytes + refilled, float(self._limits.ingest_burst_bytes)
            )
            if size_bytes > self._left_bytes:
                raise RefusedError(
                    Refusal.RATE,
                    f"push rate limit ({self._limits.ingest_bytes_per_s} B/s) exceeded while "
                    f"adding {size_bytes} B",
                )
            self._left_bytes -= size_bytes
