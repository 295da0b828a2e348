# SPDX-License-Identifier: Apache-2.0
"""Target program: launches from many different stacks, in a burst and then one by one."""

from __future__ import annotations

import os

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def launch_at_depth(cuda: FakeCuda, depth: int) -> None:
    """A launch whose stack has `depth` more frames of this function."""
    if depth:
        launch_at_depth(cuda, depth - 1)
    else:
        cuda.launch(app_common.KERNEL)


def main() -> None:
    """Launch at every depth at once, and say so; with --again then once more, each launch a step of its own."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("depths", type=int)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    for one_by_one in (False, True) if options.again else (False,):
        for depth in range(options.depths):
            launch_at_depth(cuda, depth)
            if one_by_one:
                app_common.emit({"depth": depth})
        app_common.emit({"pid": os.getpid(), "launches": cuda.counters().launches})


if __name__ == "__main__":
    app_common.run(main)
