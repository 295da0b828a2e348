# SPDX-License-Identifier: Apache-2.0
"""Target program: runs programs side by side, some in namespaces of their own, as containers are.

Arguments: `--hold`, and a JSON list of {"name": ..., "command": [...], "environment": {...}}. Prints the truth of each
program as a line with its name and its pid on the host.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.steps import STAYS


class Program:
    """One started program, which holds until `go`."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()
        self.host_pid = self._innermost()

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Print its truth."""
        truth = json.loads(self._line())
        app_common.emit({"name": self.name, "host_pid": self.host_pid, **truth})
        if os.environ.get(STAYS):
            # As long as we have.
            self.go()
        if self._process.wait():
            sys.exit(f"{self.name} ended with {self._process.returncode}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() or sys.exit(f"{self.name} ended early")

    def _innermost(self) -> int:
        """Unshare stays the parent of what it runs in a new pid namespace."""
        pid = self._process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid


def main() -> None:
    """Start all, let them go together, collect what they say."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("programs")
    options: argparse.Namespace = parser.parse_args()
    programs = [Program(**each) for each in json.loads(options.programs)]
    app_common.hold(options)
    for program in programs:
        program.go()
    for program in programs:
        program.finish()


if __name__ == "__main__":
    app_common.run(main)
