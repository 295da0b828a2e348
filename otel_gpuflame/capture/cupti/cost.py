"""What records of executions cost a program while they are made, as a budget counts it.

From paired on/off blocks of 1 s inside one process on an H200 (driver 580.159.04, CUPTI 13.0), throughput with records
over without, median and lower end of the range: training 27,000 kernels/s 1.009 (0.97), decoding 100,000/s 0.936
(0.90), a graph of tiny kernels 480,000/s 0.666 (0.65).
"""

from __future__ import annotations

from typing import Final

RECORD_NS: Final = 1_100
"""Of a program's time, for each record made. Decoding loses 6 to 10 % of its time to 90,000 to 94,000 records/s: 700 to
1,100 ns; the graph a third to 312,000 to 320,000: 1,050 to 1,120 ns. Training, where the device is what limits,
loses less than can be measured, and is charged all the same."""
SWITCH_NS: Final = 16_000_000
"""Switching on or off stalled one step by 2 to 8 ms at most: both, at their worst."""
SHORTEST_NS: Final = 20_000_000
"""A shorter window is not worth opening: that takes 2 to 13 ms."""
GUARD_NS: Final = 5_000_000
"""So long before probes go, the library stops: a launch that it records has been seen by a probe."""
