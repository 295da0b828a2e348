"""What rows say of instructions, and that nothing which a section holds can do harm."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.events.wire import RuleKind
from otel_gpuflame.symbolize.elf import ElfError, MemoryBytes, read_headers
from otel_gpuflame.symbolize.unwind.eh_frame import EhFrame, read_eh_frame
from otel_gpuflame.symbolize.unwind.table import UnwindCounts, UnwindTable, build_table
from tests.unit.symbolize.unwind_files import (
    CODE_START,
    SECTION,
    common,
    eh_frame_of,
    entry,
    function,
    mapped_library,
    rules_of,
    section_of,
)

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "otel_gpuflame" / "symbolize" / "unwind"
NONE, SP, FP = RuleKind.NONE, RuleKind.SP, RuleKind.FP
PUSH_RBP = bytes([0x41, 0x0E, 16, 0x86, 2])
"""After 1 byte: CFA = rsp + 16, rbp at CFA - 16."""
FUNCTION = (CODE_START, 0x100)


def one(code: bytes, *, cie: bytes = b"") -> list[tuple[int, RuleKind, int, int]]:
    """Rows of one function at the beginning of the code, without that behind its end."""
    *rows, last = rules_of(section_of((*FUNCTION, code), cie=cie))
    assert last[1:] == (NONE, 0, 0)
    return rows


_LIBC = eh_frame_of(mapped_library("libc.so"))
_IMAGE = mapped_library("libc.so").read_bytes()


def counts_of(data: bytes) -> UnwindCounts:
    """What is counted of a section."""
    return build_table(replace(section_of(), data=data)).counts


def check_sane(table: UnwindTable, section: EhFrame) -> None:
    """What the search in BPF relies on."""
    addresses = table.rows["address"].astype(np.int64)
    assert addresses[0] == 0
    assert (np.diff(addresses) > 0).all()
    assert addresses[-1] <= section.code_end - section.code_start
    assert table.rows["rule"][-1] == NONE


class TestRules:
    def test_a_frame_pointer_is_set_up_and_given_up(self) -> None:
        code = PUSH_RBP + bytes([0x43, 0x0D, 6, 0x60, 0x0C, 7, 8, 0xC6])
        at = CODE_START
        assert one(code) == [
            (at, SP, 1, 0),
            (at + 1, SP, 2, 2),
            (at + 4, FP, 2, 2),
            (at + 36, SP, 1, 0),
        ]

    def test_a_remembered_state_comes_back(self) -> None:
        code = PUSH_RBP + bytes([0x0A, 0x41, 0x0C, 7, 8, 0x41, 0x0B])
        assert [row[1:] for row in one(code)] == [(SP, 1, 0), (SP, 2, 2), (SP, 1, 2), (SP, 2, 2)]

    def test_places_with_one_rule_have_one_row(self) -> None:
        assert one(bytes([0x41, 0x83, 3, 0x41, 0x83, 4])) == [(CODE_START, SP, 1, 0)]

    def test_a_stack_that_is_aligned(self) -> None:
        code = bytes([0x45, 0x0F, 3, 0x76, 0x78, 6, 0x10, 6, 2, 0x76, 0])
        assert one(code)[-1] == (CODE_START + 5, RuleKind.ALIGNED, 1, 0)

    @pytest.mark.parametrize("literal", [10, 11])
    def test_the_linkers_expression_for_bound_calls(self, literal: int) -> None:
        expression = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x30 + literal, 0x2A, 0x33, 0x24, 0x22])
        assert one(bytes([0x0F, len(expression)]) + expression) == [
            (CODE_START, RuleKind.PLT, literal, 0)
        ]

    def test_an_unknown_expression_is_said_to_be_unknown(self) -> None:
        section = section_of((*FUNCTION, bytes([0x0F, 2, 0x70, 0])))
        assert [rule[1] for rule in rules_of(section)] == [NONE]
        assert build_table(section).counts.unsupported == 1

    def test_a_signal_frame(self) -> None:
        cie = common(augmentation=b"zRS")
        assert one(b"", cie=cie) == [(CODE_START, RuleKind.SIGNAL, 0, 0)]

    def test_the_outermost_function(self) -> None:
        assert one(bytes([0x07, 16])) == [(CODE_START, RuleKind.END, 0, 0)]

    @pytest.mark.parametrize(
        "code",
        [
            bytes([0x0C, 10, 0]),  # CFA in r10
            bytes([0x0C, 7, 12]),  # not a multiple of 8
            bytes([0x13, 0x08]),  # CFA below rsp
            bytes([0x09, 16, 5]),  # return address in a register
            bytes([0x80 | 16, 2]),  # return address elsewhere
            bytes([0x86, 0xFF, 0xFF, 0x7F]),  # rbp far away
            bytes([0x10, 6, 2, 0x77, 0]),  # rbp by an expression
            bytes([0x0E, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),  # a frame of 32 GiB
        ],
    )
    def test_what_a_row_cannot_say_is_none(self, code: bytes) -> None:
        assert one(code) == []

    def test_nothing_is_known_between_functions(self) -> None:
        section = section_of((CODE_START + 0x10, 0x10, b""), (CODE_START + 0x40, 0x10, b""))
        kinds = [(address - CODE_START, kind) for address, kind, *_ in rules_of(section)]
        assert kinds == [(0, NONE), (0x10, SP), (0x20, NONE), (0x40, SP), (0x50, NONE)]

    def test_functions_are_sorted_and_neighbours_share_a_row(self) -> None:
        section = section_of((CODE_START + 0x20, 0x20, b""), (CODE_START, 0x20, b""))
        assert rules_of(section) == [(CODE_START, SP, 1, 0), (CODE_START + 0x40, NONE, 0, 0)]

    def test_behind_a_malformed_instruction_nothing_is_known(self) -> None:
        code = PUSH_RBP + b"\x41\x3f"
        assert one(code) == [(CODE_START, SP, 1, 0), (CODE_START + 1, SP, 2, 2)]

    def test_addresses_relative_to_where_they_stand(self) -> None:
        cie = common(data=b"\x1b")
        here = SECTION + len(cie) + 8
        data = cie + function(len(cie), (CODE_START - here) & 0xFFFFFFFF, 16)
        assert rules_of(replace(section_of(), data=data))[0] == (CODE_START, SP, 1, 0)


class TestLosses:
    def test_losses_are_counted(self) -> None:
        cie = common()

        def after(*more: bytes) -> UnwindCounts:
            return counts_of(cie + b"".join(more))

        at = len(cie)
        good = function(at, CODE_START, 16)
        assert after(good) == UnwindCounts(1, 0, 0, 0, 0)
        assert after(function(at, 0x10, 16)).outside == 1
        assert after(function(at, CODE_START, 0)).outside == 1
        assert after(function(at, CODE_START, 1 << 30)).outside == 1
        assert after(good, function(at + len(good), CODE_START + 8, 16)).overlapping == 1
        assert after(function(at, CODE_START, 16, b"\x3f")).malformed == 1
        assert after(function(at, CODE_START, 16, b"\x0b")).malformed == 1, "nothing was remembered"
        assert after(function(at, CODE_START, 16, b"\x0a" * 40)).malformed == 1, (
            "too much remembered"
        )
        assert after(struct.pack("<I", 1 << 20)).malformed == 1
        assert after(struct.pack("<I", 0xFFFFFFFF)).malformed == 1
        assert after(entry(struct.pack("<I", 12345))).malformed == 1, "refers to no CIE"
        assert counts_of(common(augmentation=b"zQ")).malformed == 1
        assert counts_of(common(augmentation=b"eh")).malformed == 1
        assert after(bytes(4), function(at + 4, CODE_START, 16)).functions == 1


class TestHostileInput:
    @settings(deadline=None, max_examples=300)
    @given(
        st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=40),
        st.integers(0, 1 << 20),
    )
    def test_corrupted_sections_do_no_harm(self, changes: list[tuple[int, int]], cut: int) -> None:
        section = _LIBC
        data = bytearray(section.data)
        for position, value in changes:
            data[position % len(data)] = value
        damaged = replace(section, data=bytes(data[: len(data) - cut % len(data)]))
        check_sane(build_table(damaged), damaged)

    @settings(deadline=None, max_examples=300)
    @given(st.binary(max_size=400), st.binary(max_size=60))
    def test_any_instructions_do_no_harm(self, code: bytes, initial: bytes) -> None:
        section = section_of((*FUNCTION, code[:200]), cie=common(initial=initial))
        check_sane(build_table(section), section)
        anything = replace(section, data=code)
        check_sane(build_table(anything), anything)

    @settings(deadline=None, max_examples=200)
    @given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=20))
    def test_corrupted_headers_are_refused_or_read(self, changes: list[tuple[int, int]]) -> None:
        image = bytearray(_IMAGE)
        for position, value in changes:
            image[position] = value
        data = MemoryBytes(bytes(image))
        try:
            section = read_eh_frame(data, read_headers(data))
        except ElfError:
            return
        check_sane(build_table(section), section)

    def test_sanitizers_find_nothing_in_damaged_sections(self, tmp_path: Path) -> None:
        (tmp_path / "section").write_bytes(_LIBC.data)
        command = [
            "cc",
            "-std=c11",
            "-O1",
            "-g",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover",
        ]
        sources = [str(SOURCES / f"{name}.c") for name in ("table", "section", "cfi")]
        program = tmp_path / "fuzz"
        subprocess.run(
            [
                *command,
                f"-I{ROOT / 'bpf' / 'include'}",
                "-o",
                str(program),
                str(Path(__file__).parent / "unwind_fuzz.c"),
                *sources,
            ],
            check=True,
        )
        numbers = [str(each) for each in (_LIBC.address, _LIBC.code_start, _LIBC.code_end)]
        result = subprocess.run(
            [str(program), str(tmp_path / "section"), *numbers],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-4000:]
        assert int(result.stdout.split()[0]) > 1000, (
            "damaged sections that still had malformed entries"
        )
