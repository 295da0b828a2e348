"""Writes tables.py from the headers of installed interpreters.

    python -m otel_gpuflame.symbolize.cpython.regenerate python3.10 python3.11 python3.12 python3.13 python3.14

Each argument is an interpreter of the version wanted, with its headers installed. `CC` names the
compiler (cc).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
_DOCSTRING = (
    '"""Offsets of CPython structures. Written by regenerate.py from headers: do not edit."""'
)


def offsets_of(interpreter: str) -> dict[str, int]:
    """What offsets.c prints when compiled with the headers of `interpreter`.

    Raises: subprocess.CalledProcessError: the headers are missing or do not fit; the compiler has
    said why on stderr.
    """
    ask = "import sysconfig; print(sysconfig.get_path('include'))"
    include = subprocess.run(
        [interpreter, "-c", ask], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "offsets"
        compiler = os.environ.get("CC", "cc")
        # Debian's pyconfig.h includes that of the machine's architecture, relative to the folder above.
        folders = [f"-I{include}", f"-idirafter{Path(include).parent}"]
        subprocess.run([compiler, *folders, "-o", program, _HERE / "offsets.c"], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in printed.splitlines())}


def module_text(interpreters: list[str]) -> str:
    """The text of tables.py."""
    lines = [_DOCSTRING, "", "from __future__ import annotations", ""]
    lines.append("OFFSETS: dict[tuple[int, int], dict[str, int]] = {")
    for interpreter in interpreters:
        offsets = offsets_of(interpreter)
        version = offsets.pop("major"), offsets.pop("minor")
        lines.append(f"    {version}: {{")
        lines.extend(f'        "{name}": {value},' for name, value in offsets.items())
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def main() -> None:
    """Command line."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    (_HERE / "tables.py").write_text(module_text(sys.argv[1:]))


if __name__ == "__main__":
    main()
