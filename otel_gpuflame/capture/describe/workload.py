"""A name for the work of a process, from its command line: for processes that have no better one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.describe.attributes import bounded
from otel_gpuflame.capture.describe.launchers import launched
from otel_gpuflame.capture.describe.proc_files import executable_of, parent_of, read_strings

_INTERPRETERS: Final = ("python", "pypy")
_OPTION_WITH_VALUE: Final = re.compile(r"-(?!-)[^cmWX]*(?P<name>[cmWX])(?P<value>.*)", re.DOTALL)
# What a process calls itself once it has overwritten its command line (setproctitle).
_GUNICORN_TITLE: Final = re.compile(r"gunicorn: \w+ \[(.+)\]")
_RAY_TITLE: Final = re.compile(r"ray::(?P<actor>\w+)")
_MULTIPROCESSING: Final = "from multiprocessing."
_MAX_PARENTS: Final = 8


def workload_of(pid: int, proc: Path) -> str:
    """Name of a process's work. Raises OSError where the process is gone.

    A helper that Python's multiprocessing has started works for its parent, and is called as that.
    """
    for _ in range(_MAX_PARENTS):
        command = read_strings(proc / str(pid) / "cmdline")
        executable = executable_of(pid, proc)
        if not _is_multiprocessing(command, executable):
            break
        parent = parent_of(pid, proc)
        if not parent or not _is_python(_executable_or_none(parent, proc)):
            break
        pid = parent
    return workload_name(command, executable)


def workload_name(command: list[str], executable: str) -> str:
    """Script or module of an interpreter, what a launcher launches, else the executable; never a bare "python"."""
    name = os.path.basename(executable)
    if not _is_python(executable):
        return bounded(launched(name, command[1:]) or name)
    return bounded(_title(command) or _python_name(command))


def _python_name(command: Sequence[str]) -> str:
    position = 1
    while position < len(command):
        argument = command[position]
        position += 1
        if argument == "-" or not argument.startswith("-"):
            return launched(argument, command[position:]) or _script_name(argument)
        if argument == "--check-hash-based-pycs":
            position += 1
        # Flags may be combined, and the first that takes a value takes the rest: -uc CODE, -ImMODULE.
        option = _OPTION_WITH_VALUE.match(argument)
        if option is None:
            continue
        if option["name"] == "c":
            return "python -c"
        value = option["value"]
        if not value:
            value = command[position] if position < len(command) else ""
            position += 1
        if option["name"] == "m":
            return launched(value, command[position:]) or value or "python -m"
    return "python interactive"


def _script_name(path: str) -> str:
    """File name; of a package that is run by its path, the package."""
    directory, _, name = path.rstrip("/").rpartition("/")
    if name == "__main__.py" and os.path.basename(directory):
        name = os.path.basename(directory)
    return name if name.strip("-.") else "python script"


def _title(command: Sequence[str]) -> str:
    """The name in a title that the process has given itself; empty where it has a command line."""
    if len(command) != 1 or _is_python(command[0]):
        return ""
    title = command[0]
    gunicorn = _GUNICORN_TITLE.match(title)
    if gunicorn is not None:
        return gunicorn[1]
    ray = _RAY_TITLE.match(title)
    if ray is not None:
        # Idle workers have not said yet what they will do.
        return "ray worker" if ray["actor"] == "IDLE" else f"ray::{ray['actor']}"
    return title.split()[0].strip("[]:") if ":" in title and title.split() else ""


def _is_python(executable: str) -> bool:
    return os.path.basename(executable).startswith(_INTERPRETERS)


def _is_multiprocessing(command: Sequence[str], executable: str) -> bool:
    return _is_python(executable) and any(
        item.startswith(_MULTIPROCESSING) or item == "--multiprocessing-fork"
        for item in command[1:]
    )


def _executable_or_none(pid: int, proc: Path) -> str:
    try:
        return executable_of(pid, proc)
    except OSError:
        return ""
