# SPDX-License-Identifier: Apache-2.0
"""A strict stand-in for Grafana Pyroscope, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from tests.fakes.pyroscope.grpc_front import GrpcFront
from tests.fakes.pyroscope.http_front import HttpFront
from tests.fakes.pyroscope.ingest import Ingest
from tests.fakes.pyroscope.limits import Limits
from tests.fakes.pyroscope.query_api import QueryApi
from tests.fakes.pyroscope.store import Store

_DEFAULT_LIMITS = Limits()


class PyroscopeDouble:
    """Listens on 127.0.0.1 on two free ports while the `with` block runs.

    Pyroscope itself has both on one port, 4040. `unix_ns` and `monotonic_ns` are the clocks of the limits.

        with PyroscopeDouble() as pyroscope:
            send_to(pyroscope.http_endpoint)
            pyroscope.store.wait_until(lambda profiles: len(profiles) == 3, timeout_s=10)
    """

    def __init__(
        self,
        limits: Limits = _DEFAULT_LIMITS,
        *,
        unix_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.store = Store()
        self._limits = limits
        self._ingest = Ingest(self.store, limits, unix_ns=unix_ns, monotonic_ns=monotonic_ns)
        self._queries = QueryApi(self.store, limits)

    def __enter__(self) -> PyroscopeDouble:
        size = self._limits.max_body_bytes
        self._grpc = GrpcFront(self._ingest.push, max_body_bytes=size)
        try:
            self._http = HttpFront(self._ingest.push, self._queries.answer, max_body_bytes=size)
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
        self._grpc.close()
        self._http.close()

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why requests were refused so far; over HTTP a Collector does not pass these words on."""
        return self._ingest.refusals

    @property
    def grpc_endpoint(self) -> str:
        """`host:port` of OTLP over gRPC."""
        return f"127.0.0.1:{self._grpc.port}"

    @property
    def http_endpoint(self) -> str:
        """`http://host:port` of OTLP over HTTP and of the query API."""
        return f"http://127.0.0.1:{self._http.port}"
