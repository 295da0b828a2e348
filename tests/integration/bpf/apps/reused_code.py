# SPDX-License-Identifier: Apache-2.0
"""Target program: makes functions with exec(), each where the one before it was, and launches in them."""

from __future__ import annotations

import os

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

FUNCTIONS = 5


def launch_in_new_function(cuda: FakeCuda, number: int) -> int:
    """Launch in a function of its own; the address of its code, which is free for the next one afterwards."""
    namespace = {"KERNEL": app_common.KERNEL}
    exec(f"def generated_{number}(cuda):\n    cuda.launch(KERNEL)\n", namespace)
    function = namespace.pop(f"generated_{number}")
    address = id(function.__code__)
    function(cuda)
    # Here it stays until its frames have been read (steps.py).
    app_common.emit({"number": number})
    return address


def main() -> None:
    """Print how many places the functions had."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    # The first one finds the heap in another state than all others.
    launch_in_new_function(cuda, 0)
    addresses = [launch_in_new_function(cuda, number) for number in range(1, FUNCTIONS + 1)]
    app_common.emit({"pid": os.getpid(), "places": len(set(addresses)), "functions": FUNCTIONS})


if __name__ == "__main__":
    app_common.run(main)
