"""Findings on their way: as log events, over both protocols, each told once in a while."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otel_gpuflame.errors import ExportError
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.export.finding_log import FindingLog, log_record
from otel_gpuflame.export.options import LOGS, OtlpOptions, otlp_options
from otel_gpuflame.findings.model import Confidence, Finding
from otel_gpuflame.profile.model import Window
from tests.integration.collector.sink import OtlpSink, Reply

S = 1_000_000_000
START_NS = 1_700_000_000 * S
FINDING = Finding(
    rule="synchronise-in-loop",
    title="Synchronise in a loop",
    place=Frame(FrameKind.PYTHON, "log_loss", file="/srv/train.py", line=117),
    lost_ns=2 * S,
    share=0.2,
    evidence=(("waits", 28), ("call", "cuStreamSynchronize"), ("idle_share_of_devices", 0.5)),
    confidence=Confidence.MEDIUM,
    remedy="Read less often.",
    resource=(("host.name", "h"), ("process.pid", 7), ("service.name", "train")),
    window=Window(START_NS, START_NS + 10 * S),
)


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A backend."""
    with OtlpSink() as running:
        yield running


def destination(sink: OtlpSink, transport: str) -> OtlpOptions:
    """Options as from the environment."""
    is_http = transport == "http"
    return otlp_options(
        {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf" if is_http else "grpc",
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.http_endpoint
            if is_http
            else f"http://{sink.grpc_endpoint}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60000",
        },
        LOGS,
    )


def plain(value: AnyValue) -> Any:
    """A value of an attribute."""
    return getattr(value, str(value.WhichOneof("value")))


def records(sink: OtlpSink) -> list[dict[str, Any]]:
    """Attributes of all records that arrived."""
    return [
        {a.key: plain(a.value) for a in record.attributes}
        for received in sink.received
        for resource in received.logs.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def later(seconds: int, **changes: Any) -> Finding:
    """The finding in a window that begins so much later."""
    begin_ns = START_NS + seconds * S
    return replace(FINDING, window=Window(begin_ns, begin_ns + 10 * S), **changes)


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_finding_arrives_as_an_event(sink: OtlpSink, transport: str) -> None:
    """Name, time, severity, text, and everything that is known as attributes."""
    log = FindingLog(destination(sink, transport))
    log.note([FINDING])
    log.close(300)

    (received,) = sink.received
    assert (received.transport, received.signal) == (transport, "logs")
    (resource,) = received.logs.resource_logs
    names = {a.key: plain(a.value) for a in resource.resource.attributes}
    assert names["service.name"] == "otel_gpuflame"
    (scope,) = resource.scope_logs
    (record,) = scope.log_records
    assert (record.event_name, record.severity_text) == ("gpu.finding", "WARN")
    assert record.time_unix_nano == START_NS + 10 * S
    assert record.body.string_value == (
        "Synchronise in a loop: /srv/train.py:117 (log_loss) loses 20.0% of the time"
    )
    assert records(sink) == [
        {
            "gpu.finding.rule": "synchronise-in-loop",
            "gpu.finding.lost_ns": 2 * S,
            "gpu.finding.share_of_window": 0.2,
            "gpu.finding.confidence": "medium",
            "gpu.finding.remedy": "Read less often.",
            "gpu.finding.windows": 1,
            "gpu.finding.evidence.waits": 28,
            "gpu.finding.evidence.call": "cuStreamSynchronize",
            "gpu.finding.evidence.idle_share_of_devices": 0.5,
            "code.function.name": "log_loss",
            "code.file.path": "/srv/train.py",
            "code.line.number": 117,
            "service.name": "train",
            "process.pid": 7,
        }
    ]


def test_the_document_lists_what_is_sent() -> None:
    """Every attribute is described."""
    document = (Path(__file__).parents[3] / "docs" / "findings.md").read_text("utf-8")
    attributes = log_record(FINDING, 1).attributes or {}
    for name in attributes:
        if not name.startswith("gpu.finding.evidence."):
            assert f"`{name}`" in document, name
    assert "`gpu.finding.evidence.NAME`" in document


@pytest.mark.parametrize(("share", "severity"), [(0.1, "WARN"), (0.099, "INFO")])
def test_severity_follows_from_the_share(share: float, severity: str) -> None:
    """A tenth of the time is worth a warning."""
    assert log_record(replace(FINDING, share=share), 1).severity_text == severity


def test_places_that_are_not_known_have_no_line() -> None:
    """No empty path and no line 0."""
    mark = Frame(FrameKind.MARK, "[no Python frame]")
    attributes = log_record(replace(FINDING, place=mark), 1).attributes or {}
    assert attributes["code.function.name"] == "[no Python frame]"
    assert not {"code.file.path", "code.line.number"} & set(attributes)


def test_what_goes_on_is_told_again_after_ten_minutes(sink: OtlpSink) -> None:
    """Once for all processes of a service; other lines, rules and services are told for themselves."""
    log = FindingLog(destination(sink, "http"))
    for seconds in range(0, 1_210, 10):
        log.note([later(seconds), later(seconds, resource=(("service.name", "train"),))])
    other = FINDING.place._replace(line=118)
    log.note([later(1_210, place=other), later(1_210, rule="r"), later(1_210, resource=())])
    log.close(300)

    found = [
        (r["gpu.finding.rule"], r.get("code.line.number"), r["gpu.finding.windows"])
        for r in records(sink)
    ]
    assert found == [
        ("synchronise-in-loop", 117, 1),
        ("synchronise-in-loop", 117, 120),
        ("synchronise-in-loop", 117, 120),
        ("synchronise-in-loop", 118, 1),
        ("r", 117, 1),
        ("synchronise-in-loop", 117, 1),
    ]


def test_services_of_one_name_in_two_namespaces_are_two(sink: OtlpSink) -> None:
    """The second one's finding is not taken for a repetition of the first one's."""
    log = FindingLog(destination(sink, "http"))
    for namespace in ("shop", "search"):
        resource = (("service.name", "ranker"), ("service.namespace", namespace))
        log.note([later(0, resource=resource), later(10, resource=resource)])
    log.close(300)
    assert [r["service.namespace"] for r in records(sink)] == ["shop", "search"]


def test_what_is_remembered_is_bounded(sink: OtlpSink) -> None:
    """An endless number of lines takes no endless memory: the one told longest ago is told anew."""
    log = FindingLog(destination(sink, "http"))
    log.note([FINDING])
    for line in range(5_000):
        log.note([replace(FINDING, place=FINDING.place._replace(line=1_000 + line))])
    assert len(log._known) == 4_096
    log.close(300)


def test_a_receiver_without_logs_is_told_once(
    sink: OtlpSink, caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason and the remedy."""
    sink.script(*[Reply.invalid("no logs here")] * 2)
    log = FindingLog(destination(sink, "http"))
    log.note([FINDING])
    log.close(300)

    (message,) = caplog.messages
    assert "findings: log events do not reach" in message
    assert "leave out --findings" in message


@pytest.mark.parametrize("transport", ["grpc", "http/protobuf"])
def test_a_receiver_that_never_answers_does_not_hold_up_the_end(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent's last metrics come after it, and whoever started the agent kills it after a while."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = otlp_options(
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": transport,
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "20000",
            },
            LOGS,
        )
        log = FindingLog(options)
        log.note([FINDING])
        begin_s = time.monotonic()
        log.close(0.1)
        took_s = time.monotonic() - begin_s

    assert took_s < 15
    assert "log events were on their way when time was up" in caplog.text


def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(
    sink: OtlpSink, tmp_path: Path
) -> None:
    """As for profiles."""
    options = replace(
        destination(sink, "http"),
        plaintext=False,
        endpoint="https://127.0.0.1:1",
        certificate_file=str(tmp_path / "missing.pem"),
    )
    with pytest.raises(ExportError, match=r"missing\.pem"):
        FindingLog(options)
