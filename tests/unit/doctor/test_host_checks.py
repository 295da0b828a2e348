"""Each check of the host, content and not: what it answers, and the remedy that it names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from otel_gpuflame.capture.bpf.kernel import LoadReport
from otel_gpuflame.capture.checks import bpf, gpu, gpu_times, platform, processes, rights
from otel_gpuflame.capture.checks.host import Host
from otel_gpuflame.capture.checks.result import Check, Status
from otel_gpuflame.doctor.run import OF_HOST
from tests.unit.doctor.hosts import FILES, healthy, refused, unavailable

CheckFunction = Callable[[Host], Check]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A host that differs from the healthy one, and what the check says of it.

    `files`: content, None for a file that is not there. `says` and `remedy` are parts of the texts.
    """

    check: CheckFunction
    status: Status
    says: str
    remedy: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes | None] = field(default_factory=dict)
    namespace: str = ""

    @property
    def name(self) -> str:
        """For the list of tests."""
        return f"{self.check.__name__.removeprefix('check_')}: {self.says[:40]}"


def fails(check: CheckFunction, says: str, remedy: str, **difference: Any) -> Case:
    """Capture does not work on that host."""
    return Case(check=check, status=Status.FAIL, says=says, remedy=remedy, **difference)


def warns(check: CheckFunction, says: str, remedy: str, **difference: Any) -> Case:
    """Capture is reduced on that host."""
    return Case(check=check, status=Status.WARN, says=says, remedy=remedy, **difference)


def passes(check: CheckFunction, says: str, **difference: Any) -> Case:
    """A host that differs, and all the same is fine."""
    return Case(check=check, status=Status.OK, says=says, **difference)


def skips(check: CheckFunction, says: str, **difference: Any) -> Case:
    """The check does not apply to that host."""
    return Case(check=check, status=Status.SKIP, says=says, **difference)


def small_only(code: int) -> Callable[[int], None]:
    """Rings of less than 1 MiB can be created."""

    def create(size_bytes: int) -> None:
        if size_bytes >= 1 << 20:
            raise OSError(code, os.strerror(code))

    return create


BTF = "sys/kernel/btf/vmlinux"
CGROUP = "proc/self/cgroup"
PARAMS = "proc/driver/nvidia/params"
VERSION = "proc/driver/nvidia/version"
YAMA = "proc/sys/kernel/yama/ptrace_scope"

CASES = (
    fails(platform.check_kernel_version, "5.4.0", "5.15 or newer", changes={"release": "5.4.0-9"}),
    fails(platform.check_kernel_version, "odd", "5.15 or newer", changes={"release": "odd"}),
    warns(platform.check_kernel_version, "one by one", "6.6", changes={"release": "6.1.0-32"}),
    warns(platform.check_kernel_version, "one by one", "6.6", changes={"release": "5.15.0+"}),
    passes(platform.check_kernel_version, "6.6.1", changes={"release": "6.6.1"}),
    passes(platform.check_kernel_version, "10.0", changes={"release": "10.0"}),
    fails(platform.check_architecture, "aarch64", "x86-64", changes={"machine": "aarch64"}),
    fails(platform.check_btf, "No such file", "CONFIG_DEBUG_INFO_BTF", files={BTF: None}),
    fails(platform.check_btf, "no BTF", "CONFIG_DEBUG_INFO_BTF", files={BTF: b"\xeb\x9f"}),
    fails(
        platform.check_lockdown,
        *("must not read", "lockdown=integrity"),
        changes={"lockdown": lambda: "none integrity [confidentiality]\n"},
    ),
    warns(
        platform.check_lockdown, "cannot be read", "securityfs", changes={"lockdown": lambda: None}
    ),
    warns(
        gpu_times.check_injected_library,
        *("no GPU times: it is missing", "make native"),
        changes={"load_injected_library": unavailable("it is missing")},
    ),
    warns(
        gpu_times.check_injected_library,
        *("not permitted", "make native"),
        changes={"load_injected_library": refused()},
    ),
    passes(platform.check_lockdown, "has none", changes={"lockdown": lambda: ""}),
    passes(
        platform.check_lockdown,
        "none",
        changes={"lockdown": lambda: "[none] integrity confidentiality\n"},
    ),
    fails(
        bpf.check_libbpf,
        *("libbpf 1.0 or newer", "apt-get install libbpf1"),
        changes={"libbpf_version": unavailable("Install libbpf 1.0 or newer")},
    ),
    fails(
        bpf.check_native_parts,
        *("missing: capture.bpf.o", "make bpf native"),
        files={"parts/capture.bpf.o": None},
    ),
    fails(
        bpf.check_load, "refuses", "root", changes={"load_programs": unavailable("kernel refuses")}
    ),
    fails(bpf.check_load, "not permitted", "root", changes={"load_programs": refused()}),
    warns(
        bpf.check_load,
        *("on_fork: children are not followed", "troubleshooting"),
        changes={
            "load_programs": lambda: LoadReport(
                "v1", uprobe_multi=True, missing={"on_fork": "children are not followed"}
            )
        },
    ),
    fails(
        bpf.check_uprobes,
        *("22 of 23", "troubleshooting"),
        changes={"count_probed_calls": lambda calls: calls - 1},
    ),
    fails(
        bpf.check_uprobes,
        *("46 of 23", "troubleshooting"),
        changes={"count_probed_calls": lambda calls: 2 * calls},
    ),
    fails(
        bpf.check_uprobes,
        *("not permitted", "CONFIG_UPROBES"),
        changes={"count_probed_calls": refused()},
    ),
    warns(
        bpf.check_uprobe_multi,
        *("0.1 s a probe", "6.6"),
        changes={"load_programs": lambda: LoadReport("v1", uprobe_multi=False)},
    ),
    fails(bpf.check_uprobe_multi, "x", "root", changes={"load_programs": unavailable("x")}),
    warns(
        bpf.check_bcc,
        *("no BCC here", "apt-get install python3-bpfcc"),
        changes={"bcc": unavailable("no BCC here")},
        files={BTF: None},
    ),
    passes(bpf.check_bcc, "not needed", changes={"bcc": unavailable("no BCC here")}),
    warns(
        bpf.check_tracepoints,
        *("scanning once a second", "mount -t tracefs"),
        changes={"tracepoint_id": lambda _category, _name: None},
    ),
    warns(
        rights.check_perf_events,
        *("perf_event_paranoid=2", "CAP_PERFMON"),
        changes={"open_cpu_sampler": refused(errno.EACCES)},
    ),
    passes(
        rights.check_perf_events,
        "perf_event_paranoid=unknown",
        files={"proc/sys/kernel/perf_event_paranoid": None},
    ),
    fails(
        rights.check_cap_bpf,
        *("Operation not permitted", "give CAP_BPF"),
        changes={"create_privileged_map": refused()},
    ),
    fails(
        rights.check_cap_perfmon,
        *("tracing programs", "give CAP_PERFMON"),
        changes={"load_tracing_program": refused()},
    ),
    fails(
        rights.check_cap_sys_ptrace,
        *("no Python frames", "give CAP_SYS_PTRACE"),
        changes={"read_guarded_process": refused()},
    ),
    warns(
        rights.check_cap_dac_read_search,
        *("Permission denied", "give CAP_DAC_READ_SEARCH"),
        changes={"open_unreadable_file": refused(errno.EACCES)},
    ),
    warns(
        rights.check_cap_checkpoint_restore,
        *("replaced while in use", "give CAP_CHECKPOINT_RESTORE"),
        changes={"open_mapped_file": refused()},
    ),
    fails(
        rights.check_locked_memory,
        *("RLIMIT_MEMLOCK 64 KiB", "LimitMEMLOCK=infinity"),
        changes={"create_ring": small_only(errno.EPERM), "locked_memory_limit": lambda: 65_536},
    ),
    fails(
        rights.check_locked_memory,
        *("Cannot allocate memory", "memory limit of the container"),
        changes={"create_ring": small_only(errno.ENOMEM), "locked_memory_limit": lambda: None},
    ),
    skips(
        rights.check_locked_memory,
        "not permitted, whatever the size",
        changes={"create_ring": refused()},
    ),
    passes(rights.check_locked_memory, "unlimited", changes={"locked_memory_limit": lambda: None}),
    fails(
        processes.check_process_memory,
        *("not permitted", "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        changes={"read_memory_file": refused()},
    ),
    fails(
        processes.check_process_memory,
        *("forbids it to everybody", "kernel.yama.ptrace_scope=1"),
        changes={"read_memory_file": refused()},
        files={YAMA: b"3\n"},
    ),
    fails(
        processes.check_process_memory,
        *("not permitted", "CAP_SYS_PTRACE"),
        changes={"read_memory_file": refused()},
        files={YAMA: b"1\n"},
    ),
    fails(
        processes.check_pid_namespace,
        *("not the host's", "--pid=host"),
        namespace="pid:[4026532198]",
    ),
    fails(processes.check_pid_namespace, "No such file", "mount /proc", namespace="missing"),
    warns(processes.check_cgroups, "No such file", "CONFIG_CGROUPS", files={CGROUP: None}),
    warns(processes.check_cgroups, "none", "mount a cgroup", files={CGROUP: b""}),
    passes(processes.check_cgroups, "version 1 and 2", files={CGROUP: b"2:cpu:/\n0::/\n"}),
    passes(processes.check_cgroups, "version 1", files={CGROUP: b"2:cpu:/\n"}),
    passes(
        processes.check_cgroups,
        "we run in container aaaaaaaaaaaa",
        files={CGROUP: b"0::/docker/" + b"a" * 64},
    ),
    warns(
        gpu.check_gpu_libraries,
        *("neither libcuda.so.1", "install the GPU driver"),
        changes={"installed_libraries": lambda _environment: []},
    ),
    warns(
        gpu.check_gpu_libraries,
        *("neither libcuda.so.1", "install the GPU driver"),
        changes={"read_library": lambda _path: None},
    ),
    warns(gpu.check_nvidia_driver, "not loaded", "NVIDIA", files={VERSION: None}),
    passes(gpu.check_nvidia_driver, "unknown version", files={VERSION: b""}),
    warns(
        gpu.check_profiling_rights,
        *("CAP_SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0"),
        files={PARAMS: b"x: 1\nRmProfilingAdminOnly: 1\n"},
    ),
    warns(gpu.check_profiling_rights, "does not say", "418.43", files={PARAMS: b"x: 1\n"}),
    skips(gpu.check_profiling_rights, "no NVIDIA driver", files={PARAMS: None}),
    warns(
        gpu.check_mig,
        *("1 of 2 GPUs", "nvidia-smi -mig 0"),
        changes={"mig_modes": lambda: [False, True]},
    ),
    skips(gpu.check_mig, "no NVIDIA driver", changes={"mig_modes": lambda: None}),
)


def changed(root: Path, case: Case) -> Host:
    """The host of a case."""
    host = healthy(root, **case.changes)
    for name, content in case.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    if case.namespace:
        link = root / "proc/self/ns/pid"
        link.unlink()
        if case.namespace != "missing":
            os.symlink(case.namespace, link)
    return host


@pytest.mark.parametrize("check", OF_HOST, ids=lambda check: check.__name__)
def test_a_healthy_host_passes_every_check(check: CheckFunction, tmp_path: Path) -> None:
    """With a detail that says what was found, and nothing to do."""
    result = check(healthy(tmp_path))
    assert result.status is Status.OK, result
    assert result.detail
    assert result.remedy == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_a_host_lacks_is_said_with_the_remedy(case: Case, tmp_path: Path) -> None:
    """Each way in which a host can fall short, by its check."""
    result = case.check(changed(tmp_path, case))
    assert result.status is case.status
    assert case.says in result.detail
    assert case.remedy in result.remedy
    assert bool(result.remedy) is (case.status in (Status.WARN, Status.FAIL))


def test_every_check_is_forced_to_complain() -> None:
    """The table above leaves none out."""
    complaining = {case.check for case in CASES if case.status in (Status.WARN, Status.FAIL)}
    assert complaining == set(OF_HOST)
    assert set(FILES) >= {BTF, CGROUP, PARAMS, VERSION}
