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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from otel_gpuflame.encode.otlp import EncodedRequest, encode_requests
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.profile.model import Bundle

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_NICENESS = 5
"""Capture goes first where processors are short: three quarters of one that they share. With 19, which leaves 1.5 %,
windows waited for minutes on a full machine (docs/decisions/0010-encoding-process.md)."""


class EncodingProcess:
    """Callable like `encode_requests`. Started at the first call; a process that dies is replaced at the next one."""

    def __init__(self, note_findings: Callable[[Sequence[Finding]], None] | None = None) -> None:
        """`note_findings` gets what rules find in the bundles of a call; without it they are not asked."""
        self._pool = _new_pool()
        self._note_findings = note_findings

    def __call__(self, bundles: Sequence[Bundle], *, dropped: Counter[str]) -> list[EncodedRequest]:
        """Encode in the other process; here, if it has died.

        Raises:
            EncodeError: as `encode_requests`.
        """
        try:
            has_findings = self._note_findings is not None
            future = self._pool.submit(_encode, tuple(bundles), has_findings=has_findings)
            encoded, lost, findings = future.result()
        except (BrokenProcessPool, RuntimeError) as error:
            logger.warning(
                "the encoding process is gone (%s): encoding here, and starting another", error
            )
            self._pool.shutdown(wait=False)
            self._pool = _new_pool()
            return encode_requests(bundles, dropped=dropped)
        dropped.update(lost)
        if self._note_findings is not None:
            self._note_findings(findings)
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


def _encode(
    bundles: tuple[Bundle, ...], *, has_findings: bool
) -> tuple[list[EncodedRequest], Counter[str], list[Finding]]:
    dropped: Counter[str] = Counter()
    findings = find(bundles) if has_findings else []
    return encode_requests(bundles, dropped=dropped), dropped, findings
