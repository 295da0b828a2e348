# SPDX-License-Identifier: Apache-2.0
"""Target program: every launch function with sizes and a stream of its own."""

from __future__ import annotations

import ctypes
import os

from tests.fakes import app_common
from tests.fakes.cuda_driver import STREAM_NON_BLOCKING, FakeCuda
from tests.fakes.cuda_layouts import LaunchConfig

APIS = (
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
)
SHARED_BYTES = 48


def launch(cuda: FakeCuda, api: str, number: int) -> dict[str, object]:
    """One launch; what was passed."""
    name = f"kernel_{number}"
    function, stream = cuda.function(name), cuda.create_stream(STREAM_NON_BLOCKING)
    grid = (100 + number, 200 + number, 300 + number)
    block = (1 + number, 2 + number, 3 + number)
    handles = ctypes.c_void_p(stream), ctypes.c_void_p(function)
    if "Ex" in api:
        config = LaunchConfig(grid=grid, block=block, shared_bytes=SHARED_BYTES, stream=handles[0])
        cuda.call(api, ctypes.byref(config), handles[1], None, None)
    else:
        # Only cuLaunchKernel has a last argument `extra`; a callee ignores one too many.
        cuda.call(api, handles[1], *grid, *block, SHARED_BYTES, handles[0], None, None)
    return {
        "api": api.removesuffix("_ptsz"),
        "name": name,
        "function": function,
        "stream": stream,
        "grid": grid,
        "block": block,
    }


def main() -> None:
    """Launch with each function and print the truth."""
    options = app_common.parser(__doc__ or "").parse_args()
    cuda = FakeCuda()
    app_common.hold(options)
    launches = [launch(cuda, api, number) for number, api in enumerate(APIS)]
    app_common.emit({"pid": os.getpid(), "launches": launches})


if __name__ == "__main__":
    app_common.run(main)
