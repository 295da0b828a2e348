"""Everything that is to be shown of the GPU side on a device, in one command; parts that fail leave the others alone.

    make bpf native && python -m tests.integration.gpu.launch_cost --build   # here, where a compiler is
    python -m tests.integration.gpu.hardware_truths OUT [PART...]            # there: root, a GPU, torch

OUT gets `hardware_truths.txt` (what is printed), `hardware_truths.json` (part -> what it found), and
`hardware_truths.tar.gz` with captures, what programs said of themselves, and what went to stderr. All three are written
anew after each part. Exit status 1: a part is not ok.

| part | what is shown | about |
|---|---|---|
| `host` | that `record` works there; what is installed; whether the driver has its tracepoint for Xid | 5 s |
| `truths` | truth_programs.py, each recorded: times within 5 %, under their lines; exactly its finding | 70 s |
| `joins` | train, decode, graph, inference: executions with a launch, probe coverage, graphs, Python roots | 35 s |
| `profiler` | as torch.profiler in the same process: counts, total time, ten largest kernels within 1 % | 20 s |
| `idle` | idle_against_gpm.py, and the counters in its capture | 50 s |
| `dormant` | launch_cost.py: nanoseconds that the dormant library adds to a launch | 20 s |
| `windows` | window_switches.py: 200 windows, and the end of a program in one | 20 s |

`--fake` runs it all on doubles (tests/fakes), where it says nothing of a device but that the command works.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, TextIO

ROOT: Final = Path(__file__).parents[3]
MODULE: Final = "tests.integration.gpu.hardware_truths"
NAME: Final = "hardware_truths"
LIMITS_S: Final = {
    "host": 60,
    "truths": 180,
    "joins": 120,
    "profiler": 90,
    "idle": 120,
    "dormant": 90,
    "windows": 90,
}
ONE_S: Final = 40.0
"""A recording that takes longer hangs; on doubles machines may be busy."""
TABLES_S: Final = "1.5"
"""A PyTorch process's tables take 0.5 s of CPU, in a thread of low priority."""
IDLE_LIMIT_S: Final = 90.0
"""Two recordings, and a program that is loaded before one of them."""
WORKLOADS: Final = ("train", "decode", "graph", "inference")
IDLE_S: Final = {False: ("--seconds", "12.5"), True: ("--seconds", "9", "--fake")}
Found = dict[str, Any]


class Part:
    """Where a part of the work is done, and how."""

    def __init__(self, work: Path, *, fake: bool) -> None:
        self.work = work
        self.fake = fake

    def record(self, name: str, *program: str, **variables: str) -> list[Found]:
        """Record a module with its arguments into NAME.ogfcap; the lines of JSON that it printed.

        Raises RuntimeError, with the end of what went to stderr, when it does not end well or says nothing.
        """
        capture = self.work / f"{name}.ogfcap"
        command = [sys.executable, "-m", "otel_gpuflame", "record", "-q", "-o", str(capture), "--"]
        return self.run(name, [*command, sys.executable, "-m", *program], ONE_S, **variables)

    def run(
        self, name: str, command: Sequence[str], limit_s: float = ONE_S, **variables: str
    ) -> list[Found]:
        """The same for any command. Its output stays in NAME.jsonl, its errors in NAME.log."""
        output, errors = self.work / f"{name}.jsonl", self.work / f"{name}.log"
        with output.open("w") as out, errors.open("w") as err:
            done = subprocess.run(
                command,
                stdout=out,
                stderr=err,
                env={**os.environ, **variables},
                cwd=ROOT,
                timeout=limit_s * (4 if self.fake else 1),
                check=False,
            )
        lines = [json.loads(line) for line in output.read_text().splitlines() if line[:1] == "{"]
        if done.returncode or not lines:
            text = errors.read_text()[-3000:]
            raise RuntimeError(f"{name}: exit {done.returncode}, {len(lines)} lines; {text}")
        return lines

    def module(self, name: str, *program: str) -> list[Found]:
        """Run a module that prints JSON."""
        return self.run(name, [sys.executable, "-m", *program])


def host(part: Part) -> Found:
    """Whether anything can be recorded at all."""
    from otel_gpuflame.capture.bpf.tracefs import tracepoint_id  # noqa: PLC0415

    found: Found = {
        "python": sys.version.split()[0],
        "kernel": os.uname().release,
        "xid_tracepoint": tracepoint_id("nvidia", "nvidia_dev_xid"),
        "environment": {
            name: os.environ.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH")
        },
    }
    for module in ("torch", "numpy", "click", "rich", "pynvml", "google.protobuf"):
        found[module] = _where(module)
    lines = part.record("host", "tests.integration.gpu.truth_programs", "clean")
    found["record"] = (part.work / "host.log").read_text()[-1500:].splitlines()
    return {"ok": bool(lines), **found}


def _where(module: str) -> str:
    try:
        return str(importlib.import_module(module).__file__)
    except ImportError as error:
        return repr(error)


def truths(part: Part) -> Found:
    """Each program, and the table."""
    from tests.integration.gpu.truth_report import EXPECTED, report, table  # noqa: PLC0415

    rows: list[Found] = []
    failures: list[Found] = []
    with reports(part) as later:
        waiting: list[tuple[str, Future[list[Found]]]] = []
        for name in (name for name, each in EXPECTED.items() if not each.program):
            # The double's queue is as long in time as the real one is in launches.
            full = {"FAKE_CUDA_QUEUE_NS": "1024000000"} if name == "back_pressure" else {}
            with noted(failures, truth=name):
                (told,) = part.record(name, "tests.integration.gpu.truth_programs", name, **full)
                capture = part.work / f"{name}.ogfcap"
                waiting.append((name, later.submit(report, capture, told)))
        for name, future in waiting:
            with noted(failures, truth=name):
                rows += future.result()
    print(table(rows) if rows else "no program could be recorded")
    for row in rows:
        if not (row["ok"] and row["line_ok"]):
            print(json.dumps({k: v for k, v in row.items() if k != "accounts"}))
    show_failures(failures)
    is_good = not failures and all(row["ok"] and row["line_ok"] for row in rows)
    return {"ok": is_good, "rows": rows, "failures": failures}


def joins(part: Part) -> Found:
    """Each workload recorded, twice in a program: the second time unwind tables are there."""
    from tests.integration.gpu.join_report import report_joins  # noqa: PLC0415

    rows: list[Found] = []
    failures: list[Found] = []
    with reports(part) as later:
        waiting: list[tuple[str, Future[Found]]] = []
        for name in WORKLOADS:
            with noted(failures, workload=name):
                cases = ("tests.integration.gpu.app_cases", "--pause", TABLES_S, name, name)
                *_, again = part.record(name, *cases)
                capture = part.work / f"{name}.ogfcap"
                waiting.append((name, later.submit(report_joins, name, capture, again["start_ns"])))
        for name, future in waiting:
            with noted(failures, workload=name):
                rows.append(future.result())
    for row in rows:
        print(json.dumps({k: v for k, v in row.items() if k != "accounts"}))
    show_failures(failures)
    return {
        "ok": not failures and all(row["ok"] for row in rows),
        "rows": rows,
        "failures": failures,
    }


def profiler(part: Part) -> Found:
    """torch.profiler between two turns that we record."""
    from tests.integration.gpu.join_report import report_profiler  # noqa: PLC0415

    cases = ("train", "decode", "graph")
    lines = part.record("profiled", "tests.integration.gpu.app_profiled", *cases, "--windows")
    rows = report_profiler(part.work / "profiled.ogfcap", lines)
    for row in rows:
        print(json.dumps(row))
    return {"ok": all(row["ok"] for row in rows), "rows": rows}


def idle(part: Part) -> Found:
    """GPM; the checks are lines of that script, whatever its exit status."""
    from tests.integration.gpu.join_report import report_counters  # noqa: PLC0415

    command = [sys.executable, "-m", "tests.integration.gpu.idle_against_gpm"]
    failure, checks = "", []
    try:
        command += ["--out", str(part.work), *IDLE_S[part.fake]]
        checks = part.run("idle", command, IDLE_LIMIT_S)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        failure = str(error)[-3000:]
        text = (part.work / "idle.jsonl").read_text()
        checks = [json.loads(line) for line in text.splitlines() if line[:1] == "{"]
    for check in checks:
        print(json.dumps(check))
    if failure:
        show_failures([{"error": failure}])
    capture = part.work / "alone.ogfcap"
    counters = report_counters(capture) if capture.exists() else {"ok": False}
    print(json.dumps(counters))
    is_good = len(checks) == 5 and all(each["ok"] for each in checks)
    return {"ok": is_good and counters["ok"], "checks": checks, "counters": counters}


def dormant(part: Part) -> Found:
    """Nanoseconds a launch."""
    (found,) = part.module("dormant", "tests.integration.gpu.launch_cost")
    print(json.dumps({k: v for k, v in found.items() if k != "all"}))
    return found


def windows(part: Part) -> Found:
    """200 of them."""
    (found,) = part.module("windows", "tests.integration.gpu.window_switches")
    print(json.dumps(found))
    return found


PARTS: Final[dict[str, Callable[[Part], Found]]] = {
    "host": host,
    "truths": truths,
    "joins": joins,
    "profiler": profiler,
    "idle": idle,
    "dormant": dormant,
    "windows": windows,
}


def reports(part: Part) -> ProcessPoolExecutor:
    """Captures are read while the next program runs. On doubles the program is all that there is a processor for."""
    return ProcessPoolExecutor(1 if part.fake else 6)


@contextlib.contextmanager
def noted(failures: list[Found], **which: str) -> Iterator[None]:
    """Whatever goes wrong in it becomes one of `failures`: the others are to be seen."""
    try:
        yield
    except Exception:
        failures.append({**which, "error": traceback.format_exc()[-3000:]})


def show_failures(failures: Sequence[Found]) -> None:
    """In full: nobody is there to ask again."""
    for failure in failures:
        print(*(f"{key}: {value}" for key, value in failure.items()), sep="\n", flush=True)


def run_alone(name: str, work: Path, *, fake: bool) -> None:
    """One part in this process; NAME.json says what it found."""
    try:
        found = PARTS[name](Part(work, fake=fake))
    except Exception:  # whatever it is, it is told, and the next part has its turn
        found = {"ok": False, "error": traceback.format_exc()[-5000:]}
        print(found["error"])
    (work / f"{name}.json").write_text(json.dumps(found, default=str))


class Session:
    """Runs parts in processes of their own, and keeps what they leave."""

    def __init__(self, out: Path, work: Path, environment: dict[str, str], *, fake: bool) -> None:
        self._out, self._work, self._environment, self._fake = out, work, environment, fake
        self._found: dict[str, Found] = {}
        out.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, log: TextIO) -> bool:
        """Whether the part is ok."""
        began_s = time.monotonic()
        (self._work / name).mkdir()
        command = [sys.executable, "-m", MODULE, str(self._work / name), name, "--alone"]
        if self._fake:
            command.append("--fake")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        limit_s = LIMITS_S[name] * (4 if self._fake else 1)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # Recorders and programs are of the same session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nnot within {limit_s} s"
        found = self._read(name, process.returncode)
        found["seconds"] = round(time.monotonic() - began_s, 1)
        verdict = "ok" if found["ok"] else "NOT OK"
        text = f"== {name}: {verdict}, {found['seconds']} s, exit {process.returncode}\n{output}"
        print(text, flush=True)
        log.write(text + "\n")
        log.flush()
        self._found[name] = found
        (self._out / f"{NAME}.json").write_text(json.dumps(self._found, indent=1, default=str))
        with tarfile.open(self._out / f"{NAME}.tar.gz", "w:gz", compresslevel=1) as archive:
            archive.add(self._work, arcname=NAME)
        return bool(found["ok"])

    def _read(self, name: str, status: int) -> Found:
        try:
            found: Found = json.loads((self._work / name / f"{name}.json").read_text())
        except (OSError, ValueError) as error:
            return {"ok": False, "error": f"no result ({error}), exit {status}"}
        return found


def environment_of(work: Path, *, fake: bool) -> dict[str, str]:
    """Of all parts: what this process has, with absolute paths, for parts run in the checkout's root."""
    values = dict(os.environ)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        paths = [os.path.abspath(each) for each in values.get(name, "").split(":") if each]
        values[name] = ":".join(paths)
    values["PYTHONPATH"] = ":".join(filter(None, (str(ROOT), values["PYTHONPATH"])))
    values["PYTHONUNBUFFERED"] = "1"
    return {**values, **_fake_environment(work, values)} if fake else values


def _fake_environment(work: Path, values: dict[str, str]) -> dict[str, str]:
    from tests.fakes.build import build_fakes  # noqa: PLC0415 (needs a compiler)
    from tests.fakes.nvml.build import build_nvml  # noqa: PLC0415

    fakes = build_fakes()
    (work / "processes").touch()
    libraries = (str(fakes), str(build_nvml(work).parent), values["LD_LIBRARY_PATH"])
    double = ROOT / "tests" / "fakes" / "site-packages"
    return {
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "PYTHONPATH": f"{values['PYTHONPATH']}:{double}",
        "OTEL_GPUFLAME_CUPTI": str(fakes / "cupti" / "libcupti.so.13"),
        "FAKE_CUDA_RUNTIME": "1",
        "FAKE_CUDA_NO_MOVES": "1",
        "FAKE_NVML_BUSY": str(work / "busy"),
        "FAKE_NVML_PROCESSES": f"@{work / 'processes'}",
    }


def main() -> int:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--fake", action="store_true", help="on doubles")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    out = options.out.absolute()
    if options.alone:
        run_alone(options.parts[0], out, fake=options.fake)
        return 0
    work = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
    try:
        environment = environment_of(work, fake=options.fake)
        session = Session(out, work, environment, fake=options.fake)
        with (out / f"{NAME}.txt").open("w") as log:
            results = {name: session.run(name, log) for name in options.parts or PARTS}
            summary = ", ".join(f"{k} {'ok' if v else 'NOT OK'}" for k, v in results.items())
            print(summary, flush=True)
            log.write(summary + "\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
