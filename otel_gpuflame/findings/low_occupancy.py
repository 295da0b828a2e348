"""Kernels that cannot fill the device by the shape in which they are launched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from otel_gpuflame.events.frames import Frame
from otel_gpuflame.findings.facts import Facts
from otel_gpuflame.findings.model import Confidence, Loss, Rule
from otel_gpuflame.profile.model import KernelUse
from otel_gpuflame.profile.occupancy import Occupancy, occupancy
from otel_gpuflame.profile.top import innermost_python

_MIN_SHARE: Final = 0.10
"""Of the time of all executions."""
_SMALL_GRID: Final = 1 / 8
_FEW_WARPS: Final = 1 / 16
"""4 of 64 warps: one for each scheduler of a multiprocessor. Kernels for tensor cores, which keep data in registers
and shared memory, run well with little more: what these limit is only called low below that."""


_FEW_BY_DESIGN: Final = re.compile(r"^(nccl|nvshmem)|\bspin_kernel\b")
"""Kernels that move data between devices, and those that only let time pass (torch.cuda._sleep)."""


def _find(facts: Facts) -> Iterator[Loss]:
    low: defaultdict[Frame, list[tuple[KernelUse, Occupancy]]] = defaultdict(list)
    for use in facts.kernels:
        bound = occupancy(use)
        if bound is None or _FEW_BY_DESIGN.search(use.frame.name):
            continue
        if _is_low(bound):
            low[use.frame].append((use, bound))
    for frame, uses in low.items():
        time_ns = sum(use.time_ns for use, _ in uses)
        if time_ns < _MIN_SHARE * facts.gpu_time_ns or not facts.gpu_time_ns:
            continue
        use, bound = max(uses, key=lambda item: item[0].time_ns)
        places = facts.gpu_time_by_kernel.get(frame)
        yield Loss(
            place=places.most_common(1)[0][0] if places else innermost_python(()),
            lost_ns=round(sum(each.time_ns * (1 - b.bound) for each, b in uses)),
            evidence=(
                ("kernel", frame.name),
                ("executions", sum(each.executions for each, _ in uses)),
                ("execution_ns", time_ns),
                ("occupancy_bound", round(bound.bound, 4)),
                ("limited_by", bound.limited_by),
                ("grid", "x".join(map(str, use.grid))),
                ("block", "x".join(map(str, use.block))),
                ("registers_per_thread", use.registers_per_thread),
                ("shared_bytes_per_block", use.shared_bytes),
            ),
            confidence=Confidence.MEDIUM if bound.limited_by == "grid" else Confidence.LOW,
        )


def _is_low(found: Occupancy) -> bool:
    limit = _SMALL_GRID if found.limited_by in ("grid", "blocks") else _FEW_WARPS
    return found.bound < limit


LOW_OCCUPANCY: Final = Rule(
    id="low-occupancy",
    title="Low-occupancy kernel",
    remedy="Give the kernel more blocks, or more threads a block: a larger batch, several of them at a time on streams "
    "of their own, or another implementation.",
    find=_find,
)
