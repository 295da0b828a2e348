"""Messages on standard error: what is said again and again is said once a minute."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PERIOD_S: Final = 60.0
MAX_KINDS: Final = 256
"""Kinds of messages that are remembered; the one that has not come for the longest time is forgotten first."""
MAX_MESSAGES: Final = 100
"""In a period, of all kinds together: texts of a receiver may differ every time."""

_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?")
_KEY_CHARACTERS: Final = 200


def set_up_logging(verbose: int) -> None:
    """Log to standard error: warnings; with `verbose` 1 also what happens, with 2 everything."""
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level, format="otel-gpuflame: %(message)s", handlers=[handler])


@dataclass(slots=True)
class _Kind:
    """Messages that differ in numbers only."""

    since_s: float
    withheld: int = 0


class RateLimit(logging.Filter):
    """Lets one message of a kind through in a period, and says how many were withheld with the next one.

    For handlers, so that libraries are covered too. What is only logged on request (info, debug) is not limited. Memory
    is bounded whatever is logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never go back."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()
        self._period_since_s = clock()
        self._in_period = 0
        self._withheld = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log `record`; adds to its message what was withheld."""
        if record.levelno < logging.WARNING:
            return True
        message = record.getMessage()
        with self._lock:
            note = self._note(record.name, message)
        if note:
            record.msg, record.args = message + note, None
        return note is not None

    def _note(self, name: str, message: str) -> str | None:
        """What to add to a message; None to withhold it."""
        now_s = self._clock()
        key = (name, _NUMBER.sub("#", message)[:_KEY_CHARACTERS])
        kind = self._kinds.get(key)
        if kind is not None and now_s - kind.since_s < PERIOD_S:
            kind.withheld += 1
            self._kinds.move_to_end(key)
            return None
        if not self._has_room(now_s):
            self._withheld += 1
            return None
        withheld = kind.withheld if kind is not None else 0
        self._kinds[key] = _Kind(now_s)
        self._kinds.move_to_end(key)
        if len(self._kinds) > MAX_KINDS:
            # What was withheld of a forgotten kind still counts somewhere.
            self._withheld += self._kinds.popitem(last=False)[1].withheld
        others, self._withheld = self._withheld, 0
        notes = [f"{withheld} more like this"] if withheld else []
        notes += [f"{others} others withheld"] if others else []
        return f" ({', '.join(notes)})" if notes else ""

    def _has_room(self, now_s: float) -> bool:
        if now_s - self._period_since_s >= PERIOD_S:
            self._period_since_s, self._in_period = now_s, 0
        self._in_period += 1
        return self._in_period <= MAX_MESSAGES
