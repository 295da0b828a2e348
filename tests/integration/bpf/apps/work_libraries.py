# SPDX-License-Identifier: Apache-2.0
"""Target program: waits in functions of C libraries; the file of the first may be replaced by the second meanwhile."""

from __future__ import annotations

import ctypes
import os

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def wait_in(library: ctypes.CDLL) -> None:
    """`work` of a library, which waits for the GPU."""
    assert library.work(7) == 0


def first(library: ctypes.CDLL) -> None:
    """Before the file is replaced."""
    wait_in(library)


def mapped_before(library: ctypes.CDLL) -> None:
    """In the library that was mapped before its file was replaced."""
    wait_in(library)


def mapped_after(library: ctypes.CDLL) -> None:
    """In the one that stands in its place."""
    wait_in(library)


def main() -> None:
    """LIBRARY [--replace-by OTHER]: wait in each."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("library")
    parser.add_argument("--replace-by")
    options = parser.parse_args()
    cuda = FakeCuda()
    cuda.launch(app_common.KERNEL)
    library = ctypes.CDLL(options.library)
    app_common.hold(options)
    first(library)
    if options.replace_by:
        app_common.emit({"replaced": False})
        os.replace(options.replace_by, options.library)
        mapped_before(library)
        # The loader takes an equal name for the library that it has.
        folder, name = os.path.split(options.library)
        mapped_after(ctypes.CDLL(f"{folder}/./{name}"))
    app_common.emit({"pid": os.getpid()})


if __name__ == "__main__":
    app_common.run(main)
