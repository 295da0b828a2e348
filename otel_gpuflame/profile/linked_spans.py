"""How many spans a process may have in a profile: each one multiplies its samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.groups import Groups, runs

_TGID_SHIFT: Final = np.uint64(32)
_LINK_WORDS: Final = 3


@dataclass(slots=True)
class LinkedSpans:
    """The spans that each process has in one window. Those that come first stay; of one batch, any."""

    by_process: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)

    def limit(
        self, groups: Groups, link_column: int, most: int
    ) -> tuple[Groups, NDArray[np.bool_]]:
        """Groups without the links of spans beyond `most` of their process, and which ones have lost theirs.

        Args:
            groups: with the process id in the upper half of the first column of their keys.
            link_column: the first of the three columns with the link (`link_columns`).
            most: spans a process.
        """
        keys = groups.keys
        over = np.zeros(len(keys), np.bool_)
        linked = np.flatnonzero(keys[:, link_column + _LINK_WORDS - 1])
        if not len(linked):
            return groups, over
        spans = np.empty((1 + _LINK_WORDS, len(linked)), np.uint64).T
        spans[:, 0] = keys[linked, 0] >> _TGID_SHIFT
        spans[:, 1:] = keys[linked, link_column : link_column + _LINK_WORDS]
        order, starts = runs(spans)
        stays = [
            self._has_room(process, tuple(link), most)
            for process, *link in spans[order[starts]].tolist()
        ]
        lengths = np.diff(np.append(starts, len(linked)))
        over[linked[order]] = ~np.repeat(np.array(stays), lengths)
        if not over.any():
            return groups, over
        keys = keys.copy(order="K")
        keys[over, link_column : link_column + _LINK_WORDS] = 0
        return Groups(keys, groups.sums), over

    def _has_room(self, process: int, link: tuple[int, ...], most: int) -> bool:
        known = self.by_process.setdefault(process, set())
        if link in known:
            return True
        if len(known) >= most:
            return False
        known.add(link)
        return True
