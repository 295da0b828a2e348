"""Encoding in a process of its own: the interpreter lock of the capturing process stays free.

Encoding a window of 10,000 stacks takes a second of Python. In a thread it would delay each numpy call of the capture,
and a full ring loses events.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from otel_gpuflame.encode.otlp import EncodedRequest, encode_requests
from otel_gpuflame.profile.model import Bundle

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_NICENESS = 19
"""Capture goes first where processors are short."""


class EncodingProcess:
    """Callable like `encode_requests`. Started at the first call; a process that dies is replaced at the next one."""

    def __init__(self) -> None:
        self._pool = _new_pool()

    def __call__(self, bundles: Sequence[Bundle], *, dropped: Counter[str]) -> list[EncodedRequest]:
        """Encode in the other process; here, if it has died.

        Raises:
            EncodeError: as `encode_requests`.
        """
        try:
            encoded, lost = self._pool.submit(_encode, tuple(bundles)).result()
        except (BrokenProcessPool, RuntimeError) as error:
            logger.warning(
                "the encoding process is gone (%s): encoding here, and starting another", error
            )
            self._pool.shutdown(wait=False)
            self._pool = _new_pool()
            return encode_requests(bundles, dropped=dropped)
        dropped.update(lost)
        return encoded

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _new_pool() -> ProcessPoolExecutor:
    # Not forked: the capturing process has threads, and maps of rings that nobody else should hold.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare)


def _prepare() -> None:
    """In the new process: Ctrl-C is for the agent to handle, and capture goes first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    # It holds both ends of its pipe, so that it would outlive an agent that is killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _encode(bundles: tuple[Bundle, ...]) -> tuple[list[EncodedRequest], Counter[str]]:
    dropped: Counter[str] = Counter()
    return encode_requests(bundles, dropped=dropped), dropped
