"""Bundles to OTLP profiles requests (v1development), none larger than receivers take.

What limits a request: the Collector's gRPC receiver takes 4 MiB; Pyroscope takes 16,000 samples and
4 MiB a profile, counted after it has converted the profile to pprof. What does not fit is cut along
stacks, so that profiles of different types over the same stacks stay together and few frames are
sent twice. Pieces of a profile always go to different requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development import profiles_pb2

from otel_gpuflame.encode.otlp_request import Part, build_request
from otel_gpuflame.errors import EncodeError
from otel_gpuflame.profile.model import Bundle

DEVELOPMENT_VERSION: Final = "1"
"""Sent as `otlp-profiles-development-version`; Collectors since 0.163 refuse any other value."""

MAX_REQUEST_BYTES: Final = 3_670_016
"""3.5 MiB: the 4 MiB of gRPC receivers, less room for what a Collector in between adds."""

MAX_PROFILE_SAMPLES: Final = 16_000
MAX_CONVERTED_BYTES: Final = 1_900_000
"""All profiles of a request as uncompressed pprof: Pyroscope takes 2 MiB at once by default, and refuses the rest of a
request after having stored its beginning."""

_VALUES_FIELD_SINCE_1_10 = 4
_HEADROOM = 1.1
"""Pieces repeat frames, so cut into a tenth more of them than the sizes alone ask for."""


class EncodedRequest(NamedTuple):
    """A request, and the samples in it: one part for each of its profiles."""

    request: ExportProfilesServiceRequest
    parts: tuple[Part, ...]


def encode_otlp(
    bundles: Sequence[Bundle],
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    dropped: Counter[str] | None = None,
) -> list[ExportProfilesServiceRequest]:
    """As `encode_requests`, without saying which samples are where."""
    encoded = encode_requests(bundles, max_request_bytes=max_request_bytes, dropped=dropped)
    return [each.request for each in encoded]


def encode_requests(
    bundles: Sequence[Bundle],
    *,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    dropped: Counter[str] | None = None,
) -> list[EncodedRequest]:
    """Encode all profiles of `bundles`, leaving out those without samples.

    A sample that alone exceeds a limit is dropped, and its value added to `dropped` under the name
    of its sample type, in that type's unit.

    Raises:
        EncodeError: a sample is too large and there is no `dropped` to count it in; a span link has
            ids of a wrong length; or the installed opentelemetry-proto has field numbers that
            receivers would misread.
    """
    _check_schema()
    chooser = _Samples(bundles)
    requests: list[EncodedRequest] = []
    # A stack of ranges, the next one on top: pieces come out in order.
    pending = [range(chooser.count)] if chooser.count else []
    while pending:
        chosen = pending.pop()
        excess, built = _attempt(chooser, chosen, max_request_bytes)
        if built is not None:
            requests.append(built)
        elif len(chosen) == 1:
            _drop(chooser, chosen.start, dropped)
        else:
            pending.extend(reversed(chooser.cut(chosen, math.ceil(excess * _HEADROOM))))
    return requests


def _attempt(
    samples: _Samples, chosen: range, max_request_bytes: int
) -> tuple[float, EncodedRequest | None]:
    """How many times too large a request of `chosen` is, and the request if it is not."""
    parts = list(samples.parts(chosen))
    excess = max(len(part.rows) for part in parts) / MAX_PROFILE_SAMPLES
    if excess > 1:
        return excess, None
    built = build_request(parts)
    excess = max(
        built.request.ByteSize() / max_request_bytes,
        built.converted_bytes / MAX_CONVERTED_BYTES,
    )
    return excess, EncodedRequest(built.request, tuple(parts)) if excess <= 1 else None


def _drop(samples: _Samples, position: int, dropped: Counter[str] | None) -> None:
    (part,) = samples.parts(range(position, position + 1))
    name = part.profile.sample_type.type
    row = int(part.rows[0])
    if dropped is None:
        frames = len(part.bundle.stacks[int(part.profile.stack[row])])
        raise EncodeError(
            f"a {name} sample is too large for any request: its stack has {frames} frames; "
            "cut the stack or its names, or count such samples as dropped"
        )
    dropped[name] += int(part.profile.value[row])


class _Columns(NamedTuple):
    """Where each sample is: bundle, profile in it, row in its columns; and its stack."""

    bundle: NDArray[np.int64]
    profile: NDArray[np.int64]
    row: NDArray[np.int64]
    stack: NDArray[np.int64]


class _Samples:
    """All samples of a call in one order: by bundle, then stack, so that a range of them has few
    stacks.
    """

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self._bundles = bundles
        columns = [
            _Columns(
                np.full(len(profile.value), b),
                np.full(len(profile.value), p),
                np.arange(len(profile.value)),
                profile.stack.astype(np.int64),
            )
            for b, bundle in enumerate(bundles)
            for p, profile in enumerate(bundle.profiles)
        ]
        merged = [np.concatenate(c) for c in zip(*columns, strict=True)] or [np.zeros(0, int)] * 4
        order = np.lexsort((merged[2], merged[1], merged[3], merged[0]))
        self._columns = _Columns(*(column[order] for column in merged))
        self.count = len(order)

    def parts(self, chosen: range) -> Iterator[Part]:
        """The samples of `chosen` by bundle and profile, in the order of these."""
        window = slice(chosen.start, chosen.stop)
        bundle, profile, row = (column[window] for column in self._columns[:3])
        for b in np.unique(bundle).tolist():
            in_bundle = bundle == b
            for p in np.unique(profile[in_bundle]).tolist():
                yield Part(
                    self._bundles[b],
                    self._bundles[b].profiles[p],
                    np.sort(row[in_bundle & (profile == p)]),
                )

    def cut(self, chosen: range, pieces: int) -> list[range]:
        """Cut `chosen`, which has more than one sample, into about `pieces` (at least 2) ranges of
        like size.
        """
        weight = np.cumsum(self._weights(chosen))
        pieces = min(max(pieces, 2), len(chosen))
        targets = weight[-1] * np.arange(1, pieces) / pieces
        inner = np.unique(np.clip(np.searchsorted(weight, targets) + 1, 1, len(chosen) - 1))
        edges = [chosen.start, *(chosen.start + inner).tolist(), chosen.stop]
        return [range(a, b) for a, b in pairwise(edges)]

    def _weights(self, chosen: range) -> NDArray[np.int64]:
        """About how many bytes each sample adds: its own fields, and its stack if it is the first
        that has it.
        """
        window = slice(chosen.start, chosen.stop)
        bundle, stack = self._columns.bundle[window], self._columns.stack[window]
        first = np.ones(len(chosen), dtype=np.bool_)
        first[1:] = (stack[1:] != stack[:-1]) | (bundle[1:] != bundle[:-1])
        weights = np.full(len(chosen), 16, dtype=np.int64)
        weights[first] += [
            2 * len(self._bundles[b].stacks[s])
            for b, s in zip(bundle[first].tolist(), stack[first].tolist(), strict=True)
        ]
        return weights


def _check_schema() -> None:
    field = profiles_pb2.Sample.DESCRIPTOR.fields_by_name["values"]
    if field.number != _VALUES_FIELD_SINCE_1_10:
        raise EncodeError(
            "the installed opentelemetry-proto numbers the fields of Sample as before 1.10, "
            "which receivers misread silently: pip install 'opentelemetry-proto>=1.43'"
        )
