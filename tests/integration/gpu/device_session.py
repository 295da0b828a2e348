"""All that is measured on a device, in parts with a time limit each; a failing one leaves others alone.

    python -m tests.integration.gpu.device_session OUT [--only PART ...] [--limit-s SECONDS]   # root, a GPU, torch
    python -m tests.integration.gpu.device_session OUT --fake                                  # on doubles, no GPU

OUT gets `session.txt` (what is printed), `session.json` (part -> verdict, seconds), and `session.tar.gz` with what
parts wrote and said. All three are written anew after each part. A part that needs more time than is left of --limit-s
is not begun. Exit status 1: a part failed or was not begun. README.md here tells what is done with the results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.integration.gpu.hardware_truths import ROOT, environment_of

FOLDER: Final = "OUT"
"""In arguments: the folder of the part."""
_NAME: Final = "session"
_LINES: Final = 30
"""Of what a part said, printed when it has ended; all of it is in the archive."""
_FAKE: Final = {False: (), True: ("--fake",)}
_SLACK: Final = 1.5
"""A part that takes so many times what it is said to take is ended."""
_SLOWER: Final = 6.0
"""Doubles, on a machine with other work."""


@dataclass(frozen=True, slots=True)
class Part:
    """A module with its arguments. `about_s` is what it takes on an H200, with all that it starts."""

    about_s: float
    module: str
    arguments: tuple[str, ...]


def overhead(name: str, workload: str, about_s: float, **options: float | bool) -> Part:
    """A run of gpu_agent_overhead; NAME.npz is for evaluating it again."""
    arguments = [workload, "--warmup", "3", "--block", "80"]
    parts = {"rare": 0.0, "window": 0.0, "direct": 0.0, "record": 0.0, **options}
    for option, value in parts.items():
        arguments += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    arguments += ["--json", f"{FOLDER}/{name}.json", "--raw", f"{FOLDER}/{name}.npz"]
    return Part(about_s, "tests.benchmarks.gpu_agent_overhead", tuple(arguments))


def parts_of(*, fake: bool) -> dict[str, Part]:
    """What there is to do, the most telling first. On doubles all is short, and what needs PyTorch is left out."""
    if fake:
        agent = {"rare": 4, "window": 3, "direct": 12, "direct-on": 7}
        beside = {"record": 3, "executions": 3, "profiler": 3}
        counted, pairs = ("2", "6"), "1"
    else:
        agent = {"rare": 150, "window": 10, "direct": 33, "direct-on": 25}
        beside = {"record": 12, "executions": 12, "profiler": 15}
        counted, pairs = ("5", "15"), "30"
    truths, unwind = "tests.integration.gpu.hardware_truths", "tests.benchmarks.gpu_unwind_cost"
    seen = {**agent, **beside, "rare": 0, "gpu": True}
    cost = ("--seconds", counted[0], "--agent-seconds", counted[1], "--json", f"{FOLDER}/cost.json")
    parts = {
        "train": overhead("train", "train", 230, **agent),
        "decode": overhead("decode", "decode", 230, **agent),
        "joins": Part(85, truths, (FOLDER, "host", "joins", *_FAKE[fake])),
        "train_gpu": overhead("train_gpu", "train", 120, **seen),
        "decode_gpu": overhead("decode_gpu", "decode", 120, **seen),
        "graph_gpu": overhead("graph_gpu", "graph", 165, **{**seen, "rare": 4 if fake else 40}),
        "unwind": Part(85, unwind, ("train", *cost)),
        "unwind_decode": Part(85, unwind, ("decode", *cost)),
        "service": _spans("service_attached", fake=fake),
        "service_from_start": _spans("service", fake=fake),
        "train_spans": _spans("train_spans", fake=fake),
        "profiler": Part(25, truths, (FOLDER, "profiler", *_FAKE[fake])),
        "dormant": Part(75, "tests.integration.gpu.launch_cost", ("--pairs", pairs)),
    }
    if fake:
        del parts["train_spans"]
    return parts


def _spans(name: str, *, fake: bool) -> Part:
    device = ("--device", "driver") if fake else ()
    arguments = (FOLDER, name, "--install", f"{FOLDER}/srv" if fake else "/srv", *device)
    return Part(30, "tests.integration.gpu.spans_recorded", arguments)


class Session:
    """Runs parts, and keeps what they leave."""

    def __init__(
        self, out: Path, work: Path, environment: Mapping[str, str], *, slower: float = 1.0
    ) -> None:
        self._out, self._work, self._environment = out, work, dict(environment)
        self._slower = slower
        self._rows: dict[str, dict[str, Any]] = {}
        out.mkdir(parents=True, exist_ok=True)

    def run(self, parts: Mapping[str, Part], limit_s: float) -> bool:
        """All of them within so many seconds; whether each did what it should."""
        end_s = time.monotonic() + limit_s
        for name, part in parts.items():
            left_s = end_s - time.monotonic()
            if part.about_s > left_s:
                self._note(name, part, "no time left", 0.0, "")
                continue
            began_s = time.monotonic()
            verdict, said = self._run(name, part, min(part.about_s * _SLACK * self._slower, left_s))
            self._note(name, part, verdict, time.monotonic() - began_s, said)
        return all(row["verdict"] == "ok" for row in self._rows.values())

    def _run(self, name: str, part: Part, limit_s: float) -> tuple[str, str]:
        folder = self._work / name
        folder.mkdir()
        arguments = (each.replace(FOLDER, str(folder)) for each in part.arguments)
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", part.module, *arguments],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
                verdict = "ok" if code == 0 else f"exit {code}"
            except subprocess.TimeoutExpired:
                verdict = f"not within {limit_s:.0f} s"
            # Programs that it has left behind are of the same session, or of sessions of their own that ended with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return verdict, log.read_text(errors="replace")

    def _note(self, name: str, part: Part, verdict: str, seconds: float, said: str) -> None:
        self._rows[name] = {
            "verdict": verdict,
            "seconds": round(seconds, 1),
            "about_s": part.about_s,
        }
        text = "\n".join([f"== {name}: {verdict}, {seconds:.0f} s", *said.splitlines()[-_LINES:]])
        print(text, flush=True)
        with (self._out / f"{_NAME}.txt").open("a") as file:
            file.write(text + "\n")
        (self._out / f"{_NAME}.json").write_text(json.dumps(self._rows, indent=1) + "\n")
        with tarfile.open(self._out / f"{_NAME}.tar.gz", "w:gz", compresslevel=1) as archive:
            archive.add(self._work, arcname=_NAME, filter=_without_links)

    def table(self) -> str:
        """One row a part."""
        width = max(map(len, self._rows), default=0)
        rows = (
            f"{name:{width}}  {row['seconds']:6.0f} s of {row['about_s']:4.0f}  {row['verdict']}"
            for name, row in self._rows.items()
        )
        return "\n".join(rows)


def _without_links(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Packages that a service was installed with are links."""
    return None if member.issym() else member


def chosen(parts: Mapping[str, Part], names: Iterable[str]) -> dict[str, Part]:
    """Those that are named, in the order in which they are named; all, if none is. Raises KeyError."""
    return {name: parts[name] for name in names} or dict(parts)


def main() -> int:
    """Run, and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="PART", choices=parts_of(fake=False)
    )
    parser.add_argument("--limit-s", type=float, default=3600.0, help="for all of them together")
    parser.add_argument("--fake", action="store_true", help="on doubles")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))
    try:
        support = work.with_name(f"{work.name}-support")
        support.mkdir()
        environment = environment_of(support, fake=options.fake)
        slower = _SLOWER if options.fake else 1.0
        session = Session(options.out.absolute(), work, environment, slower=slower)
        is_good = session.run(chosen(parts_of(fake=options.fake), options.only), options.limit_s)
        print(session.table(), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(support, ignore_errors=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
