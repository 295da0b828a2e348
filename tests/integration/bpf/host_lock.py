# SPDX-License-Identifier: Apache-2.0
"""Agents capture the whole host: another test run on it, from another checkout, must not end them.

All run side by side, but for a program that makes any agent's kill switch detach: that one waits for its turn.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

_LOCK = Path("/tmp/otel-gpuflame-tests.lock")


@contextlib.contextmanager
def agents_side_by_side() -> Iterator[None]:
    """An agent that others may run beside."""
    with _locked(fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def alone_on_the_host() -> Iterator[None]:
    """Something that no agent of another test run survives."""
    with _locked(fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(how: int) -> Iterator[None]:
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, how)
        yield
