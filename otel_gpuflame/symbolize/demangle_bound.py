"""How long a mangled name can become. Names come from files of the target, which may be hostile.

In a mangled name `S5_` and `T1_` stand for a part said before, so a name of 200 characters can double its length thirty
times over and take all memory. The bound is computed without a parser, from the tokens alone, and errs upwards.
"""

from __future__ import annotations

import re
from bisect import bisect_left

LONGEST_PER_CHARACTER = 12
"""`x` is "long long", `Dn` "decltype(nullptr)", `C1` the name of the class again."""
LONGEST_ABBREVIATION = 80
"""`Ss` stands for std::basic_string with its template arguments."""

_ABBREVIATION = re.compile(r"S[absiod]")
_TOKEN = re.compile(r"(Dp[OR]?K?(?=T))|(Dp)|([ST])([0-9A-Z]*)_")


class _Back:
    """How long a part can be that is referred to by number: as long as all that was said before its first use."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._lengths: list[int] = []

    def length(self, number: int, so_far: int) -> int:
        at = bisect_left(self._numbers, number)
        if at == len(self._numbers):
            # Parts are numbered in the order in which they end: this and all earlier ones have ended by now.
            self._numbers.append(number)
            self._lengths.append(so_far)
        return self._lengths[at]


def longest_demangled(name: str, limit: int) -> int:
    """An upper bound for the length of the demangled `name`; counting stops once `limit` is passed."""
    back = {"S": _Back(), "T": _Back()}
    length = LONGEST_PER_CHARACTER * len(name)
    length += LONGEST_ABBREVIATION * len(_ABBREVIATION.findall(name))
    end = 0
    for token in _TOKEN.finditer(name):
        _, expansion, kind, digits = token.groups()
        if "E" in name[end : token.start()]:
            # Another list of template arguments may have ended: T_ now stands for one of its members.
            back["T"] = _Back()
        end = token.end()
        if kind:
            number = int(digits, 36) + 1 if digits else 0
            length += back[kind].length(number, length)
        elif expansion:
            # A pattern repeated for each member of a pack; `DpT_` alone is no more than the pack itself.
            length *= len(name)
        if length > limit:
            break
    return length
