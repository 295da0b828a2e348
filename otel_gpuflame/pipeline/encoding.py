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
from typing import NamedTuple

from otel_gpuflame.encode.otlp import EncodedRequest, encode_requests
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.profile.model import Bundle

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_NICENESS = 5
"""Capture goes first where processors are short: three quarters of one that they share. With 19, which leaves 1.5 %,
windows waited for minutes on a full machine (docs/decisions/0010-encoding-process.md)."""


class _Answer(NamedTuple):
    """Of the other process: requests or why there are none; findings, and why there may be none."""

    encoded: list[EncodedRequest]
    dropped: Counter[str]
    error: Exception | None
    findings: list[Finding]
    findings_fault: str


class EncodingProcess:
    """Callable like `encode_requests`. Started at the first call; a process that dies is replaced at the next one.

    While none can be had, as on a host out of processes or files, bundles are encoded in the calling one.
    """

    def __init__(self, note_findings: Callable[[Sequence[Finding]], None] | None = None) -> None:
        """`note_findings` gets what rules find in windows; without it they are not asked."""
        self._pool: ProcessPoolExecutor | None = None
        self._note_findings = note_findings

    def __call__(self, bundles: Sequence[Bundle], *, dropped: Counter[str]) -> list[EncodedRequest]:
        """Encode in the other process; here, if it has died or cannot be started.

        Raises:
            EncodeError: as `encode_requests`.
        """
        return self._encoded(bundles, dropped, has_findings=False)

    def with_findings(
        self, bundles: Sequence[Bundle], *, dropped: Counter[str]
    ) -> list[EncodedRequest]:
        """The same, and rules are asked: for whole bundles only, since in parts they find what is not true.

        Findings are those of the other process: a window that is encoded here has none. Whatever goes wrong with them
        is logged, and costs no profile.

        Raises:
            EncodeError: as `encode_requests`; what was found is noted all the same.
        """
        return self._encoded(bundles, dropped, has_findings=self._note_findings is not None)

    def _encoded(
        self, bundles: Sequence[Bundle], dropped: Counter[str], *, has_findings: bool
    ) -> list[EncodedRequest]:
        try:
            # Taken once: `close` may come from another thread meanwhile.
            pool = self._pool = self._pool or _new_pool()
            answer = pool.submit(_answer, tuple(bundles), has_findings=has_findings).result()
        except (OSError, RuntimeError) as error:
            # A pool that broke is a RuntimeError; one that could not start a process is of no use either.
            logger.warning(
                "there is no encoding process (%s): encoding here, and starting one for the next window",
                error,
            )
            self.close()
            return encode_requests(bundles, dropped=dropped)
        self._note(answer)
        if answer.error is not None:
            raise answer.error
        dropped.update(answer.dropped)
        return answer.encoded

    def _note(self, answer: _Answer) -> None:
        fault = answer.findings_fault
        try:
            if self._note_findings is not None and answer.findings:
                self._note_findings(answer.findings)
        except Exception as error:
            fault = _named(error)
        if fault:
            logger.warning("findings of a window are lost, its profiles are not: %s", fault)

    def close(self) -> None:
        """End the process. From any thread; a window that is being encoded is finished."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _new_pool() -> ProcessPoolExecutor:
    # Not forked: the capturing process has threads, and maps of rings that nobody else should hold.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare, initargs=(_NICENESS,))


def _prepare(niceness: int) -> None:
    """In the new process: Ctrl-C is for the agent to handle, and capture goes first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    # It holds both ends of its pipe, so that it would outlive an agent that is killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _answer(bundles: tuple[Bundle, ...], *, has_findings: bool) -> _Answer:
    """Errors are part of it: with profiles that cannot be encoded, findings would be lost."""
    dropped: Counter[str] = Counter()
    findings, fault = _found(bundles) if has_findings else ([], "")
    try:
        encoded = encode_requests(bundles, dropped=dropped)
    except Exception as error:
        return _Answer([], dropped, error, findings, fault)
    return _Answer(encoded, dropped, None, findings, fault)


def _found(bundles: tuple[Bundle, ...]) -> tuple[list[Finding], str]:
    """What rules find, and why nothing can be said."""
    try:
        return find(bundles), ""
    except Exception as error:
        # Whatever it is: an unforeseen window must not cost its profiles.
        return [], _named(error)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
