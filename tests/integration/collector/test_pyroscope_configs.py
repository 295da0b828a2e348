# SPDX-License-Identifier: Apache-2.0
"""The Collector configurations for Pyroscope and for Kubernetes, in a real Collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.integration.collector.build import BUILD_TIMEOUT_S
from tests.integration.collector.collector import RunningCollector, validate_config
from tests.integration.collector.example_request import trace_request
from tests.integration.collector.otlp_client import post
from tests.integration.collector.pyroscope_collector import (
    CONFIG_DIR,
    PYROSCOPE_OVERLAY,
    SHIPPED,
    replay,
)
from tests.integration.collector.sink import OtlpSink

KUBERNETES = CONFIG_DIR / "k8s.yaml"
ASSOCIATED_BY = ["container.id", "k8s.pod.uid"]
CONTAINER_ATTRIBUTES = {"k8s.container.name", "container.image.name", "container.id"}


def kubernetes_config() -> dict[str, Any]:
    """`k8s.yaml` as it is shipped."""
    config: dict[str, Any] = yaml.safe_load(KUBERNETES.read_text())
    return config


def without_kubernetes(config: dict[str, Any]) -> str:
    """`config` without the one processor that the tests' Collector does not have."""
    del config["processors"]["k8s_attributes"]
    for pipeline in config["service"]["pipelines"].values():
        if "k8s_attributes" in pipeline["processors"]:
            pipeline["processors"].remove("k8s_attributes")
    return yaml.safe_dump(config)


@pytest.mark.collector
@pytest.mark.timeout(BUILD_TIMEOUT_S + 900)
def test_pyroscope_yaml_is_valid_over_collector_yaml(collector_binary: Path) -> None:
    """The Collector takes both files together."""
    verdict = validate_config(collector_binary, SHIPPED, PYROSCOPE_OVERLAY)
    assert (verdict.accepted, verdict.output) == (True, "")


@pytest.mark.collector
@pytest.mark.timeout(BUILD_TIMEOUT_S + 900)
def test_the_rest_of_k8s_yaml_is_valid(collector_binary: Path, tmp_path: Path) -> None:
    """All but `k8s_attributes`, which could not be built from modules, is taken."""
    config = tmp_path / "k8s.yaml"
    config.write_text(without_kubernetes(kubernetes_config()))
    env = {"PROFILES_BACKEND_ENDPOINT": "http://127.0.0.1:1", "TRACES_BACKEND_ENDPOINT": "x:1"}
    verdict = validate_config(collector_binary, config, env=env)
    assert (verdict.accepted, verdict.output) == (True, "")


@pytest.mark.collector
@pytest.mark.timeout(BUILD_TIMEOUT_S + 900)
def test_k8s_yaml_carries_profiles_and_traces(collector_binary: Path, sink: OtlpSink) -> None:
    """Run without `k8s_attributes`, the recording reaches Pyroscope unrefused, and a trace its backend."""
    with PyroscopeDouble() as pyroscope:
        env = {
            "OTLP_GRPC_ENDPOINT": "127.0.0.1:0",
            "OTLP_HTTP_ENDPOINT": "127.0.0.1:0",
            "PROFILES_BACKEND_ENDPOINT": pyroscope.http_endpoint,
            "TRACES_BACKEND_ENDPOINT": sink.grpc_endpoint,
        }
        config = without_kubernetes(kubernetes_config())
        with RunningCollector(collector_binary, config, env=env) as collector:
            replay("--endpoint", collector.grpc_endpoint, "--protocol", "grpc")
            url = f"http://{collector.http_endpoint}/v1/traces"
            assert post(url, trace_request().SerializeToString()).status == 200
            pyroscope.store.wait_until(lambda profiles: len(profiles) > 1, timeout_s=300)
            sink.wait_for(1, where=lambda received: received.signal == "traces")
        assert pyroscope.refusals == ()


def test_pods_are_found_by_container_and_pod_id_only() -> None:
    """Never by the connection, which is the agent's: every profile would get the agent's pod."""
    associations = kubernetes_config()["processors"]["k8s_attributes"]["pod_association"]
    assert associations == [
        {"sources": [{"from": "resource_attribute", "name": name}]} for name in ASSOCIATED_BY
    ]


def test_container_ids_are_kept() -> None:
    """The processor knows container ids only when it extracts some attribute of containers."""
    extracted = kubernetes_config()["processors"]["k8s_attributes"]["extract"]["metadata"]
    assert CONTAINER_ATTRIBUTES & set(extracted)


def test_both_configurations_do_the_same_for_pyroscope() -> None:
    """What `pyroscope.yaml` adds is in `k8s.yaml` too, after the names of the pod."""
    overlay, kubernetes = yaml.safe_load(PYROSCOPE_OVERLAY.read_text()), kubernetes_config()
    name = "resource/pyroscope"
    assert kubernetes["processors"][name] == overlay["processors"][name]
    order = kubernetes["service"]["pipelines"]["profiles"]["processors"]
    assert order == ["memory_limiter", "k8s_attributes", name]
    assert overlay["service"]["pipelines"]["profiles"]["processors"] == ["memory_limiter", name]
