"""Which byte sequences end in a call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.calls import CALL_BYTES, aarch64_call, x86_64_call

AT = 0x401000
INDIRECT = {
    "call *%rax": "ff d0",
    "call *%rdi": "ff d7",
    "call *%r12 (REX)": "41 ff d4",
    "call *(%rax)": "ff 10",
    "call *(%r15) (REX)": "41 ff 17",
    "call *0x10(%rbx)": "ff 53 10",
    "call *-8(%rbp)": "ff 55 f8",
    "call *0x120(%rdx)": "ff 92 20 01 00 00",
    "call *0x1234(%rip)": "ff 15 34 12 00 00",
    "call *(%rsp)": "ff 14 24",
    "call *(%rax,%rbx,8)": "ff 14 d8",
    "call *8(%rsp)": "ff 54 24 08",
    "call *0x100(%rsp)": "ff 94 24 00 01 00 00",
    "call *0x100(,%rax,8)": "ff 14 c5 00 01 00 00",
    "call *0x601000": "ff 14 25 00 10 60 00",
    "call *0x10(%r8,%r9,4) (REX)": "43 ff 54 88 10",
    "notrack call *%rdx": "3e ff d2",
}
OTHERS = {
    "jmp *%rax": "ff e0",
    "push (%rax)": "ff 30",
    "inc %eax": "ff c0",
    "lcall *(%rax)": "ff 18",
    "jmp rel32": "e9 00 01 00 00",
    "ret": "c3",
    "nops": "90 90 90 90 90 90 90",
    "call *8(%rax) without its displacement": "ff 50",
    "call *%rax and a nop": "ff d0 90",
    "call rel32 and a nop": "e8 00 01 00 00 90",
    "call *(%rsp) without its SIB byte": "ff 14",
}


def _before(code: str) -> bytes:
    """The `CALL_BYTES` bytes before a return address, `code` at their end, nops before."""
    return bytes.fromhex(code).rjust(CALL_BYTES, b"\x90")[-CALL_BYTES:]


@pytest.mark.parametrize("code", INDIRECT.values(), ids=INDIRECT)
def test_indirect_calls_have_an_unknown_target(code: str) -> None:
    """Every form of FF /2 that compilers emit counts as a call."""
    assert x86_64_call(_before(code), AT) == 0


@pytest.mark.parametrize("code", OTHERS.values(), ids=OTHERS)
def test_other_instructions_are_no_calls(code: str) -> None:
    """Jumps, pushes and calls that end elsewhere do not count."""
    assert x86_64_call(_before(code), AT) is None


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("e8 00 01 00 00", AT + 0x100),
        ("e8 fb ff ff ff", AT - 5),
        ("67 e8 00 00 00 00", AT),
        ("e8 00 00 00 80", (AT - (1 << 31)) % (1 << 64)),
    ],
)
def test_direct_calls_tell_their_target(code: str, target: int) -> None:
    """E8 counts from the return address, forwards and backwards, with a prefix or without."""
    assert x86_64_call(_before(code), AT) == target


@pytest.mark.parametrize(
    ("word", "target"),
    [
        (0x94000040, AT - 4 + 0x100),
        (0x97FFFFFF, AT - 8),
        (0xD63F0100, 0),
        (0xD63F09FF, 0),
        (0xD73F0911, 0),
        (0x14000040, None),
        (0xD61F0100, None),
        (0xD65F03C0, None),
        (0xD503201F, None),
    ],
    ids=["bl", "bl back", "blr x8", "blraaz", "blraa", "b", "br", "ret", "nop"],
)
def test_arm64_calls(word: int, target: int | None) -> None:
    """BL tells its target, BLR and its authenticated forms do not, branches without link do not count."""
    assert aarch64_call(word.to_bytes(4, "little"), AT) == target


@given(st.binary(max_size=12), st.integers(0, (1 << 64) - 1))
def test_any_bytes_are_decoded(code: bytes, address: int) -> None:
    """The answer is None or an address, whatever stands in memory."""
    for decode in (x86_64_call, aarch64_call):
        target = decode(code[-CALL_BYTES:], address)
        assert target is None or 0 <= target < 1 << 64
