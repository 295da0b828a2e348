# SPDX-License-Identifier: Apache-2.0
"""The whole road: a recording, replayed by the command line through a real Collector to a backend behind it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle
from tests.integration.collector.collector import RunningCollector
from tests.integration.collector.configs import TRACES_ONLY_CONFIG
from tests.integration.collector.resolve import ResolvedSample, resolve_samples
from tests.integration.collector.sink import OtlpSink

pytestmark = [pytest.mark.collector, pytest.mark.timeout(2_400)]

ROOT = Path(__file__).parents[3]
CAPTURE = ROOT / "examples" / "captures" / "h200_train.ogfcap"
WINDOW_NS = 10_000_000_000

Sample = tuple[str, str, tuple[tuple[str, str, int], ...], str]


def run_replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `otel-gpuflame replay` on the bundled recording, without settings of the caller."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "replay", str(CAPTURE), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def expected() -> Counter[Sample]:
    """Value by service, type, stack and span, as the pipeline makes them."""
    values: Counter[Sample] = Counter()
    for bundle in replay(CAPTURE, AggregateOptions(window_ns=WINDOW_NS)).bundles:
        for profile in bundle.profiles:
            columns = zip(
                profile.stack.tolist(), profile.link.tolist(), profile.value.tolist(), strict=True
            )
            for stack, link, value in columns:
                span_id = bundle.links[link].span_id.hex() if link >= 0 else ""
                service = str(dict(bundle.resource)["service.name"])
                values[service, profile.sample_type.type, frames(bundle, stack), span_id] += value
    return values


def frames(bundle: Bundle, stack: int) -> tuple[tuple[str, str, int], ...]:
    """(name, file, line) of each frame, root first."""
    found = (bundle.frames[index] for index in bundle.stacks[stack])
    return tuple((frame.name, frame.file, frame.line) for frame in found)


def key(sample: ResolvedSample) -> Sample:
    """What must survive the way, in the same terms as `expected`."""
    resource = {attribute.key: attribute.value for attribute in sample.resource}
    stack = tuple((frame.name, frame.filename, frame.line) for frame in sample.frames)
    span_id = sample.link.span_id if sample.link else ""
    return str(resource["service.name"]), sample.sample_type.type, stack, span_id


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_recording_arrives_whole(relay: RunningCollector, sink: OtlpSink, protocol: str) -> None:
    """Every sample of the recording comes out behind the Collector with its stack, span and value, over both
    transports of the Collector's exporters.
    """
    endpoint = relay.grpc_endpoint if protocol == "grpc" else relay.http_endpoint
    done = run_replay("--endpoint", endpoint, "--protocol", protocol)
    assert done.returncode == 0, done.stderr
    sent = re.search(r"(\d+) of \1 requests accepted", done.stdout)
    assert sent is not None, done.stdout
    truth = expected()
    assert truth
    for transport in ("http", "grpc"):
        received = sink.wait_for(int(sent[1]), where=lambda r, t=transport: r.transport == t)
        arrived: Counter[Sample] = Counter()
        for message in received:
            for sample in resolve_samples(message.profiles):
                arrived[key(sample)] += sample.value
        assert arrived == truth


def test_collector_without_profiles_names_the_gate(collector_binary: Path) -> None:
    """A Collector without a profiles pipeline: exit code 1 and a message that names gate and version."""
    with RunningCollector(collector_binary, TRACES_ONLY_CONFIG) as running:
        done = run_replay("--endpoint", running.http_endpoint, "--protocol", "http/protobuf")
    assert done.returncode == 1
    assert "service.profilesSupport" in done.stderr
    assert "0.148" in done.stderr


def test_no_collector_is_a_clear_error() -> None:
    """Nobody listens: exit code 1 and the endpoint in the message, no traceback."""
    done = run_replay("--endpoint", "http://127.0.0.1:1", "--protocol", "http/protobuf")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
