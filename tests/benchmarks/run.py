"""Every benchmark, one after the other, each in a process of its own: a table, and JSON in out/bench.json.

Run: make bench, or python -m tests.benchmarks.run [NAME...]. Needs root. docs/overhead.md says how each one measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.capture.bpf.library import load_library

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = {
    "aggregate": "Decode, correlate and aggregate, on one core",
    "correlate": "Join launches and executions, on one core",
    "road": "The whole road under 1,000,000 calls/s",
    "start": "From starting `record` to the first call",
    "encode": "Encoding a window of 10,000 stacks",
    "probe": "Added to a launch by its probe",
    "spans": "Added to a switch of the current span",
    "span_read": "Reading the span in BPF",
    "service": "Requests/s of the example service with and without publication",
}
_LIMIT_S: Final = 300


def main() -> None:
    """Run the chosen benchmarks; status 1 if one of them could not measure."""
    options = _options()
    if os.geteuid() != 0:
        sys.exit("benchmarks load BPF programs: run as root")
    report: dict[str, Any] = {"machine": _machine(), "benchmarks": {}}
    failed = []
    for name in options.names or BENCHMARKS:
        print(f"\n{BENCHMARKS[name]}", flush=True)
        load_before, begin_s = os.getloadavg()[0], time.monotonic()
        result = _run(name)
        if isinstance(result, str):
            print(f"  failed: {result}", file=sys.stderr)
            failed.append(name)
            continue
        report["benchmarks"][name] = {
            "wall_s": time.monotonic() - begin_s,
            "load_average_before": load_before,
            "figures": result,
        }
        for each in result:
            print(_line(each))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"\n{_in_words(report['machine'])}\n{options.output}")
    if failed:
        sys.exit(f"could not measure: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "bench.json")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    return options


def _run(name: str) -> list[dict[str, Any]] | str:
    """Figures of one benchmark, or why there are none."""
    command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}"]
    try:
        result = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {_LIMIT_S} s"
    if result.returncode:
        return result.stderr.strip()
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def _line(each: Mapping[str, Any]) -> str:
    text = f"  {each['name']:<54} {_number(each['value']):>12} {each['unit']:<9}"
    if each["low"] is not None:
        text += f" {_number(each['low'])} to {_number(each['high'])}"
    if each["note"]:
        text += f" {each['note']}"
    return text.rstrip()


def _number(value: float) -> str:
    """At least three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _machine() -> dict[str, Any]:
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "cpu": cpus[0].partition(":")[2].strip() if cpus else platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "protobuf": version("protobuf"),
        "libbpf": load_library().libbpf_version_string().decode(),
    }


def _in_words(machine: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in machine.items())


if __name__ == "__main__":
    main()
