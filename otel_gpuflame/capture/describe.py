"""What a target is called: OpenTelemetry resource attributes from its own environment and command line."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final
from urllib.parse import unquote

Attributes = tuple[tuple[str, str | int], ...]

_MAX_VALUE: Final = 1024
# Everything else of OTEL_RESOURCE_ATTRIBUTES stays out: backends make a time series of each distinct set.
_FROM_ENVIRONMENT: Final = frozenset(
    {
        "service.name",
        "service.namespace",
        "service.version",
        "service.instance.id",
        "deployment.environment.name",
        "k8s.namespace.name",
        "k8s.pod.name",
        "k8s.pod.uid",
        "k8s.container.name",
        "container.id",
    }
)
_MAX_READ: Final = 1 << 20
_OPTION_WITH_VALUE: Final = re.compile(r"-(?!-)[^cmWX]*(?P<name>[cmWX])(?P<value>.*)", re.DOTALL)


def describe(pid: int, proc: Path = Path("/proc")) -> Attributes | None:
    """Resource attributes of a process, sorted by key; None if it is gone or unreadable."""
    directory = proc / str(pid)
    try:
        command = _split(directory / "cmdline")
        executable = os.readlink(directory / "exe").removesuffix(" (deleted)")
    except OSError:
        return None
    try:
        environment = dict(
            item.split("=", 1) for item in _split(directory / "environ") if "=" in item
        )
    except OSError:
        environment = {}
    attributes: dict[str, str | int] = {
        "host.name": socket.gethostname(),
        "process.pid": pid,
        "process.executable.name": os.path.basename(executable)[:_MAX_VALUE],
        "service.name": workload_name(command, executable),
        "telemetry.distro.name": "otel_gpuflame",
    }
    attributes.update(_from_environment(environment))
    return tuple(sorted(attributes.items()))


def workload_name(command: list[str], executable: str) -> str:
    """Script or module of an interpreter, else the executable; never a bare "python"."""
    name = os.path.basename(executable)
    if not name.startswith(("python", "pypy")):
        return name[:_MAX_VALUE]
    arguments = iter(command[1:])
    for argument in arguments:
        if argument == "-" or not argument.startswith("-"):
            return (os.path.basename(argument).strip("-") or "python script")[:_MAX_VALUE]
        if argument == "--check-hash-based-pycs":
            next(arguments, None)
        # Flags may be combined, and the first that takes a value takes the rest: -uc CODE, -ImMODULE.
        option = _OPTION_WITH_VALUE.match(argument)
        if option is None:
            continue
        if option["name"] == "c":
            return "python -c"
        value = option["value"] or next(arguments, "")
        if option["name"] == "m":
            return (value or "python -m")[:_MAX_VALUE]
    return "python interactive"


def _from_environment(environment: dict[str, str]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for item in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, value = item.partition("=")
        if separator and key.strip() in _FROM_ENVIRONMENT and value.strip():
            found[key.strip()] = unquote(value.strip())[:_MAX_VALUE]
    if environment.get("OTEL_SERVICE_NAME"):
        found["service.name"] = environment["OTEL_SERVICE_NAME"][:_MAX_VALUE]
    return found


def _split(path: Path) -> list[str]:
    with path.open("rb") as file:
        data = file.read(_MAX_READ)
    return (
        [item.decode("utf-8", "replace") for item in data.rstrip(b"\0").split(b"\0")]
        if data
        else []
    )
