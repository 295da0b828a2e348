"""A kernel of Triton's, compiled and launched by Triton: 20 times from one line."""

from __future__ import annotations

import sys

import triton
import triton.language as tl

from tests.fakes import steps

LAUNCHES = 20


class Buffer:
    """What Triton asks of a tensor."""

    dtype = "fp32"

    def data_ptr(self) -> int:
        """An address, which nobody looks at."""
        return 1 << 40


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803 - as Triton has it
    """In place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def step(buffer: Buffer) -> int:
    """Launch it; the line of the launch."""
    line = sys._getframe().f_lineno + 1
    add_one[(4,)](buffer, 1024, BLOCK=256)
    return line


def main() -> None:
    """Print the truth."""
    lines = {step(Buffer()) for _ in range(LAUNCHES)}
    steps.tell({"launches": LAUNCHES, "line": lines.pop(), "kernel": add_one.__name__})


if __name__ == "__main__":
    main()
