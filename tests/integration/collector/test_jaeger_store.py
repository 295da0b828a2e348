# SPDX-License-Identifier: Apache-2.0
"""Jaeger as the tests run it: it keeps what it took, says what it does not have, and a start that fails is told."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.integration.collector.build import BUILD_TIMEOUT_S, CollectorError
from tests.integration.collector.drilldown import stored
from tests.integration.collector.example_request import SPAN_ID, TRACE_ID, trace_request
from tests.integration.collector.jaeger_store import LIMIT_S, RunningJaeger

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.mark.collector
@pytest.mark.timeout(BUILD_TIMEOUT_S + 900)
def test_what_jaeger_took_can_be_asked_for(jaeger_binary: Path) -> None:
    """At once, whole, to the nanosecond; and nothing else is there."""
    sent = trace_request()
    (before,) = sent.resource_spans[0].scope_spans[0].spans
    with RunningJaeger(jaeger_binary) as jaeger:
        assert jaeger.get("/api/services") == (200, _answer(None))
        with grpc.insecure_channel(jaeger.otlp_grpc_endpoint) as channel:
            channel.unary_unary(EXPORT)(sent.SerializeToString(), timeout=LIMIT_S)
        ((ids, after),) = stored(jaeger.trace(TRACE_ID.hex())).items()
        assert ids == (TRACE_ID.hex(), SPAN_ID.hex())
        assert after.resource == {"service.name": "checkout"}
        assert (after.span.name, after.span.kind) == (before.name, before.kind)
        assert after.span.start_time_unix_nano == before.start_time_unix_nano
        assert after.span.end_time_unix_nano == before.end_time_unix_nano
        assert list(after.span.attributes) == list(before.attributes)
        assert not jaeger.trace("11" * 16).resource_spans
        assert jaeger.get("/api/services") == (200, _answer(["checkout"]))
        assert jaeger.get("/api/traces?service=nobody")[1]["data"] == []


def _answer(data: list[str] | None) -> dict[str, object]:
    """An answer of the query API with a list in it."""
    total = len(data or ())
    return {"data": data, "total": total, "limit": 0, "offset": 0, "errors": None}


def test_a_start_that_fails_is_told(tmp_path: Path) -> None:
    """With the words of the program, and without waiting for anything."""
    script = tmp_path / "jaeger"
    script.write_text('#!/bin/sh\necho "jaeger: no port is free" >&2\nexit 1\n')
    script.chmod(0o755)
    with pytest.raises(CollectorError, match="no port is free"), RunningJaeger(script):
        pass
