"""Records one of the examples with its traces, and holds one against the other.

Usage: python -m tests.integration.gpu.spans_recorded OUT NAME [--device DEVICE] [--install DIRECTORY]

NAME is `service` (examples/inference, recorded from its start, with load from a process of its own),
`service_attached` (the same, started with our library in it and recorded when it listens) or `train_spans`
(examples/train_step.py). OUT gets NAME.ogfcap and NAME.json, the traces of all programs; figures go to standard
output. With --install the programs run from a directory as they would lie on a server, packages under site-packages:
paths are in the recording. Exits with 1 and the reason if something is wrong. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.capture.cupti.inject import VARIABLE, library_path
from otel_gpuflame.errors import OtelGpuflameError
from tests.integration.gpu.span_checks import ROOT, CheckError, check
from tests.integration.inject.region import NoRegionError, Region

PYTHON: Final = "python3" if shutil.which("python3") == sys.executable else sys.executable
_EXAMPLES: Final = ROOT / "examples"
_LIMIT_S: Final = 100.0
"""Of all programs together; comparing comes after that."""
_PAUSE_S: Final = 0.01
_MAX_BYTES: Final = 2_000_000
"""Of a recording and its traces together: what can be bundled."""


class Program:
    """A program that runs beside us; what it says is in a file."""

    def __init__(
        self, name: str, log: Path, until_s: float, packages: str, command: Sequence[object]
    ) -> None:
        self.name, self._log, self._until_s = name, log, until_s
        with log.open("w") as said:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                env={**os.environ, "PYTHONPATH": packages, "OTEL_SERVICE_NAME": name},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it is so; raises CheckError when the program ends before, or it takes too long."""
        while not condition():
            if self.exit_code is not None:
                raise CheckError(f"{what}: {self.name} has ended first: {self.said()}")
            if time.monotonic() > self._until_s:
                raise CheckError(f"{what}: not in time; {self.name}: {self.said()}")
            time.sleep(_PAUSE_S)

    def finish(self) -> None:
        """Wait for its end; raises CheckError unless it is a good one."""
        try:
            code = self.process.wait(max(self._until_s - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise CheckError(f"{self.name} has not ended in time: {self.said()}") from None
        if code:
            raise CheckError(f"{self.name} has ended with {code}: {self.said()}")

    def said(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """With all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Run:
    """The programs of one recording, in a folder for what they write."""

    def __init__(self, folder: Path, capture: Path, options: argparse.Namespace) -> None:
        self._folder, self._capture, self._options = folder, capture, options
        self._programs: list[Program] = []
        self._until_s = time.monotonic() + _LIMIT_S
        self._examples, self._packages = _EXAMPLES, packages_of(str(ROOT))
        if options.install is not None:
            self._examples, self._packages = installed(options.install)

    def start(self, name: str, *command: object) -> Program:
        """Start one of them, by the name that its traces shall have."""
        log = self._folder / f"{name}.log"
        self._programs.append(Program(name, log, self._until_s, self._packages, command))
        return self._programs[-1]

    def record(self, service: str, *what: object) -> Program:
        """Start the recorder."""
        command = (PYTHON, "-m", "otel_gpuflame", "record", "-o", self._capture)
        return self.start(service, *command, *what)

    def end(self) -> None:
        """Kill whatever still runs, and pass on what was said."""
        for program in self._programs:
            program.kill()
            print(f"{program.name}: {program.said()}", file=sys.stderr)

    def train(self) -> list[Path]:
        """Record a training loop; its traces."""
        traces = "steps.json"
        size = ("--steps", 20, "--warmup", 3, "--layers", 2, "--batch", 64)
        device = ("--device", self._options.device, "--traces", traces)
        program = (PYTHON, self._examples / "train_step.py", *size, *device)
        self.record("train_step", "--", *program).finish()
        return [self._folder / traces]

    def serve(self) -> list[Path]:
        """Record a service from its start while callers call it; the traces of both."""
        service, callers = "service.json", "callers.json"
        inference = self._examples / "inference"
        port, requests = free_port(), ("--requests", self._options.requests)
        # fmt: off
        serve = (
            PYTHON, inference / "serve.py", "--port", port, *requests, "--traces", service,
            "--device", self._options.device, "--layers", self._options.layers, "--width", self._options.width,
        )
        call = (
            PYTHON, inference / "load.py", "--port", port, *requests, "--callers", 64, "--traces", callers,
            "--wait-s", _LIMIT_S,
        )
        # fmt: on
        if self._options.attach:
            self._attached(port, serve, call)
        else:
            recorder = self.record("inference", "--", *serve)
            load = self.start("callers", *call)
            # The service ends with its last answer, which callers may still be writing down.
            recorder.wait_for(
                lambda: load.exit_code is not None or recorder.exit_code == 0, "all calls"
            )
            load.finish()
            recorder.finish()
        return [self._folder / service, self._folder / callers]

    def _attached(self, port: int, serve: Sequence[object], call: Sequence[object]) -> None:
        program = self.start("inference", "env", f"{VARIABLE}={library_path()}", *serve)
        program.wait_for(lambda: listens(port), "the service")
        recorder = self.record("recorder", "--pid", program.process.pid)
        recorder.wait_for(lambda: size_of(self._capture) > 0, "the recorder to attach")
        recorder.wait_for(lambda: is_leased(program.process.pid), "a window")
        self.start("callers", *call).finish()
        program.finish()
        recorder.finish()


def packages_of(*first: str) -> str:
    """A search path: these directories, then those of our own."""
    return os.pathsep.join([*first, os.environ.get("PYTHONPATH", "")])


def installed(directory: Path) -> tuple[Path, str]:
    """Copies of the examples, and a search path on which packages lie as in a virtual environment: by links."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "venv" / "lib" / version / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    sources = [ROOT / "otel_gpuflame"]
    for path in filter(os.path.isdir, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        sources += [] if Path(path).resolve() == ROOT else Path(path).resolve().iterdir()
    for source in sources:
        if not (packages / source.name).is_symlink():
            (packages / source.name).symlink_to(source)
    shutil.copytree(_EXAMPLES / "inference", directory / "inference", dirs_exist_ok=True)
    shutil.copy(_EXAMPLES / "train_step.py", directory)
    return directory, str(packages)


def free_port() -> int:
    """One that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether somebody does."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def size_of(path: Path) -> int:
    """Its size in bytes, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def is_leased(pid: int) -> bool:
    """Whether the library in a process has been asked to record."""
    try:
        return int(Region(pid).control["lease_until_ns"][0]) > 0
    except (NoRegionError, OSError):
        return False


@contextlib.contextmanager
def ended(run: Run) -> Iterator[Run]:
    """Leaves no program behind."""
    try:
        yield run
    finally:
        run.end()


def main() -> None:
    """Record, join the traces, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", choices=("service", "train_spans", "service_attached"))
    parser.add_argument("--device", default="cuda", help="as of the example")
    parser.add_argument("--install", type=Path, help="run from copies in this directory")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=8192)
    options = parser.parse_args()
    options.attach = options.name == "service_attached"
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    capture, traces = out / f"{options.name}.ogfcap", out / f"{options.name}.json"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            ended(Run(Path(folder), capture, options)) as run,
        ):
            parts = run.train() if options.name == "train_spans" else run.serve()
            traces.write_text("".join(part.read_text() for part in parts))
        figures: dict[str, Any] = {
            "capture_bytes": size_of(capture),
            "traces_bytes": size_of(traces),
            **check(capture, traces),
        }
    except (CheckError, OtelGpuflameError, OSError) as error:
        sys.exit(f"{options.name}: {error}")
    print(json.dumps(figures, indent=1))
    if figures["capture_bytes"] + figures["traces_bytes"] > _MAX_BYTES:
        sys.exit(f"{options.name}: too large to be bundled: more than {_MAX_BYTES} bytes")


if __name__ == "__main__":
    main()
