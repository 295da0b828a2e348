"""One "model" on a CUDA device, by the driver alone: no PyTorch is needed to see how spans reach the GPU."""

from __future__ import annotations

import ctypes
import sys

NO_DRIVER = "inference: libcuda.so.1 is not found: a CUDA driver is needed (tests/fakes has a double of one)"

BUFFER_BYTES = 1 << 20
THREADS = 256

# Keeps one block busy for `rounds` steps of a sum, and writes it, so that nothing is optimised away.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
"""
KERNEL = b"""
.visible .entry %s(.param .u64 sums, .param .u32 rounds)
{
    .reg .pred %%more;
    .reg .f32 %%sum;
    .reg .b32 %%round, %%rounds, %%thread;
    .reg .b64 %%sums, %%offset;
    ld.param.u64 %%sums, [sums];
    ld.param.u32 %%rounds, [rounds];
    mov.u32 %%thread, %%tid.x;
    cvt.rn.f32.u32 %%sum, %%thread;
    mov.u32 %%round, 0;
again:
    fma.rn.f32 %%sum, %%sum, 0f3F7FFFFE, 0f3F800000;
    add.u32 %%round, %%round, 1;
    setp.lt.u32 %%more, %%round, %%rounds;
    @%%more bra again;
    mul.wide.u32 %%offset, %%thread, 4;
    add.u64 %%sums, %%sums, %%offset;
    st.global.f32 [%%sums], %%sum;
    ret;
}
"""


class Device:
    """The first CUDA device, with the model's kernels. `bind_thread` first in each thread."""

    def __init__(self, kernels: tuple[str, ...]) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            sys.exit(NO_DRIVER)
        self._call("cuInit", 0)
        self._context = self._created("cuDevicePrimaryCtxRetain", 0)
        self.bind_thread()
        source = PTX + b"".join(KERNEL % name.encode() for name in kernels)
        module = self._created("cuModuleLoadData", source)
        self._kernels = {
            name: self._created("cuModuleGetFunction", module, name.encode()) for name in kernels
        }
        self._buffer = self._created("cuMemAlloc_v2", ctypes.c_size_t(BUFFER_BYTES))
        self._stream = self._created("cuStreamCreate", 1)

    def bind_thread(self) -> None:
        """Make the device usable in the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def upload(self, data: bytes) -> None:
        """Copy to the device, and wait for it."""
        self._call("cuMemcpyHtoD_v2", self._buffer, data, ctypes.c_size_t(len(data)))

    def launch(self, kernel: str, rounds: int) -> None:
        """Start a kernel; the time it takes grows with `rounds`."""
        arguments = ctypes.c_void_p(self._buffer.value), ctypes.c_uint32(rounds)
        pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, arguments))
        grid, block = (1, 1, 1), (THREADS, 1, 1)
        function = self._kernels[kernel]
        self._call("cuLaunchKernel", function, *grid, *block, 0, self._stream, pointers, None)

    def synchronize(self) -> None:
        """Wait for all that was started."""
        self._call("cuStreamSynchronize", self._stream)

    def _created(self, api: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(api, ctypes.byref(handle), *arguments)
        return handle

    def _call(self, api: str, *arguments: object) -> None:
        code = getattr(self._cuda, api)(*arguments)
        if code != 0:
            raise RuntimeError(f"{api} failed with CUDA error {code}")
