"""Which source of an attribute wins, in a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_gpuflame.capture.describe import describe

ID = "b" * 64
UID = "0f5c6b7e-81a2-4c3d-9e4f-5a6b7c8d9e0f"
POD_CGROUP = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
CONTAINER = "uts:[4026532201]"
HOST = "uts:[4026531838]"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process 42 that runs a script in a pod."""
    directory = tmp_path / "42"
    (directory / "ns").mkdir(parents=True)
    (directory / "cmdline").write_bytes(b"python\0train.py\0")
    (directory / "environ").write_bytes(b"HOSTNAME=web-7d9f8b6c5d-x2x7k\0")
    (directory / "cgroup").write_text(POD_CGROUP)
    os.symlink("/usr/bin/python3", directory / "exe")
    os.symlink(CONTAINER, directory / "ns" / "uts")
    return tmp_path


def attributes(proc: Path) -> dict[str, str | int]:
    """Attributes of the process."""
    described = describe(42, proc)
    assert described is not None
    assert list(described) == sorted(described)
    return dict(described)


def environment(proc: Path, *variables: str) -> None:
    """Give the process another environment."""
    (proc / "42" / "environ").write_bytes("\0".join([*variables, ""]).encode())


def test_a_process_in_a_pod_is_described_without_any_help(proc: Path) -> None:
    """Container, pod and workload by the kernel and by the host name that Kubernetes gives."""
    found = attributes(proc)
    assert found["container.id"] == ID
    assert found["k8s.pod.uid"] == UID
    assert found["k8s.pod.name"] == "web-7d9f8b6c5d-x2x7k"
    assert found["service.name"] == "web"


def test_a_pod_on_the_hosts_network_does_not_have_the_nodes_name(proc: Path) -> None:
    """There HOSTNAME is the node's."""
    (proc / "42" / "ns" / "uts").unlink()
    os.symlink(HOST, proc / "42" / "ns" / "uts")
    found = attributes(proc)
    assert "k8s.pod.name" not in found
    assert found["service.name"] == "train.py"


def test_unknown_namespaces_give_no_pod_name(proc: Path) -> None:
    """Rather none than the node's."""
    (proc / "42" / "ns" / "uts").unlink()
    assert "k8s.pod.name" not in attributes(proc)


def test_outside_of_pods_the_host_name_means_nothing(proc: Path) -> None:
    """A Docker container has a host name too."""
    (proc / "42" / "cgroup").write_text(f"0::/docker/{ID}\n")
    found = attributes(proc)
    assert "k8s.pod.name" not in found
    assert (found["container.id"], found["service.name"]) == (ID, "train.py")


def test_kubernetes_variables_tell_a_pod_too(proc: Path) -> None:
    """Where the cgroup is hidden by a namespace."""
    (proc / "42" / "cgroup").write_text("0::/\n")
    environment(proc, "HOSTNAME=trainer-x2x7k", "KUBERNETES_SERVICE_HOST=10.0.0.1")
    found = attributes(proc)
    assert (found["k8s.pod.name"], found["service.name"]) == ("trainer-x2x7k", "trainer")


def test_a_systemd_service_gives_its_name(proc: Path) -> None:
    """Before the script's, after everything that the process says of itself."""
    (proc / "42" / "cgroup").write_text("0::/system.slice/inference.service\n")
    environment(proc)
    assert attributes(proc)["service.name"] == "inference"
    environment(proc, "OTEL_RESOURCE_ATTRIBUTES=service.name=own")
    assert attributes(proc)["service.name"] == "own"


def test_ids_are_the_kernels_where_it_knows_them(proc: Path) -> None:
    """A process cannot put its work under another container or pod."""
    environment(proc, f"OTEL_RESOURCE_ATTRIBUTES=container.id={'c' * 64}", "POD_UID=other")
    found = attributes(proc)
    assert (found["container.id"], found["k8s.pod.uid"]) == (ID, UID)
    (proc / "42" / "cgroup").write_text("0::/\n")
    found = attributes(proc)
    assert (found["container.id"], found["k8s.pod.uid"]) == ("c" * 64, "other")


def test_the_node_has_the_name_that_the_manifest_gives(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter's own host name is a pod's; K8S_NODE_NAME comes from the downward API."""
    monkeypatch.setenv("K8S_NODE_NAME", "node-7")
    assert attributes(proc)["host.name"] == "node-7"


def test_descriptions_are_the_same_each_time(proc: Path) -> None:
    """Replays and backends compare them."""
    assert describe(42, proc) == describe(42, proc)


def test_unreadable_sources_are_left_out(proc: Path) -> None:
    """Without cgroup and environment the script names the process."""
    (proc / "42" / "cgroup").unlink()
    (proc / "42" / "environ").unlink()
    assert attributes(proc)["service.name"] == "train.py"


@pytest.mark.parametrize("published", ["unknown_service", "unknown_service:python"])
def test_a_service_that_nobody_named_is_not_called_so(
    proc: Path, monkeypatch: pytest.MonkeyPatch, published: str
) -> None:
    """SDKs publish a name of their own then: what is derived is better, and other attributes stay."""
    derived = attributes(proc)["service.name"]
    found = {"service.name": published, "service.version": "2"}
    monkeypatch.setattr(
        "otel_gpuflame.capture.describe.read_process_context", lambda _pid, _proc: found
    )
    assert attributes(proc)["service.name"] == derived
    assert attributes(proc)["service.version"] == "2"
