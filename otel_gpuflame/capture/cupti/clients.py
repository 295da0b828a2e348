"""Other clients of CUPTI in one process, by the calls that they make: whether one of them is at work.

CUPTI has one pair of buffer callbacks a process, and kinds that are on or off for all. Who has enabled a kind, or has
registered and is about to, is at work; so is who has disabled its kinds and has not yet fetched what was recorded. That
somebody has subscribed says nothing: Kineto does so when a program begins, and stays so.

A client that dies, forgets, or began before anybody looked must not silence us for ever: hence the limits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from otel_gpuflame.events.apis import CUPTI_CALLS
from otel_gpuflame.events.records import CallArray

_MS: Final = 1_000_000
_S: Final = 1_000_000_000

FLUSHED_NS: Final = 250 * _MS
"""After the flush that follows the last disabling: a flush is seen when it begins, and took 2 to 18 ms on an H200."""
UNFLUSHED_NS: Final = 10 * _S
"""After the last disabling, or a registration, where nothing follows."""
SILENT_NS: Final = 600 * _S
"""With kinds enabled, and no call: Kineto's recording is full after 128 MiB, about a million kernels."""
UNSEEN_NS: Final = 60 * _S
"""Where only the library says that another one has registered, and no call of it has been seen: most likely it had
ended before we came, for profilers work for seconds."""

_MAX_UNTOLD: Final = 1 << 10
"""Calls that wait until it is known which are ours. Our library makes 20 a second while it records."""
_MAX_ENABLED: Final = 1 << 8
_ALL_CONTEXTS: Final = 0
_LOW_HALF: Final = 0xFFFFFFFF

_API: Final = {api.name: api.id for api in CUPTI_CALLS}
_ENABLE: Final = _API["cuptiActivityEnable"]
_DISABLE: Final = _API["cuptiActivityDisable"]
_ENABLE_CONTEXT: Final = _API["cuptiActivityEnableContext"]
_DISABLE_CONTEXT: Final = _API["cuptiActivityDisableContext"]
_FLUSH: Final = _API["cuptiActivityFlushAll"]
_FINALIZE: Final = _API["cuptiFinalize"]


class Change(Enum):
    """What has become of the other clients."""

    BEGAN = "began"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCalls:
    """Which calls of CUPTI our library makes; thread pointers as in `CALL`, 0: there is none. Times of our clock."""

    worker_thread: int
    init_thread: int
    """A thread of the program, which is ours from `init_begin_ns` to `init_end_ns`."""
    init_begin_ns: int
    init_end_ns: int | None
    """None: not over."""

    def __contains__(self, call: Call) -> bool:
        if call.thread_pointer == self.worker_thread:
            return True
        return (
            call.thread_pointer == self.init_thread
            and self.init_begin_ns <= call.time_ns
            and (self.init_end_ns is None or call.time_ns <= self.init_end_ns)
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of CUPTI."""

    time_ns: int
    thread_pointer: int
    api: int
    activity: int
    context: int


@dataclass(slots=True)
class _Known:
    """What is known of those that are at work, or may be."""

    enabled: set[tuple[int, int]] = field(default_factory=set)
    """Kinds, each with a context or with `_ALL_CONTEXTS`."""
    latest_ns: int | None = None
    """When the latest call was made."""
    is_flushed: bool = False
    displaced_ns: int | None = None
    """Since when the library says that another client has registered."""


class Clients:
    """Of one process, for as long as it runs one program."""

    def __init__(self) -> None:
        self._untold: deque[Call] = deque(maxlen=_MAX_UNTOLD)
        self._known = _Known()
        self._is_told = False

    def add(self, rows: CallArray) -> None:
        """Calls of CUPTI, of kind `Kind.CUPTI`, ours among them. Without thread pointers (BCC) they tell nothing."""
        rows = rows[rows["thread_pointer"] != 0]
        names = ("start_ns", "thread_pointer", "api", "object", "stream")
        columns = (rows[name].tolist() for name in names)
        self._untold.extend(sorted(map(Call, *columns), key=lambda call: call.time_ns))

    def judge(self, own: OwnCalls, now_ns: int, *, is_displaced: bool) -> Change | None:
        """What has changed. `is_displaced`: the library says that another client has registered after it.

        ENDED may come without BEGAN: what was short may be over when it is known.
        """
        while self._untold:
            call = self._untold.popleft()
            if call not in own:
                self._note(call)
        known = self._known
        if is_displaced and known.displaced_ns is None:
            known.displaced_ns = now_ns
        since_ns, limit_ns = self._patience()
        if since_ns is None:
            return None
        if now_ns - since_ns < limit_ns:
            change = None if self._is_told else Change.BEGAN
            self._is_told = True
            return change
        self._known = _Known()
        self._is_told = False
        return Change.ENDED

    def _patience(self) -> tuple[int | None, int]:
        """Since when nothing has been heard of it, and for how long that means that it is at work; None: of nobody."""
        known = self._known
        if known.latest_ns is None:
            return known.displaced_ns, UNSEEN_NS
        if known.enabled:
            return known.latest_ns, SILENT_NS
        return known.latest_ns, FLUSHED_NS if known.is_flushed else UNFLUSHED_NS

    def _note(self, call: Call) -> None:
        known, api = self._known, call.api
        if api == _FLUSH:
            # By itself it begins nothing: profilers also flush when they have ended.
            if known.latest_ns is not None:
                known.latest_ns, known.is_flushed = call.time_ns, True
            elif known.displaced_ns is not None:
                known.displaced_ns = call.time_ns
            return
        known.latest_ns, known.is_flushed = call.time_ns, api == _FINALIZE
        if api == _FINALIZE:
            known.enabled.clear()
        elif api in (_ENABLE, _ENABLE_CONTEXT) and len(known.enabled) < _MAX_ENABLED:
            known.enabled.add(_kind(call))
        elif api == _DISABLE_CONTEXT:
            known.enabled.discard(_kind(call))
        elif api == _DISABLE:
            known.enabled = {each for each in known.enabled if each[0] != _kind(call)[0]}


def _kind(call: Call) -> tuple[int, int]:
    """The activity kind, which is the low half of its register, and the context."""
    has_context = call.api in (_ENABLE_CONTEXT, _DISABLE_CONTEXT)
    return call.activity & _LOW_HALF, call.context if has_context else _ALL_CONTEXTS
