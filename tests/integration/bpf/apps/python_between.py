# SPDX-License-Identifier: Apache-2.0
"""Target program: Python calls C, which calls Python, which waits for the GPU. The library is loaded after `--hold`."""

from __future__ import annotations

import ctypes
import os
from itertools import count

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def called_back(cuda: FakeCuda) -> None:
    """Called by the C library."""
    cuda.synchronize()


def begin(library: ctypes.CDLL, cuda: FakeCuda) -> None:
    """Calls the C library."""
    function = ctypes.CFUNCTYPE(None)(lambda: called_back(cuda))
    library.call_back(function, 40)


def main() -> None:
    """Wait in rounds, each said when it is over, until somebody ends the program."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("library")
    parser.add_argument("--fork", action="store_true", help="go on in a child")
    options = parser.parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    library = ctypes.CDLL(options.library)
    if options.fork and (child := os.fork()):
        os.waitpid(child, 0)
        return
    for number in count():
        begin(library, cuda)
        app_common.emit({"round": number})


if __name__ == "__main__":
    app_common.run(main)
