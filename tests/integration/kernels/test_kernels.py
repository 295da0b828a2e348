# SPDX-License-Identifier: Apache-2.0
"""The product under other kernels than this host's: Debian's, in QEMU. docs/kernels.md has the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from otel_gpuflame.capture.bpf.bcc_module import HEADERS_VARIABLE, find_bcc
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.integration.bpf.recording import Recording, total
from tests.integration.kernels.conftest import bootable
from tests.integration.kernels.debian import (
    DEBIAN_11,
    DEBIAN_12,
    DEBIAN_12_NEWEST,
    DebianKernel,
    kernel_headers,
)
from tests.integration.kernels.guest import Contents, Job, JobResult, run_guest
from tests.integration.kernels.guest_tree import APP, HEADERS, python
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.kernels, pytest.mark.timeout(2_700)]

COUNT: Final = 23
KERNEL_MS: Final = 20
_PROGRAMS: Final = Path(__file__).parent / "programs"

_LOAD: Final = Job(
    name="load",
    argv=[python(), "/programs/load_objects.py", f"{APP}/otel_gpuflame/_artifacts"],
)
_DOCTOR: Final = Job(name="doctor", argv=[python(), "-m", "otel_gpuflame", "doctor", "--json"])


def _record_job(loader: str) -> Job:
    file = f"/tmp/{loader}.ogfcap"
    program = [python(), f"{APP}/tests/fakes/app_wait.py", str(KERNEL_MS), str(COUNT), "--hold"]
    return Job(
        name=loader,
        argv=[python(), "/programs/record_in_step.py", file, loader, *program],
        files=[file],
        environment={HEADERS_VARIABLE: str(HEADERS)},
    )


_RECORD: Final = _record_job("libbpf")
_RECORD_BCC: Final = _record_job("bcc")
_FOLLOW: Final = Job(
    name="follow",
    argv=[
        python(),
        "/programs/follow.py",
        "/tmp/follow.ogfcap",
        python(),
        "/programs/late_work.py",
    ],
    files=["/tmp/follow.ogfcap"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a guest with one kernel has done."""

    kernel: DebianKernel
    results: Mapping[str, JobResult]
    folder: Path

    def json(self, job: str) -> Any:
        """A job's standard output."""
        result = self.results[job]
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def checks(self) -> dict[str, dict[str, str]]:
        """The doctor's answers by name, whether or not all is well."""
        return {
            check["name"]: check for check in json.loads(self.results["doctor"].stdout)["checks"]
        }

    def recording(self, job: Job) -> Recording:
        """The capture file that a job left."""
        result = self.results[job.name]
        assert result.exit_code == 0, result.stderr
        (content,) = result.files.values()
        path = self.folder / f"{job.name}.ogfcap"
        path.write_bytes(content)
        return Recording(path, result.exit_code, result.stdout, result.stderr)


def _contents(fakes: Path, bcc: tuple[Path, Path] | None = None) -> Contents:
    programs = {path.name: path.read_bytes() for path in _PROGRAMS.glob("*.py")}
    return Contents(fakes=fakes, programs=programs, bcc=bcc)


def _bcc() -> tuple[Path, Path]:
    """The same headers under every kernel: they need not be its own."""
    package = find_bcc()
    if package is None:
        require("kernels", False, "BCC is missing: apt-get install python3-bpfcc")
        raise AssertionError
    return package, kernel_headers(DEBIAN_12)


@pytest.fixture(
    scope="module", params=[DEBIAN_12, DEBIAN_12_NEWEST], ids=["linux-6.1", "linux-6.12"]
)
def run(
    request: pytest.FixtureRequest, fakes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Everything under a supported kernel, booted once."""
    kernel: DebianKernel = request.param
    jobs = (_LOAD, _DOCTOR, _RECORD, _RECORD_BCC, _FOLLOW)
    results = run_guest(bootable(kernel), _contents(fakes, _bcc()), jobs)
    return Run(kernel=kernel, results=results, folder=tmp_path_factory.mktemp("guest"))


@pytest.fixture(scope="module")
def too_old(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A kernel below the floor."""
    results = run_guest(bootable(DEBIAN_11), _contents(fakes), (_DOCTOR, _RECORD))
    return Run(kernel=DEBIAN_11, results=results, folder=tmp_path_factory.mktemp("guest"))


def test_every_program_of_every_object_loads(run: Run) -> None:
    """The kernel's verifier takes each program, and the guest runs the kernel that it should."""
    report = run.json("load")
    assert report["kernel"].startswith(f"{run.kernel.series}.")
    assert "on_call" in report["programs"]["capture.bpf.o"]
    assert report["refused"] == {name: {} for name in report["programs"]}


def test_doctor_says_that_capture_works(run: Run) -> None:
    """No check fails, and calls of a probed function arrive."""
    assert run.results["doctor"].exit_code == 0, run.results["doctor"].stdout
    checks = run.checks()
    assert checks["uprobes deliver"]["status"] == "ok"
    assert [name for name, check in checks.items() if check["status"] == "fail"] == []


def test_doctor_names_the_reduction_of_kernels_before_6_6(run: Run) -> None:
    """Without uprobe_multi two checks warn, with it none does."""
    before = run.kernel is DEBIAN_12
    checks = run.checks()
    assert checks["uprobe_multi"]["status"] == ("warn" if before else "ok")
    assert checks["kernel"]["status"] == ("warn" if before else "ok")


def test_all_calls_are_recorded(run: Run) -> None:
    """23 launches and 23 waits of the driver's double: each one is there, and the books are exact."""
    recording = run.recording(_RECORD)
    capture = recording.capture
    assert len(capture.kind(Kind.LAUNCH)) == capture.count("launch", "seen") == COUNT
    assert len(capture.kind(Kind.WAIT)) == capture.count("wait", "seen") == COUNT
    assert capture.pending() == {}
    assert total(recording.samples(GPU_LAUNCH)) == COUNT


def test_waits_have_their_length(run: Run) -> None:
    """Each recorded wait lies inside what the program itself measured around it."""
    recording = run.recording(_RECORD)
    waits = recording.capture.kind(Kind.WAIT)
    recorded = (waits["end_ns"] - waits["start_ns"]).tolist()
    measured = recording.truth["duration_ns"]
    assert all(0 < inner <= outer for inner, outer in zip(recorded, measured, strict=True))
    assert total(recording.samples(GPU_WAIT)) == sum(recorded)


def test_waits_have_their_python_line(run: Run) -> None:
    """Every wait is under the line that waited, below a kernel whose name was learned."""
    recording = run.recording(_RECORD)
    line = (recording.truth["function"], recording.truth["line"])
    waits = recording.samples(GPU_WAIT)
    assert waits
    assert [sample.frames for sample in waits if line not in sample.python()] == []
    launched = {sample.frames[-1].name for sample in recording.samples(GPU_LAUNCH)}
    assert launched == {"saxpy"}


def test_bcc_records_the_same_calls(run: Run) -> None:
    """Compiled in the guest, with headers of 6.1: every launch and wait, with lengths and the GPU kernel's name."""
    recording = run.recording(_RECORD_BCC)
    capture = recording.capture
    assert len(capture.kind(Kind.LAUNCH)) == capture.count("launch", "seen") == COUNT
    waits = capture.kind(Kind.WAIT)
    recorded = (waits["end_ns"] - waits["start_ns"]).tolist()
    measured = recording.truth["duration_ns"]
    assert all(0 < inner <= outer for inner, outer in zip(recorded, measured, strict=True))
    assert capture.pending() == {}
    launched = {sample.frames[-1].name for sample in recording.samples(GPU_LAUNCH)}
    assert launched == {"saxpy"}


def test_nothing_is_left_out(run: Run) -> None:
    """The kernel takes and attaches every optional program, and its way to attach uprobes is the expected one."""
    report = run.json("follow")
    assert report["missing"] == {}
    assert report["uprobe_multi"] == (run.kernel is not DEBIAN_12)


def test_a_library_that_is_mapped_later_is_probed(run: Run) -> None:
    """The mmap tracepoints tell of it: every launch after it was probed is there."""
    truth = run.json("follow")["target"][-1]
    launches = run.recording(_FOLLOW).capture.kind(Kind.LAUNCH)
    assert (launches["tgid"] == truth["pid"]).sum() == COUNT


def test_a_forked_child_is_followed(run: Run) -> None:
    """Its launches are its own, and every launch is in the books."""
    child = run.json("follow")["target"][-1]["child"]
    capture = run.recording(_FOLLOW).capture
    launches = capture.kind(Kind.LAUNCH)
    assert (launches["tgid"] == child["pid"]).sum() == child["launches"] > 0
    assert capture.count("launch", "seen") == len(launches) == COUNT + child["launches"]


def test_launches_have_their_span(run: Run) -> None:
    """Every launch has the trace and span that were active in its thread."""
    truth = run.json("follow")["target"][-1]
    rows = run.recording(_FOLLOW).capture.kind(Kind.LAUNCH)
    rows = rows[rows["tgid"] == truth["pid"]]
    spans = {(bytes(row["trace_id"]).hex(), bytes(row["span_id"]).hex()) for row in rows}
    assert spans == {(truth["trace_id"], truth["span_id"])}


def test_system_calls_on_devices_arrive(run: Run) -> None:
    """Each ioctl of the program is there, with its command."""
    rows = run.recording(_FOLLOW).capture.kind(Kind.DRIVER)
    assert (rows["object"] == 0x4601).sum() == COUNT


def test_samples_and_pauses_arrive(run: Run) -> None:
    """The burst on the CPU has samples, and each pause of the program has an off-CPU stack."""
    capture = run.recording(_FOLLOW).capture
    assert len(capture.kind(Kind.CPU_SAMPLE)) > 0
    assert len(capture.kind(Kind.OFF_CPU)) >= COUNT


def test_a_kernel_below_the_floor_is_refused_by_name(too_old: Run) -> None:
    """Linux 5.10: doctor fails the check of the version, record says what is needed and ends with an error."""
    assert too_old.results["doctor"].exit_code == 1
    check = too_old.checks()["kernel"]
    assert check["status"] == "fail"
    assert "5.15" in check["remedy"]
    recorded = too_old.results[_RECORD.name]
    assert recorded.exit_code == 3
    assert "Kernel 5.15 or newer" in recorded.stderr
    assert "Traceback" not in recorded.stderr
