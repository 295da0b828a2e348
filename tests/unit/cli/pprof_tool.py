"""What `go tool pprof` says about a file."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from otel_gpuflame.profile.model import ValueType

UNITS = {"nanoseconds": "ns", "bytes": "B", "count": ""}


def pprof_top(path: Path, sample_type: ValueType, *options: str) -> Counter[str]:
    """Flat values by name, as `go tool pprof -top` prints them; equal names are added up."""
    unit = UNITS[sample_type.unit]
    command = [
        "go",
        "tool",
        "pprof",
        "-symbolize=none",
        "-top",
        f"-sample_index={sample_type.type}",
    ]
    command += ["-nodecount=100000", "-nodefraction=0", "-edgefraction=0", *options]
    command += [f"-unit={unit}"] if unit else []
    result = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    rows = result.stdout.split("flat%", 1)[1].splitlines()[1:]
    found: Counter[str] = Counter()
    for row in rows:
        match = re.match(rf"\s*(\d+)(?:{unit})? +\S+ +\S+ +\S+ +\S+ +(.*)", row)
        assert match is not None, row
        if int(match[1]):
            found[match[2].removesuffix(" (inline)")] += int(match[1])
    return found
