# SPDX-License-Identifier: Apache-2.0
"""From a trace to its GPU profile, live: a program sends its spans to a Collector and the agent its profiles, as they
are in operation; a span that Jaeger has leads to what was waited for in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.fakes.pyroscope.store import StoredProfile
from tests.integration.bpf.agent.harness import (
    FULL,
    Agent,
    agent_command,
    beacon,
    end_when,
    is_known,
    stays,
    unique,
)
from tests.integration.bpf.recording import ROOT
from tests.integration.bpf.session import running
from tests.integration.collector.build import BUILD_TIMEOUT_S, COLLECTOR, JAEGER
from tests.integration.collector.conftest import built
from tests.integration.collector.drilldown import stored
from tests.integration.collector.jaeger_store import RunningJaeger
from tests.integration.collector.pyroscope_collector import clean_environment, shipped_collector
from tests.integration.collector.pyroscope_query import flame_graph, span_query

pytestmark = [
    pytest.mark.bpf,
    pytest.mark.collector,
    pytest.mark.timeout(BUILD_TIMEOUT_S + 1200),
    pytest.mark.usefixtures("side_by_side"),
]

APP = Path(__file__).parent / "apps" / "requests_with_spans.py"
KERNEL_NS = 5_000_000


def test_a_span_in_jaeger_leads_to_what_was_waited_for_in_it(driver: dict[str, str]) -> None:
    """Each request's span, asked for as Grafana does, has its own wait: longer than nothing, no longer than the span.
    Together they are all that the service waited.
    """
    service = unique("drilldown")
    with (
        RunningJaeger(built(JAEGER)) as jaeger,
        PyroscopeDouble() as pyroscope,
        shipped_collector(
            built(COLLECTOR), pyroscope, traces_endpoint=jaeger.otlp_grpc_endpoint
        ) as collector,
    ):
        command = agent_command(collector.grpc_endpoint, *FULL)
        with running(command, {**clean_environment(), "PYTHONPATH": str(ROOT)}) as started:
            subject = Agent(started)
            with beacon(driver, subject):
                app = [sys.executable, str(APP), f"http://{collector.http_endpoint}", "--hold"]
                environment = stays(driver, service) | {"FAKE_CUDA_KERNEL_NS": str(KERNEL_NS)}
                with running(app, environment) as program:
                    pid = program.truth()["pid"]
                    subject.running.wait_for(lambda: is_known(subject.pid, pid), "a look")
                    program.go()
                    truth = end_when(lambda _: True, program, said=1)
                subject.stop()
        spans: dict[str, str] = truth["spans"]

        def waits(profiles: tuple[StoredProfile, ...]) -> dict[str, int]:
            """By span, of this service."""
            found: dict[str, int] = {}
            for profile in profiles:
                is_wait = profile.profile_type.sample_type == "gpu_wait"
                if is_wait and profile.labels["service_name"] == service:
                    for sample in profile.samples:
                        found[sample.span_id] = found.get(sample.span_id, 0) + sample.value
            return found

        pyroscope.store.wait_until(
            lambda all_: waits(all_).keys() >= set(spans.values()), timeout_s=300
        )
        by_span = waits(pyroscope.store.all())
        assert by_span.keys() == set(spans.values())
        for trace_id, span_id in spans.items():
            found = stored(jaeger.wait_for(trace_id, lambda trace: len(stored(trace)) == 2))
            request = found[trace_id, span_id]
            start_ns = request.span.start_time_unix_nano
            end_ns = request.span.end_time_unix_nano
            fields = span_query(
                request.attributes(), start_ms=start_ns // 1_000_000, end_ms=end_ns // 1_000_000
            )
            graph = flame_graph(pyroscope.http_endpoint, fields)
            assert 0 < int(graph["total"]) <= end_ns - start_ns
            assert int(graph["total"]) == by_span[span_id]
            assert {"main", "cuCtxSynchronize"} <= set(graph["names"])
