# SPDX-License-Identifier: Apache-2.0
"""Runs Jaeger's storage and query service as a child process, and asks it for traces."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.integration.collector.build import CollectorError

LIMIT_S = 300.0
"""Against hanging: neither start nor answer takes a second where the machine is not busy."""
_IDS = ("traceId", "spanId", "parentSpanId")


class RunningJaeger:
    """A trace store on free ports of 127.0.0.1 while the `with` block runs, empty at first.

    Raises:
        CollectorError: on entry, when it ends or does not say its ports in time.
    """

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def __enter__(self) -> RunningJaeger:
        self._process = subprocess.Popen(
            [str(self._binary)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        timer = threading.Timer(LIMIT_S, self._process.kill)
        timer.start()
        try:
            said = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not said:
            self._process.kill()
            _, problem = self._process.communicate()
            raise CollectorError(f"Jaeger did not start: {problem}")
        ports: dict[str, str] = json.loads(said)
        self.otlp_grpc_endpoint = ports["otlp_grpc"]
        self._query_url = f"http://{ports['query_http']}"
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def get(self, path: str) -> tuple[int, Any]:
        """HTTP status and JSON of one call of the query API."""
        # No proxy of the environment: it is on this host.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self._query_url + path, timeout=LIMIT_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def trace(self, trace_id: str) -> TracesData:
        """A trace as OTLP by the API v3, with times to the nanosecond; empty if it is not there."""
        status, answer = self.get(f"/api/v3/traces/{trace_id}")
        if status == 404:
            return TracesData()
        if status != 200:
            raise CollectorError(f"Jaeger answered {status}: {answer}")
        return json_format.ParseDict(_with_protobuf_ids(answer["result"]), TracesData())

    def wait_for(self, trace_id: str, whole: Callable[[TracesData], bool]) -> TracesData:
        """The trace as soon as `whole` says that it is there.

        Raises:
            TimeoutError: it was not in time; the message has what was.
        """
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            found = self.trace(trace_id)
            if whole(found):
                return found
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"trace {trace_id} is not whole: {found}")
            time.sleep(0.05)


def _with_protobuf_ids(value: Any) -> Any:
    """OTLP has ids in hexadecimal, where protobuf's JSON has base64."""
    if isinstance(value, list):
        return [_with_protobuf_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode()
        if key in _IDS
        else _with_protobuf_ids(item)
        for key, item in value.items()
    }
