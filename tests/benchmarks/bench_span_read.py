"""What reading the published span adds to a recorded launch: the record, its ids and the local root, in BPF.

One process publishes a span and launches in a loop on the fake driver; blocks in which BPF is told where the record
lies alternate with such in which it is not, all else equal. Each launch of the first must have its span, and none of
the others. CPU time of the thread, in which the probe runs, so that it does not matter who else wants the processor.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import figures, launching
from tests.benchmarks.bench_probe import RECORDED, SPANLESS, Session
from tests.benchmarks.figures import Figure, figure

ROUNDS = 60
BLOCK_CALLS = 20_000
PYTHON_DEPTH = 2


def measure() -> list[Figure]:
    """Nanoseconds a launch."""
    times: dict[str, list[float]] = {SPANLESS: [], RECORDED: []}
    with launching.launcher(*launching.python_loop(PYTHON_DEPTH, "--span")) as launcher:
        launcher.launch(1)
        session = Session(launcher)
        try:
            for round_number in range(-1, ROUNDS):
                for state in (SPANLESS, RECORDED) if round_number % 2 else (RECORDED, SPANLESS):
                    before_ns = _cpu_ns(launcher.pid)
                    session.block(state, BLOCK_CALLS)
                    took_ns = (_cpu_ns(launcher.pid) - before_ns) / BLOCK_CALLS
                    if session.with_span != (BLOCK_CALLS if state is RECORDED else 0):
                        raise RuntimeError(f"{state}: {session.with_span} launches had a span")
                    if round_number >= 0:
                        times[state].append(took_ns)
        finally:
            session.close()
    added = [on - off for off, on in zip(times[SPANLESS], times[RECORDED], strict=True)]
    return [
        figure("a recorded launch without reading a span", times[SPANLESS], "ns CPU"),
        figure("a recorded launch with its span", times[RECORDED], "ns CPU"),
        figure("added by reading the span", added, "ns CPU"),
    ]


def _cpu_ns(pid: int) -> int:
    """What the process's first thread has had, up to its last wait."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    figures.main(measure)
