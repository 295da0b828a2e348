"""What span publication adds to a switch of the current span: bench_span_switch, as figures."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tests.benchmarks import figures, launching
from tests.benchmarks.figures import Figure

_COLUMNS: Final = (
    ("without", "ns"),
    ("with", "ns"),
    ("added", "ns"),
    ("with over without", "ratio"),
)


def measure() -> list[Figure]:
    """Run it and read its table: a name, then four numbers."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_span_switch"],
        cwd=launching.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(result.stderr.strip())
    found = []
    for line in result.stdout.splitlines()[1:]:
        name, *values = line.rsplit(maxsplit=len(_COLUMNS))
        found += [
            Figure(name=f"{name}: {column}", value=float(value), unit=unit)
            for (column, unit), value in zip(_COLUMNS, values, strict=True)
        ]
    return found


if __name__ == "__main__":
    figures.main(measure)
