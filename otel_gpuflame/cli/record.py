"""`otel-gpuflame record`."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from otel_gpuflame import __version__
from otel_gpuflame.capture.bpf.backend import Loader
from otel_gpuflame.capture.describe.proc_files import read_strings
from otel_gpuflame.cli import flags
from otel_gpuflame.cli.device_table import print_devices, print_faults
from otel_gpuflame.cli.tables import human, print_ledger, print_summary, say
from otel_gpuflame.cli.usage import excludes, needs
from otel_gpuflame.pipeline import RecordOptions, RecordResult
from otel_gpuflame.pipeline import record as run_record
from otel_gpuflame.profile.ledger import CALL_KINDS


class _StopRequest:
    """Ctrl-C: the recorded command gets it too, so wait for it to end; the second one ends the recording."""

    def __init__(self, *, has_command: bool) -> None:
        self._needed = 2 if has_command else 1
        self._count = 0
        _handle(signal.SIGINT, self._on_signal)
        _handle(signal.SIGTERM, self._on_terminate)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._count = self._needed

    def __call__(self) -> bool:
        return self._count >= self._needed


def _handle(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
    """What is ignored stays so, for the command too: nohup, and jobs in the background."""
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  otel-gpuflame record -- python train.py
  otel-gpuflame record -o train.ogfcap --duration 30 -- torchrun --nproc-per-node 8 train.py
  otel-gpuflame record -o serve.ogfcap --pid 4242 --duration 10""",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Capture file to write."
)
@click.option(
    "-p", "--pid", type=click.IntRange(1), help="Record this process and its descendants."
)
@click.option(
    "-d",
    "--duration",
    "duration_s",
    type=click.FloatRange(0, min_open=True),
    help="Stop after this many seconds; the command runs on.",
)
@click.option(
    "--library",
    "libraries",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Also probe this GPU driver library from the start. May be repeated.",
)
@click.option(
    "--unwind/--no-unwind",
    default=True,
    show_default=True,
    help="Whole native stacks of code without frame pointers, by unwind tables.",
)
@click.option(
    "--cpu/--no-cpu",
    default=True,
    show_default=True,
    help="Also 99 on-CPU samples a second, and stacks of threads that are off the CPU for 1 ms and more.",
)
@click.option(
    "--driver/--no-driver",
    default=True,
    show_default=True,
    help="Also time in ioctl, poll and mmap on GPU devices.",
)
@click.option(
    "--gpu/--no-gpu",
    default=True,
    show_default=True,
    help="Also when the GPU executed what it was given (CUDA, OpenCL): a command is started with our library in it, "
    "see `otel-gpuflame env`; of a running process only if it was started so. And the counters of NVIDIA devices.",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Take this device for a GPU too, and all with its major number. May be repeated.",
)
@click.option(
    "--loader",
    type=click.Choice([loader.value for loader in Loader]),
    default=Loader.LIBBPF.value,
    show_default=True,
    help="Who loads the BPF programs; bcc is for kernels without BTF, and knows no Python frames and no spans.",
)
@flags.rows(10)
@click.option("-q", "--quiet", is_flag=True, help="No tables at the end.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(
    *,
    output: Path | None,
    pid: int | None,
    duration_s: float | None,
    libraries: tuple[Path, ...],
    unwind: bool,
    cpu: bool,
    driver: bool,
    devices: tuple[Path, ...],
    gpu: bool,
    loader: str,
    limit: int,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Record the GPU calls of a command, or of a running process.

    A command and all its descendants are followed from their first instruction. Needs root (or CAP_BPF, CAP_PERFMON,
    CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE). Tables go to standard error; standard output is
    the command's. Ends as the command did, or with 1 if that was fine but the file is not the whole recording: the disk
    is full, a pipe is closed.
    """
    if bool(command) == (pid is not None):
        raise click.UsageError("give either a command after `--`, or --pid")
    needs("--quiet", "--output")
    excludes("--top", "--quiet")
    excludes("--device", "--no-driver")
    if devices and loader == Loader.BCC.value:
        raise click.UsageError("--device needs --loader libbpf: bcc knows no system calls")
    options = RecordOptions(
        output=output,
        command=command,
        pid=pid,
        duration_s=duration_s,
        libraries=libraries,
        attributes=_attributes(command, pid),
        cpu=cpu,
        unwind=unwind,
        driver=driver,
        devices=devices,
        gpu=gpu,
        loader=Loader(loader),
    )
    result = run_record(options, _StopRequest(has_command=bool(command)))
    console = Console(stderr=True, highlight=False)
    if not quiet:
        console.print()
        print_summary(console, result.bundles, limit)
        print_devices(console, result.devices, limit)
        print_faults(console, result.faults)
    _print_outcome(console, result, output)
    if result.exit_code or result.output_error:
        sys.exit(result.exit_code or 1)


def _attributes(command: tuple[str, ...], pid: int | None) -> tuple[tuple[str, str], ...]:
    return (
        ("tool", f"otel_gpuflame {__version__}"),
        ("target", " ".join(command) if pid is None else _described(pid)),
        ("host", platform.node()),
        ("kernel", os.uname().release),
        ("machine", os.uname().machine),
    )


def _described(pid: int) -> str:
    """The command line of a running process, and its number."""
    try:
        command = read_strings(Path(f"/proc/{pid}/cmdline"))
    except OSError:
        # Gone or not ours: capture tells that.
        command = []
    return " ".join([*command, f"(pid {pid})"]) if command else f"pid {pid}"


def _print_outcome(console: Console, result: RecordResult, output: Path | None) -> None:
    print_ledger(console, result.ledger)
    for program, consequence in result.report.missing.items():
        say(console, f"  not available here ({program}): {consequence}", "yellow")
    for error in result.attach_errors:
        say(console, f"  {error}", "yellow")
    for late in result.late:
        gap = human(late.gap_ns, "nanoseconds")
        say(
            console,
            f"  {late.path}: probed {gap} after it was mapped; calls before that are missing",
        )
    if not any(account.kind in CALL_KINDS for account in result.ledger.accounts()):
        say(console, _why_nothing(result), "yellow")
    if output is not None:
        _print_file(console, result, output)


def _print_file(console: Console, result: RecordResult, output: Path) -> None:
    size = human(result.output_bytes, "bytes")
    if result.output_error:
        say(console, f"{output}: {size}, not the whole recording: {result.output_error}", "yellow")
    # What went through a pipe is elsewhere now.
    elif output.is_file():
        command = f"otel-gpuflame replay {shlex.quote(str(output))} --html out.html"
        say(console, f"{output}: {size}. Look at it: {command}")
    else:
        say(console, f"{output}: {size}.")


def _why_nothing(result: RecordResult) -> str:
    if not result.libraries:
        return (
            "No GPU call was seen: the target loaded neither libcuda.so.1 nor an OpenCL loader. "
            "If its driver library has another name, give its path with --library."
        )
    if result.late:
        return (
            "No GPU call was seen, although probes were attached, but not before a program had mapped "
            f"{' and '.join(sorted({str(late.path) for late in result.late}))}. If it made all its calls "
            "at once, give that path with --library."
        )
    return (
        "No GPU call was seen, although probes were attached. A program that links its driver statically, "
        "or that ended its GPU work before the recording began, looks like this."
    )
