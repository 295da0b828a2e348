# SPDX-License-Identifier: Apache-2.0
"""An OTLP backend for tests: keeps what it gets and answers as told, over gRPC and HTTP."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from tests.integration.collector.sink_grpc import GrpcFront
from tests.integration.collector.sink_http import HttpFront
from tests.integration.collector.sink_types import (
    OK,
    DecodeError,
    Received,
    Reply,
    Signal,
    Transport,
    decode,
)

__all__ = ["OtlpSink", "Received", "Reply", "Signal", "Transport"]


class OtlpSink:
    """Listens on 127.0.0.1 on two free ports while the `with` block runs.

    Takes profiles, traces, metrics and logs. `received` holds every request that arrived, in order, whatever was
    answered; a request that does not decode is kept with `message=None` and refused as OTLP says
    (INVALID_ARGUMENT, HTTP 400). Requests over `max_body_bytes` are refused before they are kept
    (RESOURCE_EXHAUSTED, HTTP 413); the default is gRPC's own and the Collector's, 4 MiB.

        with OtlpSink() as sink:
            sink.script(Reply.unavailable(), Reply(rejected=2, message="no"))
            ...
            first, second = sink.wait_for(2)
    """

    def __init__(self, *, max_body_bytes: int = 4 * 1024 * 1024) -> None:
        self._max_body_bytes = max_body_bytes
        self._received: list[Received] = []
        self._script: deque[Reply] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()

    def __enter__(self) -> OtlpSink:
        self._grpc = GrpcFront(self._answer, max_body_bytes=self._max_body_bytes)
        try:
            self._http = HttpFront(self._answer, max_body_bytes=self._max_body_bytes)
        except BaseException:
            self._grpc.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Ends scripted delays first, so that closing waits for no reply.
        self._closing.set()
        self._grpc.close()
        self._http.close()

    @property
    def grpc_endpoint(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self._grpc.port}"

    @property
    def http_endpoint(self) -> str:
        """`http://host:port`; the signal's path is the client's to add."""
        return f"http://127.0.0.1:{self._http.port}"

    @property
    def received(self) -> tuple[Received, ...]:
        """All requests so far, in order of arrival."""
        with self._changed:
            return tuple(self._received)

    def script(self, *replies: Reply) -> None:
        """Answer the next requests of either transport with these, in order; then with success."""
        with self._changed:
            self._script.extend(replies)

    def wait_for(
        self,
        count: int,
        *,
        timeout_s: float = 300.0,
        where: Callable[[Received], bool] = lambda _: True,
    ) -> tuple[Received, ...]:
        """The requests that `where` accepts, as soon as there are `count` of them.

        Raises:
            TimeoutError: fewer came in time; the message lists what did.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = tuple(filter(where, self._received))
                if len(found) >= count:
                    return found
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    summary = [(r.transport, r.signal, len(r.body)) for r in self._received]
                    raise TimeoutError(
                        f"{len(found)} of {count} requests in {timeout_s:.0f} s; got {summary}"
                    )
                self._changed.wait(remaining_s)

    def _answer(
        self,
        transport: Transport,
        signal: Signal,
        body: bytes,
        metadata: tuple[tuple[str, str | bytes], ...],
    ) -> Reply:
        problem = ""
        try:
            message = decode(signal, body)
        except DecodeError as error:
            message, problem = None, str(error)
        with self._changed:
            self._received.append(
                Received(
                    transport=transport,
                    signal=signal,
                    metadata=metadata,
                    body=body,
                    message=message,
                )
            )
            scripted = self._script.popleft() if self._script else None
            self._changed.notify_all()
        if scripted is None:
            return Reply.invalid(problem) if problem else OK
        self._closing.wait(scripted.delay_s)
        return scripted
