# SPDX-License-Identifier: Apache-2.0
"""How a target program keeps step with whoever started it, so that nothing depends on who of the two is faster.

Names, stacks and interpreters are read from the living process. A program that goes on, or ends, before a profiler has
got round to that is described less well, and how much time there is for it depends on the machine's load.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from typing import Any

STAYS = "FAKE_APP_STAYS"
"""Environment variable; where it is set, a program waits for a line on stdin after each truth that it says."""

AGAIN = "again"
"""The line that asks a program which can to do its work once more."""


def say(what: dict[str, Any]) -> None:
    """Print one JSON line."""
    print(json.dumps(what), flush=True)


def hold() -> None:
    """Say that everything is loaded, and wait for a line.

    A profiler looks at a process when that maps code. The last library need not be relocated by then: one more mapping
    makes it look again.
    """
    with open(sys.executable, "rb") as code:
        mapped = mmap.PROT_READ | mmap.PROT_EXEC
        # A launcher script is shorter than a page, and Python wants no more than there is.
        length = min(mmap.PAGESIZE, os.fstat(code.fileno()).st_size)
        mmap.mmap(code.fileno(), length, mmap.MAP_PRIVATE, mapped).close()
    say({"ready": True, "pid": os.getpid()})
    sys.stdin.readline()


def tell(truth: dict[str, Any]) -> bool:
    """Say what was done; with STAYS, go on only when told. Whether all is to be done again."""
    say(truth)
    return bool(os.environ.get(STAYS)) and sys.stdin.readline().strip() == AGAIN
