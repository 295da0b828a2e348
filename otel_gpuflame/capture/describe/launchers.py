"""Programs that run another one: what is behind `torchrun`, `uvicorn` and the like on a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# `package.module:application`, and not `127.0.0.1:8000`, `localhost:8000` or `unix:/run/socket`.
_APPLICATION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(?:\(.*\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How to find the launched program among the arguments.

    `flags` are the options that take no value; of others the next argument is the value, unless it looks like what is
    searched for. `subcommand` has to come first. `takes_application`: a Python object instead of a script.
    """

    flags: frozenset[str] = frozenset()
    subcommand: str = ""
    takes_application: bool = False


_TORCHRUN: Final = Launcher(
    flags=frozenset({"--standalone", "--no-python", "--no_python", "--run-path", "--run_path"})
    | {"--use-env", "--use_env"}
)
_ACCELERATE: Final = Launcher(
    flags=frozenset({"--cpu", "--tpu", "--debug", "-q", "--quiet", "--no_python", "--no-python"})
    | {f"--{word}multi{dash}gpu" for word in ("", "no_") for dash in "-_"}
    | {f"--use{dash}{engine}" for dash in "-_" for engine in ("deepspeed", "fsdp", "megatron_lm")},
    subcommand="launch",
)
_DEEPSPEED: Final = Launcher(
    flags=frozenset({"--no_python", "--no_local_rank", "--force_multi", "--enable_each_rank_log"})
    | {"--bind_cores_to_rank", "--save_pid", "--no_ssh", "--no_ssh_check"}
)
_UVICORN: Final = Launcher(
    flags=frozenset(
        {"--reload", "--factory", "--proxy-headers", "--no-proxy-headers", "--no-access-log"}
    )
    | {"--access-log", "--use-colors", "--no-use-colors", "--server-header", "--date-header"},
    takes_application=True,
)
_GUNICORN: Final = Launcher(
    flags=frozenset({"--preload", "--reload", "-D", "--daemon", "--check-config", "-R"})
    | {"--enable-stdio-inheritance", "--capture-output", "--no-sendfile", "--proxy-protocol"},
    takes_application=True,
)
_HYPERCORN: Final = Launcher(
    flags=frozenset({"--reload", "--debug", "--no-reload"}), takes_application=True
)

# By file name, and by the module that `python -m` runs.
_LAUNCHERS: Final = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    "accelerate-launch": Launcher(flags=_ACCELERATE.flags),
    "accelerate.commands.launch": Launcher(flags=_ACCELERATE.flags),
    "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
    "deepspeed.launcher.launch": _DEEPSPEED,
    "uvicorn": _UVICORN,
    "gunicorn": _GUNICORN,
    "hypercorn": _HYPERCORN,
}
_RAY_WORKER: Final = ("ray", "default_worker.py")


def launched(program: str, arguments: Sequence[str]) -> str:
    """Script, module or application that `program` runs; empty if it is no launcher or names nothing.

    `program` is the path of a script, or a module.
    """
    if os.path.basename(program) == _RAY_WORKER[1] and _RAY_WORKER[0] in program.split("/"):
        return "ray worker"
    if os.path.basename(program) == "ray":
        return _entry_point(arguments)
    launcher = _LAUNCHERS.get(os.path.basename(program))
    return "" if launcher is None else _find(launcher, list(arguments))


def _entry_point(arguments: Sequence[str]) -> str:
    """`ray job submit [options] -- python train.py`."""
    rest = list(arguments[arguments.index("--") + 1 :]) if "--" in arguments else []
    return next((os.path.basename(item) for item in rest if item.endswith(".py")), "")


def _find(launcher: Launcher, arguments: list[str]) -> str:
    if launcher.subcommand:
        if launcher.subcommand not in arguments:
            return ""
        del arguments[: arguments.index(launcher.subcommand) + 1]
    while arguments:
        argument = arguments.pop(0)
        if argument == "--":
            return _named(launcher, arguments[0]) if arguments else ""
        if not argument.startswith("-"):
            return _named(launcher, argument)
        if argument in ("-m", "--module") and not launcher.takes_application:
            continue
        has_value = "=" not in argument and argument not in launcher.flags
        if has_value and arguments and not _is_searched_for(launcher, arguments[0]):
            del arguments[0]
    return ""


def _is_searched_for(launcher: Launcher, argument: str) -> bool:
    """Whether what follows an option can only be the launched program, or the next option."""
    if launcher.takes_application:
        return argument.startswith("-") or _APPLICATION.fullmatch(argument) is not None
    return argument.startswith("-") or argument.endswith(".py")


def _named(launcher: Launcher, argument: str) -> str:
    return argument if launcher.takes_application else os.path.basename(argument)
