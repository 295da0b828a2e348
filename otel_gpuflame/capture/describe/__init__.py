"""What a target is called: OpenTelemetry resource attributes from what it says of itself and what the kernel knows.

Everything is read through /proc/PID, whatever namespaces the target lives in. Of the sources of an attribute wins, in
this order: the process context that the process publishes, its environment, and what is derived from cgroup and command
line. Container and pod id are the kernel's where it knows them: other telemetry is joined on them.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.describe.attributes import Attributes, bounded
from otel_gpuflame.capture.describe.cgroup import Cgroup, read_cgroup
from otel_gpuflame.capture.describe.environment import (
    from_environment,
    has_pod_variables,
    read_environment,
)
from otel_gpuflame.capture.describe.proc_files import executable_of
from otel_gpuflame.capture.describe.process_context import (
    read_local_root_key,
    read_process_context,
)
from otel_gpuflame.capture.describe.workload import workload_name, workload_of

__all__ = [
    "Attributes",
    "describe",
    "publishes_itself",
    "read_local_root_key",
    "workload_name",
]

_UNNAMED_SERVICE: Final = "unknown_service"
"""What OpenTelemetry's SDKs call a service that nobody named, with `:python` behind it: we know better."""
_HOST_UTS_NAMESPACE: Final = "uts:[4026531838]"  # PROC_UTS_INIT_INO
# Names that controllers of Kubernetes make: a template's hash, a number, five letters. They use no vowels, 0, 1 or 3.
_GENERATED: Final = "[bcdfghjklmnpqrstvwxz2456789]"
_REPLICA: Final = re.compile(rf"(?:-(?:{_GENERATED}{{8,10}}|[0-9]+))?-{_GENERATED}{{5}}$|-[0-9]+$")


def describe(pid: int, proc: Path = Path("/proc")) -> Attributes | None:
    """Resource attributes of a process, sorted by key; None if it is gone or unreadable.

    `pid`, and `process.pid` among the attributes, are those of the pid namespace of `proc`: the host's, not the number
    that a process in a container sees.
    """
    try:
        executable = executable_of(pid, proc)
        workload = workload_of(pid, proc)
    except OSError:
        return None
    cgroup = _cgroup(pid, proc)
    attributes = _own(pid, proc, cgroup)
    try:
        # Of a process that has just given up its memory the environment reads as empty: that is no description.
        executable_of(pid, proc)
    except OSError:
        return None
    if not attributes.get("service.name"):
        pod = workload_of_pod(attributes.get("k8s.pod.name", ""))
        attributes["service.name"] = bounded(pod or cgroup.unit) or workload
    facts = {"container.id": cgroup.container_id, "k8s.pod.uid": cgroup.pod_uid}
    attributes.update((key, value) for key, value in facts.items() if value)
    known: dict[str, str | int] = {
        **attributes,
        "host.name": host_name(),
        "process.pid": pid,
        "process.executable.name": bounded(os.path.basename(executable)),
        "telemetry.distro.name": "otel_gpuflame",
    }
    return tuple(sorted(known.items()))


def publishes_itself(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a process context. Forked children do not inherit their parent's."""
    return bool(read_process_context(pid, proc))


def workload_of_pod(pod: str) -> str:
    """Name of the Deployment, StatefulSet, Job or DaemonSet that made a pod: `web-7d9f8b6c5d-x2x7k` is of `web`.

    Without it each restart would be a service of its own. A pod that nothing made keeps its name.
    """
    return _REPLICA.sub("", pod) or pod


def host_name() -> str:
    """The node's name, where the exporter's own manifest tells it in K8S_NODE_NAME; else that of this host."""
    return bounded(os.environ.get("K8S_NODE_NAME", "")) or socket.gethostname()


def _cgroup(pid: int, proc: Path) -> Cgroup:
    try:
        return read_cgroup(pid, proc)
    except OSError:
        return Cgroup()


def _own(pid: int, proc: Path, cgroup: Cgroup) -> dict[str, str]:
    """What the process says of itself."""
    try:
        variables = read_environment(pid, proc)
    except OSError:
        variables = {}
    in_pod = cgroup.in_pod or has_pod_variables(variables)
    names_pod = in_pod and _has_own_host_name(pid, proc)
    found = from_environment(variables, names_pod_by_host=names_pod)
    published = read_process_context(pid, proc)
    if published.get("service.name", "").startswith(_UNNAMED_SERVICE):
        del published["service.name"]
    return found | published


def _has_own_host_name(pid: int, proc: Path) -> bool:
    """False in pods that use the host's network: their HOSTNAME is the node's."""
    try:
        return os.readlink(proc / str(pid) / "ns" / "uts") != _HOST_UTS_NAMESPACE
    except OSError:
        return False
