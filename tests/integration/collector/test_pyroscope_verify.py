# SPDX-License-Identifier: Apache-2.0
"""collector-config/verify.sh through the shipped Collector configuration, against the Pyroscope double."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.integration.collector.build import BUILD_TIMEOUT_S
from tests.integration.collector.pyroscope_collector import (
    CAPTURE,
    CONFIG_DIR,
    ROOT,
    clean_environment,
    shipped_collector,
)
from tests.integration.collector.sink import OtlpSink

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_S + 900)

SCRIPT = CONFIG_DIR / "verify.sh"
ENOUGH_S = "300"


@pytest.fixture
def search_path(tmp_path: Path) -> str:
    """A PATH on which `otel-gpuflame` is this tree's."""
    command = tmp_path / "otel-gpuflame"
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m otel_gpuflame "$@"\n'
    )
    command.chmod(0o755)
    return f"{tmp_path}:{clean_environment()['PATH']}"


def verify(search_path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env={**clean_environment(), "PATH": search_path},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.collector
def test_it_finds_what_it_sent_also_the_second_time(
    collector_binary: Path, search_path: str
) -> None:
    """Exit code 0, and the sums are those of this run even where an earlier run's data lie beside them."""
    with (
        PyroscopeDouble() as pyroscope,
        shipped_collector(collector_binary, pyroscope) as collector,
    ):
        places = ["--collector", f"http://{collector.http_endpoint}"]
        places += ["--pyroscope", pyroscope.http_endpoint, "--timeout", ENOUGH_S]
        for _ in range(2):
            done = verify(search_path, *places)
            assert (done.returncode, done.stderr) == (0, "")
            assert len(re.findall(r"^ok  ", done.stdout, re.MULTILINE)) == 4
        assert pyroscope.refusals == ()


@pytest.mark.collector
def test_an_empty_pyroscope_is_a_clear_failure(collector_binary: Path, search_path: str) -> None:
    """The Collector sends elsewhere: exit code 1, and the message names place, remedy and what is there."""
    with (
        PyroscopeDouble() as elsewhere,
        PyroscopeDouble() as empty,
        shipped_collector(collector_binary, elsewhere) as collector,
    ):
        places = ("--collector", f"http://{collector.http_endpoint}")
        done = verify(search_path, *places, "--pyroscope", empty.http_endpoint, "--timeout", "1")
        assert done.returncode == 1
        assert f"the recording is not in Pyroscope at {empty.http_endpoint}" in done.stderr
        assert "Exporting failed" in done.stderr
        assert "pyroscope.yaml" in done.stderr
        assert "Pyroscope has these profile types: \n" in done.stderr


class TempoDouble:
    """Answers for the traces that a sink has received, as Tempo's `/api/v2/traces/ID` does."""

    def __init__(self, sink: OtlpSink) -> None:
        self._sink = sink

    def answer(self, trace_id: str) -> dict[str, Any] | None:
        """The trace, or None for one that did not come."""
        found = [
            MessageToDict(resource_spans)
            for received in self._sink.received
            for resource_spans in received.traces.resource_spans
            if any(
                span.trace_id.hex() == trace_id
                for scope in resource_spans.scope_spans
                for span in scope.spans
            )
        ]
        return {"trace": {"resourceSpans": found}} if found else None


@contextmanager
def serving(tempo: TempoDouble) -> Iterator[str]:
    """The base URL of `tempo`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            prefix = "/api/v2/traces/"
            found = tempo.answer(self.path.removeprefix(prefix))
            body = json.dumps(found).encode()
            self.send_response(200 if found and self.path.startswith(prefix) else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, _format: str, *args: object) -> None:
            """Test output stays clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.collector
def test_with_tempo_the_span_goes_all_the_way(
    collector_binary: Path, sink: OtlpSink, search_path: str
) -> None:
    """The span is sent as a trace with the attribute that Grafana looks for, and found."""
    with (
        PyroscopeDouble() as pyroscope,
        serving(TempoDouble(sink)) as tempo,
        shipped_collector(
            collector_binary, pyroscope, traces_endpoint=sink.grpc_endpoint
        ) as collector,
    ):
        places = ["--collector", f"http://{collector.http_endpoint}", "--tempo", tempo]
        places += ["--pyroscope", pyroscope.http_endpoint, "--timeout", ENOUGH_S]
        done = verify(search_path, *places)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ok  trace \w{32} with span \w{16} in Tempo$", done.stdout, re.MULTILINE)


@pytest.mark.collector
def test_a_trace_that_tempo_lacks_is_a_clear_failure(
    collector_binary: Path, sink: OtlpSink, search_path: str
) -> None:
    """Tempo knows nothing of the trace: exit code 1 and its address in the message."""
    with (
        PyroscopeDouble() as pyroscope,
        OtlpSink() as empty,
        serving(TempoDouble(empty)) as tempo,
        shipped_collector(
            collector_binary, pyroscope, traces_endpoint=sink.grpc_endpoint
        ) as collector,
    ):
        places = ["--collector", f"http://{collector.http_endpoint}", "--tempo", tempo]
        places += ["--pyroscope", pyroscope.http_endpoint, "--timeout", "20"]
        done = verify(search_path, *places)
    assert done.returncode == 1
    assert f"is not in Tempo at {tempo}" in done.stderr


def test_nobody_at_pyroscopes_address_is_a_clear_failure(search_path: str) -> None:
    """Nothing is sent before Pyroscope has answered once."""
    done = verify(search_path, "--pyroscope", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "Pyroscope at http://127.0.0.1:1 does not answer queries" in done.stderr


def test_nobody_at_the_collectors_address_is_a_clear_failure(search_path: str) -> None:
    """The sender's own words are shown."""
    with PyroscopeDouble() as pyroscope:
        places = ("--collector", "http://127.0.0.1:1", "--pyroscope", pyroscope.http_endpoint)
        done = verify(search_path, *places)
    assert done.returncode == 1
    assert "the Collector at http://127.0.0.1:1 did not take the recording" in done.stderr
    assert "0 of" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nope",), "unknown argument --nope"),
        (("--timeout",), "--timeout needs a value"),
        (("--timeout", "soon"), "--timeout soon is not a whole number"),
    ],
)
def test_wrong_usage_ends_with_2(
    search_path: str, arguments: tuple[str, ...], message: str
) -> None:
    """The message names the argument and where help is."""
    done = verify(search_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    """Without the command on PATH: exit code 2 and its name."""
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(Path("/usr/bin") / tool)
    done = verify(str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "verify: no otel-gpuflame on PATH\n")


def test_help_is_printed(search_path: str) -> None:
    """`--help` tells all arguments and the exit codes."""
    done = verify(search_path, "--help")
    assert done.returncode == 0
    for text in ("--collector", "--pyroscope", "--tempo", "--timeout", "Ends with 0"):
        assert text in done.stdout


def test_what_the_script_asks_for_is_in_the_recording() -> None:
    """Service, trace, span and profile type in the script are those of the recording and of the registry."""
    constants = dict(re.findall(r"^readonly (\w+)='([^']+)'$", SCRIPT.read_text(), re.MULTILINE))
    bundles = replay(CAPTURE, AggregateOptions(window_ns=None)).bundles
    assert {dict(bundle.resource)["service.name"] for bundle in bundles} == {constants["SERVICE"]}
    links = {(link.trace_id.hex(), link.span_id.hex()) for b in bundles for link in b.links}
    assert (constants["TRACE_ID"], constants["SPAN_ID"]) in links, (
        f"take one of {sorted(links)[:3]}"
    )
    period = sample_types.period(sample_types.HEADLINE)
    assert period is not None
    headline = ":".join((period.type.type, *sample_types.HEADLINE, *period.type))
    assert constants["PROFILE_TYPE"] == headline
