# SPDX-License-Identifier: Apache-2.0
"""`doctor --endpoint` asks a real Collector whether it takes profiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpuflame.doctor.collector import SERVICE_NAME
from tests.integration.collector.build import BUILD_TIMEOUT_S
from tests.integration.collector.collector import RunningCollector
from tests.integration.collector.configs import TRACES_ONLY_CONFIG
from tests.integration.collector.resolve import resolve_profiles
from tests.integration.collector.sink import OtlpSink

ROOT = Path(__file__).resolve().parents[3]

# The first of these tests may have to build the Collector: minutes, when Go's cache is cold.
pytestmark = [pytest.mark.collector, pytest.mark.timeout(BUILD_TIMEOUT_S + 900)]

PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])


def endpoint_of(collector: RunningCollector, protocol: str) -> str:
    """Where that protocol is spoken."""
    return collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint


def ask(endpoint: str, protocol: str) -> dict[str, str]:
    """The check of the receiver; other checks may fail here, as in a container without rights."""
    command = [sys.executable, "-m", "otel_gpuflame", "doctor", "--json"]
    done = subprocess.run(
        [*command, "--endpoint", endpoint, "--protocol", protocol],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    document = json.loads(done.stdout)
    (check,) = [check for check in document["checks"] if check["name"] == "Collector"]
    assert done.returncode == 1 or check["status"] != "fail"
    return dict(check)


@PROTOCOLS
def test_a_collector_that_takes_profiles_passes(
    relay: RunningCollector, sink: OtlpSink, protocol: str
) -> None:
    """One profile with one sample arrives behind it, under a service name of its own."""
    check = ask(endpoint_of(relay, protocol), protocol)
    assert check["status"] == "ok", check
    assert "took a profile" in check["detail"]
    for received in sink.wait_for(2):
        (profile,) = resolve_profiles(received.profiles)
        resource = {attribute.key: attribute.value for attribute in profile.resource}
        assert resource == {"service.name": SERVICE_NAME}
        assert [sample.values for sample in profile.samples] == [(1,)]


@PROTOCOLS
@pytest.mark.parametrize("feature_gates", [(), ("service.profilesSupport",)])
def test_a_collector_without_profiles_fails(
    collector_binary: Path, protocol: str, feature_gates: tuple[str, ...]
) -> None:
    """With the gate and the pipeline that are missing, and the version that has them."""
    with RunningCollector(
        collector_binary, TRACES_ONLY_CONFIG, feature_gates=feature_gates
    ) as running:
        check = ask(endpoint_of(running, protocol), protocol)
    assert check["status"] == "fail"
    assert "--feature-gates=+service.profilesSupport" in check["detail"]
    assert "`profiles` pipeline" in check["detail"]
    assert "0.148" in check["detail"]
    assert "collector-config/" in check["remedy"]
