"""Letting go of links: the kernel waits some 80 ms for each until no CPU runs its program, so they go together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_MAX_THREADS: Final = 64
"""A capture has some 15 links and one a CPU, or 134 probes where the kernel takes only one a link."""

Detacher = Callable[[], None]


def detach_together(detachers: Collection[Detacher]) -> None:
    """Run all, in threads; returns when all are done. The first error that one of them raises comes out."""
    if len(detachers) < 2:
        for detach in detachers:
            detach()
        return
    with ThreadPoolExecutor(min(len(detachers), _MAX_THREADS), "otel-gpuflame-detach") as pool:
        for done in [pool.submit(detach) for detach in detachers]:
            done.result()
