# SPDX-License-Identifier: Apache-2.0
"""collector-config/deploy/daemonset.yaml: Kubernetes' schemas, and the rights that the agent gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otel_gpuflame.cli.agent import agent
from tests.contract.test_deploy_systemd import CAPABILITIES

MANIFEST = Path(__file__).parents[2] / "collector-config" / "deploy" / "daemonset.yaml"
DOCUMENTS: dict[str, Any] = {
    document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())
}
OLDEST_KUBERNETES = "1.30"
"""The first with `appArmorProfile` as a field."""


@pytest.fixture
def pod() -> dict[str, Any]:
    """The pod's spec."""
    spec: dict[str, Any] = DOCUMENTS["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The agent's container; there is no other."""
    (found,) = pod["containers"]
    assert "initContainers" not in pod
    return dict(found)


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_each_object_is_valid(kind: str, version: str) -> None:
    """Every field is in the schema of its object, and of the right type."""
    kubernetes_validate.validate(DOCUMENTS[kind], version, strict=True)


def test_a_misspelt_field_is_found() -> None:
    """The check that the test above relies on does refuse."""
    document = yaml.safe_load(MANIFEST.read_text().split("---\n")[-1])
    document["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        kubernetes_validate.validate(document, OLDEST_KUBERNETES, strict=True)


def test_it_has_the_documented_capabilities_and_no_others(container: dict[str, Any]) -> None:
    """All are dropped, five are added; they are those of the systemd unit."""
    context = container["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert {f"CAP_{name}" for name in context["capabilities"]["add"]} == CAPABILITIES
    assert context["privileged"] is False
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_it_sees_the_processes_of_the_node_and_shares_nothing_else(pod: dict[str, Any]) -> None:
    """The host's process ids, but neither its network nor its IPC."""
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & set(pod)


def test_of_the_host_it_mounts_tracefs_only_and_cannot_write_to_it(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """No library of the driver, no runtime socket, no device."""
    host_paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert set(host_paths.values()) == {"/sys/kernel/tracing"}
    for mount in container["volumeMounts"]:
        if mount["name"] in host_paths:
            assert (mount["mountPath"], mount["readOnly"]) == ("/sys/kernel/tracing", True)
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


def test_it_never_talks_to_the_kubernetes_api(pod: dict[str, Any]) -> None:
    """No role exists, and no token is mounted."""
    assert set(DOCUMENTS) == {"Namespace", "ServiceAccount", "DaemonSet"}
    assert DOCUMENTS["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == DOCUMENTS["ServiceAccount"]["metadata"]["name"]


def test_the_command_exists_and_takes_its_arguments(container: dict[str, Any]) -> None:
    """`args` are a command of ours with arguments that it knows."""
    name, *arguments = container["args"]
    assert name == agent.name
    agent.make_context("agent", arguments)


def test_variables_refer_to_variables_before_them(container: dict[str, Any]) -> None:
    """Kubernetes leaves `$(NAME)` as it is when NAME is defined later or not at all."""
    known: set[str] = set()
    for variable in container["env"]:
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= known
        known.add(variable["name"])


def test_it_sends_to_the_collector_of_its_node(container: dict[str, Any]) -> None:
    """The endpoint is the address of the node, from the downward API."""
    variables = {variable["name"]: variable for variable in container["env"]}
    host = variables["HOST_IP"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert host == "status.hostIP"
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"] == "http://$(HOST_IP):4317"


def test_it_stays_within_bounds_and_goes_where_gpus_are(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """Memory is bounded, the CPU is not throttled, and the taint of GPU nodes is tolerated."""
    assert "memory" in container["resources"]["limits"]
    assert "cpu" not in container["resources"]["limits"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod[
        "tolerations"
    ]


def test_the_pod_may_take_longer_to_end_than_to_send_what_is_left(pod: dict[str, Any]) -> None:
    """SIGKILL comes after the agent's own deadline."""
    (own,) = [option.default for option in agent.params if option.name == "shutdown_s"]
    assert pod["terminationGracePeriodSeconds"] > int(str(own))
