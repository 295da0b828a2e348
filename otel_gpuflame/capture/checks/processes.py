"""Whether other processes can be seen, told apart and read."""

from __future__ import annotations

from typing import Final

from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, fail, ok, warn
from otel_gpuflame.capture.describe.cgroup import parse_cgroup

_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO


def check_process_memory(host: Host) -> Check:
    """Python frames and names are read from other processes' memory, through /proc/PID/mem."""
    name = "process memory"
    try:
        host.read_memory_file()
    except OSError as error:
        scope = host.proc / "sys/kernel/yama/ptrace_scope"
        detail = error.strerror or str(error)
        if scope.is_file() and scope.read_text().strip() == "3":
            return fail(
                name,
                f"{detail}: kernel.yama.ptrace_scope=3 forbids it to everybody",
                "sysctl kernel.yama.ptrace_scope=1 in the boot configuration; 3 cannot be lowered",
            )
        return fail(name, detail, "run as root, or give CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH")
    return ok(name, "read from another process")


def check_pid_namespace(host: Host) -> Check:
    """BPF reports pids of the host: /proc must be the host's."""
    name = "pid namespace"
    try:
        namespace = str((host.proc / "self/ns/pid").readlink())
    except OSError as error:
        return fail(name, f"{error.filename}: {error.strerror}", "mount /proc")
    if namespace == _INITIAL_PID_NAMESPACE:
        return ok(name, "the host's")
    return fail(
        name,
        "not the host's: pids that BPF reports mean nothing here",
        "run the container with --pid=host (Kubernetes: hostPID: true)",
    )


def check_cgroups(host: Host) -> Check:
    """Containers and pods are recognised by the cgroup of a process."""
    name = "cgroups"
    try:
        text = (host.proc / "self/cgroup").read_text("utf-8", "replace")
    except OSError as error:
        return warn(
            name,
            f"{error.filename}: {error.strerror}; targets have no container.id and no k8s.pod.uid",
            "use a kernel with CONFIG_CGROUPS=y, and mount /proc",
        )
    versions = {2 if line.startswith("0::") else 1 for line in text.splitlines() if line}
    if not versions:
        return warn(
            name,
            "none: targets have no container.id and no k8s.pod.uid",
            "mount a cgroup file system, as systemd does",
        )
    own = parse_cgroup(text)
    where = f"; we run in container {own.container_id[:12]}" if own.container_id else ""
    return ok(name, f"version {' and '.join(map(str, sorted(versions)))}{where}")
