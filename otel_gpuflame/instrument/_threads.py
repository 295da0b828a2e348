# SPDX-License-Identifier: Apache-2.0
"""Tells whether the calling thread works for one request at a time."""

from __future__ import annotations

import asyncio
import sys


def thread_sharing() -> str | None:
    """What lets several requests take turns in this thread without the context hook being told.

    Returns:
        A name for messages, or None in a plain thread.
    """
    # get_running_loop() would raise in every plain thread, which costs ten times as much.
    if asyncio._get_running_loop() is not None:
        return "asyncio"
    modules = sys.modules
    if "gevent" in modules:
        return "gevent"
    if "eventlet" in modules:
        return "eventlet"
    if "trio" in modules and _in_trio_run():
        return "trio"
    return None


def _in_trio_run() -> bool:
    try:
        return bool(sys.modules["trio"].lowlevel.in_trio_run())
    except (AttributeError, KeyError):
        # Older than 0.23, or being imported: what cannot be known counts as shared.
        return True
