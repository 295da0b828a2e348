# SPDX-License-Identifier: Apache-2.0
"""What the Pyroscope double keeps, and how it is selected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from otel_gpuflame.encode._vendor import profile_pb2 as pprof
from tests.fakes.pyroscope.convert import SPAN_LABEL, TRACE_LABEL


class ProfileType(NamedTuple):
    """The five parts of `<name>:<sample type>:<unit>:<period type>:<period unit>`."""

    name: str
    sample_type: str
    sample_unit: str
    period_type: str
    period_unit: str

    @property
    def id(self) -> str:
        """As queries spell it."""
        return ":".join(self)


class StoredSample(NamedTuple):
    """Function names with the root first; ids in hex, empty without a span."""

    stack: tuple[str, ...]
    span_id: str
    trace_id: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProfile:
    """One profile of one series."""

    time_unix_ns: int
    profile_type: ProfileType
    labels: Mapping[str, str]
    samples: tuple[StoredSample, ...]


class Store:
    """All profiles, in order of arrival; safe to use from several threads."""

    def __init__(self) -> None:
        self._profiles: list[StoredProfile] = []
        self._changed = threading.Condition()

    def add(self, profiles: Iterable[StoredProfile]) -> None:
        """Keep `profiles`, and wake who waits."""
        with self._changed:
            self._profiles.extend(profiles)
            self._changed.notify_all()

    def all(self) -> tuple[StoredProfile, ...]:
        """Everything so far."""
        with self._changed:
            return tuple(self._profiles)

    def wait_until(
        self, condition: Callable[[tuple[StoredProfile, ...]], bool], *, timeout_s: float
    ) -> tuple[StoredProfile, ...]:
        """Everything, as soon as `condition` is true of it; raises `TimeoutError` saying what came instead."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(tuple(self._profiles)), timeout_s):
                summary = [(p.profile_type.id, p.labels["service_name"]) for p in self._profiles]
                raise TimeoutError(f"not in {timeout_s:.0f} s; stored are {summary}")
            return tuple(self._profiles)


def stored_profile(
    message: pprof.Profile, samples: Iterable[pprof.Sample], name: str, labels: Mapping[str, str]
) -> StoredProfile:
    """`samples` of `message` as they are kept."""
    strings = message.string_table
    sample_type, period_type = message.sample_type[0], message.period_type
    frames = _frame_names(message)
    return StoredProfile(
        time_unix_ns=message.time_nanos,
        profile_type=ProfileType(
            name,
            strings[sample_type.type],
            strings[sample_type.unit],
            strings[period_type.type],
            strings[period_type.unit],
        ),
        labels=labels,
        samples=tuple(_stored_sample(sample, strings, frames) for sample in samples),
    )


def _stored_sample(
    sample: pprof.Sample, strings: Sequence[str], frames: Mapping[int, tuple[str, ...]]
) -> StoredSample:
    labels = {strings[label.key]: strings[label.str] for label in sample.label}
    leaf_first = [name for location in sample.location_id for name in frames[location]]
    return StoredSample(
        tuple(reversed(leaf_first)),
        labels.get(SPAN_LABEL, ""),
        labels.get(TRACE_LABEL, ""),
        sample.value[0],
    )


def _frame_names(message: pprof.Profile) -> dict[int, tuple[str, ...]]:
    """Names of each location, innermost inlined call first; file and address where there are no symbols."""
    functions = {f.id: message.string_table[f.name] for f in message.function}
    files = {m.id: message.string_table[m.filename] for m in message.mapping}
    return {
        location.id: tuple(functions[line.function_id] for line in location.line)
        or (f"{files[location.mapping_id]} 0x{location.address:x}",)
        for location in message.location
    }
