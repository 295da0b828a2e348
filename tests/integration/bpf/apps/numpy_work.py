# SPDX-License-Identifier: Apache-2.0
"""Threads that are somewhere in NumPy, OpenBLAS, libc or the interpreter, until standard input ends."""

from __future__ import annotations

import json
import re
import sys
import threading
import time

import numpy as np


def work() -> None:
    """All kinds of code, none of it built with frame pointers."""
    matrix = np.random.default_rng(0).random((300, 300))
    while True:
        matrix @ matrix
        np.linalg.svd(matrix[:40, :40])
        np.sort(matrix.ravel())
        sorted(range(5000), key=lambda number: -number)
        json.loads(json.dumps(list(range(2000))))
        re.sub("a+b", "c", "aaab" * 2000)
        time.sleep(0.001)


def main() -> None:
    """Two threads of work beside those of OpenBLAS."""
    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
