# SPDX-License-Identifier: Apache-2.0
"""Follows greenlets, which exchange a thread's ``contextvars.Context`` without a call that we see.

SQLAlchemy's asyncio extension and others use the ``greenlet`` package by itself. It tells a function of each thread
about its switches (``greenlet.settrace``), after them, when the other greenlet's Context is current.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from otel_gpuflame.instrument._library import ContextLibrary


class GreenletSwitches:
    """Has the record follow the switches of greenlets, thread by thread."""

    def __init__(self, library: ContextLibrary) -> None:
        self._library = library
        self._threads = threading.local()

    def follow(self) -> None:
        """From now on in this thread, once the package has been imported. Cheap where it has not."""
        greenlet = sys.modules.get("greenlet")
        if greenlet is not None and not hasattr(self._threads, "is_followed"):
            self._follow(greenlet)

    def _follow(self, greenlet: Any) -> None:
        # It may still be being imported, or be something else of that name: then the next attach tries again.
        settrace = getattr(greenlet, "settrace", None)
        if settrace is None:
            return
        refresh, before = self._library.refresh, greenlet.gettrace()

        def switched(event: str, greenlets: object) -> None:
            refresh()
            if before is not None:
                before(event, greenlets)

        settrace(switched)
        self._threads.is_followed = True
