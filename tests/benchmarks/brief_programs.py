"""How many launches keep their Python frames where programs end soon after their first launch.

Usage (root): python -m tests.benchmarks.brief_programs [--programs 48]

Frames are read from the living process: what has ended cannot be read any more. `record` runs Python programs that
launch once and end, one after the other or six at a time: at once without the interpreter's own end (`os._exit`), as
programs usually do, or after 10 and 100 ms. Printed: launches with the program's own frames, of all.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.fakes.build import ROOT, build_fakes, fake_environment
from tests.integration.bpf.recording import record, total

ENDS: Final = {
    "os._exit at once": "os._exit(0)",
    "end at once": "",
    "end after 10 ms": "time.sleep(0.01)",
    "end after 100 ms": "time.sleep(0.1)",
}
_PROGRAM: Final = """
import os, time
from tests.fakes.cuda_driver import FakeCuda
def inner(cuda):
    cuda.launch("once")
cuda = FakeCuda()
inner(cuda)
{end}
"""
_SCRIPT: Final = """
for round in $(seq {rounds}); do
    for one in $(seq {together}); do {python} {program} & done
    wait
done
"""


def measure(end: str, together: int, programs: int) -> tuple[int, int]:
    """(launches with the frame of their function, all launches)."""
    environment = {**fake_environment(build_fakes()), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "program.py"
        program.write_text(_PROGRAM.format(end=end))
        script = _SCRIPT.format(
            rounds=programs // together, together=together, python=sys.executable, program=program
        )
        output = Path(directory) / "brief.ogfcap"
        recording = record(output, "sh", "-c", script, environment=environment)
        samples = recording.samples(GPU_LAUNCH)
    named = [s for s in samples if "inner" in [name for name, _ in s.python()]]
    return total(named), total(samples)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=48)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    for together in (1, 6):
        for name, end in ENDS.items():
            named, launches = measure(end, together, options.programs)
            print(f"{together} at a time, {name:17} {named:4} of {launches:4}", flush=True)


if __name__ == "__main__":
    main()
