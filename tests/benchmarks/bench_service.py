"""Requests a second of the example service with and without span publication, in one process.

The service runs on the fake driver, whose kernels take no time: all of a request is the service's own work, and
publication as large a part of it as it can be. Nothing is exported. One caller: each request is decoded alone, in
NEW_TOKENS steps with a span each, so that all requests do the same. 16 callers: steps are shared, as many as come
together. Blocks in the order A B B A; a pair of blocks is a unit. Callers keep their connections, and each waits for
its answer, so that requests a second are callers over the duration of a request. What is lost is that of typical
requests (`paired.TypicalTerm`): other programs make requests longer, and hardly ever shorter.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import IO, Final, NamedTuple

import numpy as np

from tests.benchmarks import figures, launching
from tests.benchmarks.figures import Figure, figure
from tests.benchmarks.paired import Samples, TypicalTerm, interval_of_sum
from tests.fakes.build import build_fakes, fake_environment

CALLERS: Final = (1, 16)
REQUESTS: Final = 64
"""A caller makes so many in a block if it is alone, else an eighth: a block is 0.1 s of CPU time, and takes several
times as long on a busy machine."""
UNITS: Final = 40
WARM_UP: Final = 2
_DRAWS: Final = 2_000
NEW_TOKENS: Final = 8
BODY: Final = json.dumps({"prompt_tokens": 20, "new_tokens": NEW_TOKENS}).encode()
REQUEST: Final = (
    b"POST /infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    + (b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY))
)


class _Block(NamedTuple):
    """What requests took, in nanoseconds: each of time, and on average of the service's CPU time."""

    wall_ns: Samples
    cpu_ns: float


class _Service:
    """The running service, and what switches it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout
        self.port = int(self._line().rpartition(":")[2])

    def tell(self, what: str) -> int:
        """A command; CPU nanoseconds of the service until then."""
        self._input.write(f"{what}\n")
        self._input.flush()
        return int(self._line())

    def _line(self) -> str:
        line = self._output.readline()
        if not line:
            raise RuntimeError("the service ended: it needs pip install --group examples")
        return line


def measure() -> list[Figure]:
    """Start the service and measure."""
    environment = fake_environment(build_fakes(), FAKE_CUDA_KERNEL_NS="0")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.switched_service"],
        cwd=launching.ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            return asyncio.run(_compare(_Service(process)))
        finally:
            process.kill()


async def _compare(service: _Service) -> list[Figure]:
    return [each for count in CALLERS for each in await _with_callers(service, count)]


async def _with_callers(service: _Service, count: int) -> list[Figure]:
    callers = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(count)]
    for _ in range(WARM_UP):
        await _block(service, callers, "on")
    blocks: dict[str, list[_Block]] = {"off": [], "on": []}
    for unit in range(UNITS):
        for state in ("off", "on") if unit % 2 else ("on", "off"):
            blocks[state].append(await _block(service, callers, state))
    for _, writer in callers:
        writer.close()
    name = f"{count} caller{'s' * (count > 1)}"
    found = [
        figure(
            f"{name}, {state}",
            [1e9 * count / float(np.median(each.wall_ns)) for each in some],
            "requests/s",
        )
        for state, some in blocks.items()
    ]
    found += [
        figure(f"{name}, {state}: CPU", [each.cpu_ns / 1e3 for each in some], "µs/request")
        for state, some in blocks.items()
    ]
    pairs = list(zip(blocks["off"], blocks["on"], strict=True))
    added_us = [(on.cpu_ns - off.cpu_ns) / 1e3 for off, on in pairs]
    found.append(figure(f"{name}: CPU added", added_us, "µs/request", f"{len(pairs)} pairs"))
    on, off = ([each.wall_ns for each in blocks[state]] for state in ("on", "off"))
    lost = interval_of_sum([TypicalTerm(on, off)], draws=_DRAWS)
    note = f"95 %: {100 * lost.low:.1f} to {100 * lost.high:.1f}"
    found.append(
        Figure(name=f"{name}: lost", value=100 * lost.value, unit="% of requests/s", note=note)
    )
    return found


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _block(service: _Service, callers: list[_Connection], state: str) -> _Block:
    each = REQUESTS if len(callers) == 1 else REQUESTS // 8
    before_ns = service.tell(state)
    took_ns = await asyncio.gather(*(_call(*caller, each) for caller in callers))
    wall_ns = np.concatenate(took_ns).astype(np.float64)
    return _Block(wall_ns, (service.tell("?") - before_ns) / len(wall_ns))


async def _call(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int
) -> list[int]:
    """One caller's part of a block: nanoseconds of each request."""
    took_ns = []
    for _ in range(count):
        begin_ns = time.perf_counter_ns()
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(size))
        if len(answer.get("tokens", ())) != NEW_TOKENS:
            raise RuntimeError(f"not the answer to a request: {answer}")
        took_ns.append(time.perf_counter_ns() - begin_ns)
    return took_ns


if __name__ == "__main__":
    figures.main(measure)
