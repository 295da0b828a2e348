# SPDX-License-Identifier: Apache-2.0
"""Target program: waits in one function, then becomes a program whose other function may get its address."""

from __future__ import annotations

import os
import sys

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda

KERNEL_NS = 10_000_000
SOURCE = "def {name}(cuda):\n    cuda.launch({kernel!r})\n    cuda.synchronize()\n"
NAMES = ("in_program_1", "in_program_2")


def main() -> None:
    """The program's number is its argument, 1 or 2; both are otherwise the same."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("number", type=int)
    options = parser.parse_args()
    number = options.number
    cuda = FakeCuda()
    cuda.set_duration_ns(app_common.KERNEL, KERNEL_NS)
    namespace: dict[str, object] = {}
    source = SOURCE.format(name=NAMES[number - 1], kernel=app_common.KERNEL)
    exec(compile(source, NAMES[number - 1], "exec"), namespace)
    function = namespace[NAMES[number - 1]]
    app_common.hold(options)
    assert callable(function)
    function(cuda)
    app_common.emit({"pid": os.getpid()})
    if number == 1:
        held = ["--hold"] if options.hold else []
        os.execv(sys.executable, [sys.executable, __file__, "2", *held])


if __name__ == "__main__":
    app_common.run(main)
