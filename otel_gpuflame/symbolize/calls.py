"""Whether the instruction before a return address can be a call: what tells return addresses from
left-overs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

CALL_BYTES = 7
"""Longest call encoding that has to be seen: FF /2 with SIB byte and 32-bit displacement. Prefixes
come before it.
"""
_U64 = (1 << 64) - 1

CallTarget = Callable[[bytes, int], "int | None"]


def x86_64_call(code: bytes, return_address: int) -> int | None:
    """Where the call that ends `code` goes: its target, 0 for an indirect call, None when no call
    ends there.

    `code` holds the `CALL_BYTES` bytes before `return_address`.
    """
    if len(code) < CALL_BYTES:
        return None
    if any(_is_indirect(code[-size:]) for size in range(2, CALL_BYTES + 1)):
        return 0
    if code[-5] == 0xE8:
        return (return_address + int.from_bytes(code[-4:], "little", signed=True)) & _U64
    return None


def aarch64_call(code: bytes, return_address: int) -> int | None:
    """As `x86_64_call`, for BL, BLR and its authenticated forms BLRAA, BLRAB, BLRAAZ, BLRABZ."""
    if len(code) < 4:
        return None
    word = int.from_bytes(code[-4:], "little")
    if word >> 26 == 0b100101:
        offset = word & 0x3FFFFFF
        offset -= (offset & 0x2000000) << 1
        return (return_address - 4 + offset * 4) & _U64
    plain = word & 0xFFFFFC1F == 0xD63F0000
    authenticated = word & 0xFEFFF800 == 0xD63F0800
    return 0 if plain or authenticated else None


def host_call_target() -> CallTarget:
    """The decoder for this host's processes."""
    return aarch64_call if os.uname().machine == "aarch64" else x86_64_call


def _is_indirect(code: bytes) -> bool:
    """Whether all of `code` is one FF /2 instruction (call through register or memory) without
    prefixes.
    """
    if code[0] != 0xFF or code[1] >> 3 & 7 != 2:
        return False
    mode, base = code[1] >> 6, code[1] & 7
    if mode == 3:
        return len(code) == 2
    size = 2
    if base == 4:
        size += 1
        if len(code) > 2 and code[2] & 7 == 5 and mode == 0:
            return len(code) == size + 4
    elif base == 5 and mode == 0:
        return len(code) == size + 4
    return len(code) == size + (0, 1, 4)[mode]
