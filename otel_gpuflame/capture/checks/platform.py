"""The operating system's kernel: what it is, and what it says of itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, fail, ok, warn

_FLOOR: Final = (5, 15)
_FULL: Final = (6, 6)
BTF: Final = Path("kernel/btf/vmlinux")
_BTF_MAGIC: Final = b"\x9f\xeb"
_LOCKDOWN_MODE: Final = re.compile(r"\[(\w+)\]")


def check_kernel_version(host: Host) -> Check:
    """5.15 is the floor, 6.6 brings uprobe_multi."""
    name = "kernel"
    match = re.match(r"(\d+)\.(\d+)", host.release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < _FLOOR:
        return fail(name, host.release, "use Linux 5.15 or newer")
    if version < _FULL:
        return warn(
            name, f"{host.release}: probes detach one by one", "Linux 6.6 detaches them at once"
        )
    return ok(name, host.release)


def check_architecture(host: Host) -> Check:
    """What was run, and what was only compiled."""
    if host.machine == "x86_64":
        return ok("architecture", host.machine)
    return fail("architecture", host.machine, "only x86-64 is supported so far")


def check_btf(host: Host) -> Check:
    """CO-RE needs the kernel's own type information."""
    path = host.sys / BTF
    remedy = (
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y, and mount sysfs; or record with --loader bcc"
    )
    try:
        with path.open("rb") as file:
            magic = file.read(2)
    except OSError as error:
        return fail("kernel BTF", f"{path}: {error.strerror}", remedy)
    if magic != _BTF_MAGIC:
        return fail("kernel BTF", f"{path} is no BTF of this byte order", remedy)
    return ok("kernel BTF", str(path))


def check_lockdown(host: Host) -> Check:
    """Confidentiality mode forbids BPF to read the kernel's memory; integrity mode does not."""
    name = "lockdown"
    text = host.lockdown()
    if text is None:
        return warn(
            name,
            "cannot be read, so nobody knows",
            "mount -t securityfs securityfs /sys/kernel/security, or run as root",
        )
    mode = _LOCKDOWN_MODE.search(text)
    if mode is None:
        return ok(name, "the kernel has none")
    if mode[1] == "confidentiality":
        return fail(
            name,
            "confidentiality: BPF programs must not read the kernel's memory",
            "boot with lockdown=integrity or without lockdown",
        )
    return ok(name, mode[1])
