# SPDX-License-Identifier: Apache-2.0
"""Records calls of a program that waits for the recorder. Arguments: the capture file, the loader, the command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.integration.bpf.session import record_in_step


def main() -> None:
    """Print what both have printed, and end as the recorder did."""
    output, loader, *command = sys.argv[1:]
    # On an emulated CPU the stacks of CPU samples would be too many.
    options = ["--no-cpu", "--no-driver", "--loader", loader]
    environment = dict(os.environ)
    recording = record_in_step(Path(output), *command, environment=environment, options=options)
    sys.stdout.write(recording.stdout)
    sys.stderr.write(recording.stderr)
    sys.exit(recording.exit_code)


if __name__ == "__main__":
    main()
