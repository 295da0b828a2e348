"""What the environment of a process says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.capture.describe.environment import (
    from_environment,
    has_pod_variables,
    read_environment,
)

ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"
POD = "k8s.pod.name"


def found(variables: dict[str, str], *, names_pod_by_host: bool = False) -> dict[str, str]:
    """Attributes that these variables give."""
    return from_environment(variables, names_pod_by_host=names_pod_by_host)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("service.name=a", {"service.name": "a"}),
        ("service.name=a%2Cb%3Dc", {"service.name": "a,b=c"}),
        ("service.name=a=b", {"service.name": "a=b"}),
        ("service%2Ename=a", {"service.name": "a"}),
        (" service.name = a , service.version= 2 ", {"service.name": "a", "service.version": "2"}),
        ("service.name=caf%C3%A9", {"service.name": "café"}),
        ("service.name=%FF,service.version=2", {"service.version": "2"}),
        ("service.name=100%", {"service.name": "100%"}),
        ("service.name=a%0Ab", {"service.name": "a\ufffdb"}),
        ("service.name=%20,service.version=", {}),
        ("service.name=a,service.name=b", {"service.name": "b"}),
        ("service.name,=x,,service.version=2", {"service.version": "2"}),
        ("deployment.environment=prod", {"deployment.environment.name": "prod"}),
        (
            "deployment.environment.name=new,deployment.environment=old",
            {"deployment.environment.name": "new"},
        ),
        ("team=x,host.name=liar,process.pid=1,telemetry.distro.name=y", {}),
        ("", {}),
    ],
)
def test_resource_attributes_are_read_as_specified(text: str, expected: dict[str, str]) -> None:
    """Percent-encoded pairs; what is broken or not on the list is left out, the rest stays."""
    assert found({ATTRIBUTES: text}) == expected


@pytest.mark.parametrize(
    "key",
    [
        *("service.name", "service.namespace", "service.version", "service.instance.id"),
        *("deployment.environment.name", "container.id", "k8s.namespace.name", "k8s.pod.name"),
        *("k8s.pod.uid", "k8s.container.name", "telemetry.sdk.name", "telemetry.sdk.language"),
        "telemetry.sdk.version",
    ],
)
def test_every_attribute_of_the_list_can_be_given(key: str) -> None:
    """The list is closed, and whole."""
    assert found({ATTRIBUTES: f"{key}=value"}) == {key: "value"}


def test_the_service_name_has_a_variable_of_its_own() -> None:
    """OTEL_SERVICE_NAME wins; empty it counts as unset."""
    assert found({ATTRIBUTES: "service.name=a", "OTEL_SERVICE_NAME": "b"}) == {"service.name": "b"}
    assert found({ATTRIBUTES: "service.name=a", "OTEL_SERVICE_NAME": ""}) == {"service.name": "a"}


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("K8S_POD_NAME", POD),
        ("POD_NAME", POD),
        ("K8S_NAMESPACE_NAME", "k8s.namespace.name"),
        ("POD_NAMESPACE", "k8s.namespace.name"),
        ("K8S_POD_UID", "k8s.pod.uid"),
        ("POD_UID", "k8s.pod.uid"),
        ("K8S_CONTAINER_NAME", "k8s.container.name"),
    ],
)
def test_names_of_the_downward_api_are_known(variable: str, key: str) -> None:
    """Manifests pass them under names that have become usual."""
    assert found({variable: "x"}) == {key: "x"}
    assert found({variable: ""}) == {}


def test_explicit_names_win() -> None:
    """OTEL_RESOURCE_ATTRIBUTES, then K8S_POD_NAME, then POD_NAME, then HOSTNAME."""
    variables = {ATTRIBUTES: f"{POD}=1", "K8S_POD_NAME": "2", "POD_NAME": "3", "HOSTNAME": "4"}
    for expected in ("1", "2", "3", "4"):
        assert found(variables, names_pod_by_host=True) == {POD: expected}
        del variables[next(iter(variables))]


def test_the_host_name_is_the_pods_only_where_that_is_so() -> None:
    """Outside of pods HOSTNAME is set by any shell."""
    assert found({"HOSTNAME": "node-1"}) == {}
    assert found({"HOSTNAME": "pod-1"}, names_pod_by_host=True) == {POD: "pod-1"}


@pytest.mark.parametrize("text", ["x" * 5_000, "é" * 5_000, "x" + "é" * 5_000, "\U0001f525" * 999])
def test_values_are_bounded_in_bytes(text: str) -> None:
    """1024 bytes of UTF-8, cut between characters."""
    value = found({"OTEL_SERVICE_NAME": text})["service.name"]
    assert 1021 <= len(value.encode()) <= 1024
    assert text.startswith(value)


def test_kubernetes_marks_its_containers() -> None:
    """Every container of a pod is told where the API server is."""
    assert has_pod_variables({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert not has_pod_variables({"KUBERNETES_SERVICE_HOST": ""})
    assert not has_pod_variables({})


def read(tmp_path: Path, data: bytes) -> dict[str, str]:
    """Variables of a process with this environment."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(data)
    return read_environment(7, tmp_path)


def test_of_equal_names_the_first_counts(tmp_path: Path) -> None:
    """As getenv finds them; an entry without `=` is none."""
    assert read(tmp_path, b"A=1\0A=2\0B\0C=\xff\0=x\0") == {"A": "1", "C": "\ufffd", "": "x"}


def test_a_process_without_environment_has_none(tmp_path: Path) -> None:
    """An empty file."""
    assert read(tmp_path, b"") == {}


def test_a_huge_environment_is_read_to_a_limit(tmp_path: Path) -> None:
    """1 MiB; the variable that the limit cuts is left out, for its value would be wrong."""
    variables = read(tmp_path, b"A=1\0B=" + b"x" * (2 << 20))
    assert variables == {"A": "1"}
