"""One bundle on its way to the receiver: its requests, and what became of each of its profiles."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from otel_gpuflame.encode.otlp import EncodedRequest
from otel_gpuflame.encode.otlp_request import Part
from otel_gpuflame.profile.model import Bundle, Profile, ValueType

EXPORTED: Final = "exported"
REJECTED: Final = "rejected"
NOT_ENCODABLE: Final = "dropped_not_encodable"
TOO_LARGE: Final = "dropped_too_large"

_BUNDLE_BYTES: Final = 4_096
_FRAME_BYTES: Final = 256
_SAMPLE_BYTES: Final = 32
_STACK_BYTES: Final = 64
_INDEX_BYTES: Final = 8


class Encode(Protocol):
    """`encode_requests`, or something that does the same elsewhere."""

    def __call__(self, bundles: Sequence[Bundle], *, dropped: Counter[str]) -> list[EncodedRequest]:
        """Requests of `bundles`; what is too large is counted in `dropped`."""


class Shipment:
    """A bundle with its requests. Profiles are told apart by sample type, which occurs once in a bundle.

    A profile whose samples went into several requests counts as rejected if one of these was.
    """

    def __init__(
        self, bundle: Bundle, number: int, since_s: float, encode: Encode, encode_whole: Encode
    ) -> None:
        """`number` is the place in the order of arrival, `since_s` the time of arrival in seconds.

        `encode_whole` gets the bundle, once; `encode` gets parts of it, where it must be divided.
        """
        self.number = number
        self.since_s = since_s
        self.failures = 0
        """Rounds that ended with "try again later"."""
        self.was_passed = False
        """Whether a later bundle got through before this one."""
        self.requests: deque[EncodedRequest] = deque()
        """What is left to send, once encoded."""
        self.refused_whole: str | None = None
        """Why a request was refused as a whole, where its profiles then go one by one."""
        self.was_accepted = False
        """Whether any request was."""
        self._bundle = bundle
        self._encode = encode
        self._encode_whole = encode_whole
        self._is_encoded = False
        self._types = [p.sample_type for p in bundle.profiles if len(p.value)]
        self._fates: dict[ValueType, str] = {}
        self.profiles = len(self._types)
        self.samples = sum(len(p.value) for p in bundle.profiles)
        self.size_bytes = _size_bytes(bundle, self.samples)

    def encode(self) -> list[str]:
        """Make the requests, unless that was done before; messages about what could not be made.

        Where the bundle cannot be encoded, its profiles are encoded one by one, so that only those that are to blame
        stay behind.
        """
        if self._is_encoded:
            return []
        self._is_encoded = True
        messages: list[str] = []
        try:
            self.requests.extend(self._encoded(self._encode_whole, self._bundle, messages))
        except Exception:
            for profile in self._bundle.profiles:
                self.requests.extend(self._encoded_alone(self._bundle, profile, messages))
        return messages

    def split(self) -> list[str]:
        """Replace the next request by one for each of its profiles, in the same order; messages as of `encode`."""
        messages: list[str] = []
        alone = [
            encoded
            for part in self.requests.popleft().parts
            for encoded in self._encoded_alone(part.bundle, _only(part), messages)
        ]
        self.requests.extendleft(reversed(alone))
        return messages

    def next_done(self, rejected: int = 0) -> None:
        """The next request was answered; the receiver has thrown away `rejected` of its profiles.

        It does not say which: the first ones are taken.
        """
        for sample_type in _types(self.requests.popleft())[: max(rejected, 0)]:
            self._fates[sample_type] = REJECTED

    def tally(self, undelivered: str) -> Counter[str]:
        """Profiles by what became of them; what has not been sent counts as `undelivered`."""
        fates = {} if self._is_encoded else dict.fromkeys(self._types, undelivered)
        for encoded in self.requests:
            fates.update(dict.fromkeys(_types(encoded), undelivered))
        fates |= self._fates
        return Counter(fates.get(sample_type, EXPORTED) for sample_type in self._types)

    def _encoded(self, encode: Encode, bundle: Bundle, messages: list[str]) -> list[EncodedRequest]:
        dropped: Counter[str] = Counter()
        encoded = encode([bundle], dropped=dropped)
        for name, value in dropped.items():
            messages.append(f"a stack is too large for any request: {value} of {name} are dropped")
        sent = {sample_type for each in encoded for sample_type in _types(each)}
        for profile in bundle.profiles:
            if len(profile.value) and profile.sample_type not in sent:
                self._fates[profile.sample_type] = TOO_LARGE
        return encoded

    def _encoded_alone(
        self, bundle: Bundle, profile: Profile, messages: list[str]
    ) -> list[EncodedRequest]:
        try:
            alone = replace(bundle, profiles=(profile,))
            return self._encoded(self._encode, alone, messages)
        except Exception as error:
            # Whatever it is: an unforeseen profile must not end the thread that exports all others.
            self._fates[profile.sample_type] = NOT_ENCODABLE
            name, reason = profile.sample_type.type, str(error) or type(error).__name__
            messages.append(f"a {name} profile cannot be encoded: {reason}")
            return []


def _types(encoded: EncodedRequest) -> list[ValueType]:
    return [part.profile.sample_type for part in encoded.parts]


def _only(part: Part) -> Profile:
    """The samples of one part."""
    whole, rows = part.profile, part.rows
    return Profile(
        sample_type=whole.sample_type,
        stack=whole.stack[rows],
        link=whole.link[rows],
        attributes=whole.attributes[rows],
        value=whole.value[rows],
    )


def _size_bytes(bundle: Bundle, samples: int) -> int:
    """About what a bundle takes in memory once the capture has forgotten its frames.

    Measured on bundles of 0, 10 and 5,000 stacks of 31 frames: 3.5 KB, 10.5 KB and 2 MB while frames are shared.
    """
    indexes = sum(map(len, bundle.stacks))
    return (
        _BUNDLE_BYTES
        + _FRAME_BYTES * len(bundle.frames)
        + _SAMPLE_BYTES * samples
        + _STACK_BYTES * len(bundle.stacks)
        + _INDEX_BYTES * indexes
    )
