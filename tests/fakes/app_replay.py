"""Target program: makes the driver calls of a transcript again, and prints how many there were."""

from __future__ import annotations

import os

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda


def main() -> None:
    """Replay and print the driver's own counters."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("transcript", help="file in the format that README.md describes")
    options = parser.parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    cuda.replay(options.transcript)
    app_common.emit({"pid": os.getpid(), "counters": app_common.counter_dict(cuda)})


if __name__ == "__main__":
    app_common.run(main)
