"""Our tables say what pyelftools decodes, for the files that stacks go through."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from elftools.dwarf.callframe import FDE, CFARule, RegisterRule
from elftools.elf.elffile import ELFFile

from otel_gpuflame.events.wire import RuleKind
from otel_gpuflame.symbolize.unwind.table import build_table
from tests.unit.symbolize.unwind_files import eh_frame_of, interpreter, mapped_library, rule_at

_MAX_FUNCTIONS = 1500
"""Compared of each file; pyelftools takes 1 ms for each."""
_NOTHING = (RuleKind.NONE, 0, 0)
_ARGS_SIZE = 0x2E
_RSP, _RBP, _RETURN_ADDRESS = 7, 6, 16


def _saved_fp(row: dict[Any, Any]) -> int | str | None:
    """Words from the CFA down to the saved rbp, 0 where it is unchanged; None where a row cannot say it."""
    rule = row.get(_RBP)
    if rule is None or rule.type in (RegisterRule.SAME_VALUE, RegisterRule.UNDEFINED):
        return 0
    if rule.type == RegisterRule.OFFSET:
        return -rule.arg // 8
    return "at rbp" if rule.type == RegisterRule.EXPRESSION and rule.arg == [0x76, 0] else None


def _expected(row: dict[Any, Any], *, is_signal: bool) -> tuple[RuleKind, int, int]:
    from_place = row.get(_RETURN_ADDRESS)
    if is_signal:
        return RuleKind.SIGNAL, 0, 0
    if from_place is not None and from_place.type == RegisterRule.UNDEFINED:
        return RuleKind.END, 0, 0
    if from_place is None or from_place.type != RegisterRule.OFFSET or from_place.arg != -8:
        return _NOTHING
    return _expected_cfa(row["cfa"], _saved_fp(row))


def _expected_cfa(cfa: CFARule, saved: int | str | None) -> tuple[RuleKind, int, int]:
    if cfa.expr is not None:
        expression = list(cfa.expr)
        if expression[:6] == [0x77, 8, 0x80, 0, 0x3F, 0x1A]:
            return RuleKind.PLT, expression[6] - 0x30, 0
        if expression[0] == 0x76 and expression[-1] == 6 and saved == "at rbp":
            return RuleKind.ALIGNED, (-expression[1] & 0x7F) // 8, 0
        return _NOTHING
    if cfa.reg not in (_RSP, _RBP) or not isinstance(saved, int) or cfa.offset % 8:
        return _NOTHING
    return RuleKind.SP if cfa.reg == _RSP else RuleKind.FP, cfa.offset // 8, saved


class TestAgreement:
    @pytest.mark.parametrize("name", ["libc.so", "libstdc++", "libscipy_openblas", "python"])
    def test_agrees_with_pyelftools(self, name: str) -> None:
        path: Path = interpreter() if name == "python" else mapped_library(name)
        table = build_table(eh_frame_of(path))
        assert not table.counts.malformed
        with path.open("rb") as file:
            functions = [
                e for e in ELFFile(file).get_dwarf_info().EH_CFI_entries() if isinstance(e, FDE)
            ]
            step = len(functions) // _MAX_FUNCTIONS + 1
            seen: Counter[RuleKind] = Counter()
            for entry in functions[::step]:
                start, end = (
                    entry["initial_location"],
                    entry["initial_location"] + entry["address_range"],
                )
                is_signal = b"S" in entry.cie["augmentation"]
                # Says nothing about registers, and pyelftools refuses it.
                entry.instructions = [
                    each for each in entry.instructions if each.opcode != _ARGS_SIZE
                ]
                rows = {row["pc"]: row for row in entry.get_decoded().table}
                for pc in sorted(rows):
                    if not start <= pc < end:
                        continue
                    found = rule_at(table, pc)
                    assert found == _expected(rows[pc], is_signal=is_signal), f"{path}+{pc:#x}"
                    seen[found[0]] += 1
        assert sum(seen.values()) >= len(functions) // step
        if name == "libc.so":
            assert {
                RuleKind.SP,
                RuleKind.FP,
                RuleKind.PLT,
                RuleKind.SIGNAL,
                RuleKind.END,
            } <= seen.keys()
