"""What the cgroup of a process tells: its container, its pod, its systemd service.

Paths are those that the reader's cgroup namespace shows: an exporter in a container sees `/../../NAME` instead of a
path from the root. So each component of a path is recognised by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.describe.proc_files import read_bytes

_MAX_BYTES: Final = 1 << 16

# docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, libpod-payload-ID, nerdctl-ID.scope, or the
# id alone where the runtime's driver is cgroupfs. Amazon ECS numbers the containers of a task.
_CONTAINER: Final = re.compile(
    r"(?P<runtime>(?:[a-z][a-z0-9]*-)*)(?P<id>[0-9a-f]{64}|[0-9a-f]{32}-[0-9]{1,10})(?:\.scope)?"
)
# podUID, or kubepods-burstable-podUID.slice where dashes have become underscores. Static pods have a hash of 32 digits.
_POD: Final = re.compile(
    r"(?:[a-z]+-)*pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_UNIT: Final = re.compile(r"(?P<name>.+)\.(?P<type>service|scope)")
_ESCAPED: Final = re.compile(r"\\x([0-9a-f]{2})")
# Services that run what others ask them to: their name says nothing about the work.
_HOSTS_OF_OTHERS: Final = frozenset(
    {
        *("docker", "containerd", "crio", "podman", "kubelet", "k3s", "k3s-agent", "rke2-server"),
        *("rke2-agent", "ssh", "sshd", "cron", "crond", "atd", "slurmd", "supervisor"),
        *("supervisord", "gnome-terminal-server", "rc-local"),
    }
)
# Templates of the same kind, and transient services whose generated name changes at each start.
_HOSTS_OF_OTHERS_PREFIXES: Final = ("user@", "sshd@", "ssh@", "getty@", "serial-getty@", "run-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """What was recognised; empty where nothing was."""

    container_id: str = ""
    pod_uid: str = ""
    unit: str = ""
    """Name of the systemd service that the process is the work of, without `.service`."""
    in_pod: bool = False


def read_cgroup(pid: int, proc: Path) -> Cgroup:
    """The cgroup of a process. Raises OSError where it is gone."""
    return parse_cgroup(
        read_bytes(proc / str(pid) / "cgroup", _MAX_BYTES).decode("utf-8", "replace")
    )


def parse_cgroup(text: str) -> Cgroup:
    """Reads the text of /proc/PID/cgroup, of version 1, 2 or both: of each fact the first that a line tells."""
    paths = [_components(path) for path in _paths(text)]
    return Cgroup(
        container_id=_first(_container_id(path) for path in paths),
        pod_uid=_first(_pod_uid(path) for path in paths),
        unit=_first(_unit(path) for path in paths),
        in_pod=any(_is_in_pod(path) for path in paths),
    )


def _paths(text: str) -> list[str]:
    """Version 2 first, then systemd's own hierarchy, then the controllers of version 1 in their order."""
    lines = [fields for line in text.splitlines() if len(fields := line.split(":", 2)) == 3]
    lines.sort(key=lambda fields: {"": 0, "name=systemd": 1}.get(fields[1], 2))
    return [path.removesuffix(" (deleted)") for _, _, path in lines]


def _components(path: str) -> list[str]:
    """Innermost first. A containerd with the wrong driver writes SLICE:cri-containerd:ID as one component."""
    return [part for part in re.split("[/:]", path) if part][::-1]


def _container_id(components: Iterable[str]) -> str:
    for component in components:
        match = _CONTAINER.fullmatch(component)
        # Podman's and CRI-O's monitor of a container runs outside of it.
        if match is not None and "conmon" not in match["runtime"]:
            return match["id"]
    return ""


def _pod_uid(components: Iterable[str]) -> str:
    for component in components:
        match = _POD.fullmatch(component)
        if match is not None:
            return match["uid"].replace("_", "-")
    return ""


def _is_in_pod(components: Iterable[str]) -> bool:
    return any("kubepods" in component or _POD.fullmatch(component) for component in components)


def _unit(components: Iterable[str]) -> str:
    """The innermost unit, if it is a service: a scope holds a session or a container."""
    for component in components:
        match = _UNIT.fullmatch(component)
        if match is None:
            continue
        name = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), match["name"])
        is_host = name in _HOSTS_OF_OTHERS or name.startswith(_HOSTS_OF_OTHERS_PREFIXES)
        return name if match["type"] == "service" and not is_host else ""
    return ""


def _first(values: Iterable[str]) -> str:
    return next((value for value in values if value), "")
