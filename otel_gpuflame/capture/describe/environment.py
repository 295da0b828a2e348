"""What the environment that a process was started with says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from otel_gpuflame.capture.describe.attributes import published
from otel_gpuflame.capture.describe.proc_files import read_strings

# Kubernetes' downward API leaves the names of variables to the author of the manifest; these are usual.
_DOWNWARD: Final = {
    "k8s.pod.name": ("K8S_POD_NAME", "POD_NAME"),
    "k8s.namespace.name": ("K8S_NAMESPACE_NAME", "POD_NAMESPACE"),
    "k8s.pod.uid": ("K8S_POD_UID", "POD_UID"),
    "k8s.container.name": ("K8S_CONTAINER_NAME",),
}


def read_environment(pid: int, proc: Path) -> dict[str, str]:
    """Variables at exec, the first of equal names as in getenv. Raises OSError where it must not be read."""
    variables: dict[str, str] = {}
    for item in read_strings(proc / str(pid) / "environ"):
        name, separator, value = item.partition("=")
        if separator:
            variables.setdefault(name, value)
    return variables


def has_pod_variables(variables: Mapping[str, str]) -> bool:
    """Whether Kubernetes started the process: it tells every container where its API server is."""
    return bool(variables.get("KUBERNETES_SERVICE_HOST"))


def from_environment(variables: Mapping[str, str], *, names_pod_by_host: bool) -> dict[str, str]:
    """Resource attributes by key: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, then the downward API.

    `names_pod_by_host`: HOSTNAME is the name of the pod.
    """
    found = {
        key: value
        for key, names in _DOWNWARD.items()
        if (value := next((variables[name] for name in names if variables.get(name)), ""))
    }
    if names_pod_by_host and variables.get("HOSTNAME"):
        found.setdefault("k8s.pod.name", variables["HOSTNAME"])
    found.update(_resource_attributes(variables.get("OTEL_RESOURCE_ATTRIBUTES", "")))
    if variables.get("OTEL_SERVICE_NAME"):
        found["service.name"] = variables["OTEL_SERVICE_NAME"]
    return published(found)


def _resource_attributes(text: str) -> Iterator[tuple[str, str]]:
    """`key=value` pairs, separated by commas, percent-encoded. Pairs that are not understood are left out."""
    for item in text.split(","):
        key, separator, value = item.partition("=")
        try:
            pair = unquote(key.strip(), errors="strict"), unquote(value.strip(), errors="strict")
        except UnicodeDecodeError:
            continue
        if separator and pair[1]:
            yield pair
