# SPDX-License-Identifier: Apache-2.0
"""Tells whether the process uses green threads that switch without telling Python."""

from __future__ import annotations

import sys


def green_threads() -> str | None:
    """The library that lets several requests take turns in a thread unseen by us, if there is one.

    asyncio, uvloop and Trio switch through ``contextvars``, which we see; the bare package ``greenlet`` tells of its
    switches (``_greenlets``).
    """
    modules = sys.modules
    if "gevent" in modules:
        return "gevent"
    if "eventlet" in modules:
        return "eventlet"
    return None
