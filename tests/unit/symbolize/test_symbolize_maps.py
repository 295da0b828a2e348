"""Parsing /proc/PID/maps and finding addresses in it."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.maps import MAX_MAPPINGS, AddressMap, parse_maps, read_maps

TEXT = b"""\
00400000-00452000 r-xp 00000000 08:02 173521                             /usr/bin/program
00651000-00652000 r--p 00051000 08:02 173521                             /usr/bin/program
7f0000000000-7f0000001000 r-xp 00002000 fe:00 12 /tmp/with blank (deleted)
7f0000001000-7f0000002000 rwxp 00000000 00:00 0 \n\
7f0000003000-7f0000004000 r-xs 00000000 00:01 2048                       /memfd:jit (deleted)
7f0000004000-7f0000005000 --xp 00000000 00:00 0                          [uprobes]
7f0000005000-7f0000006000 r-xp 00000000 00:00 0                          [anon:code]
7f0000006000-7f0000007000 r-xp 00000000 08:02 5                          /tmp/new\\012line
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def test_executable_mappings_are_kept_with_their_fields() -> None:
    """Ranges, offsets, devices and paths of all kinds of mappings; data mappings are left out."""
    mappings = parse_maps(TEXT)
    assert [(each.path, each.deleted) for each in mappings] == [
        ("/usr/bin/program", False),
        ("/tmp/with blank", True),
        ("", False),
        ("/memfd:jit", True),
        ("[uprobes]", False),
        ("[anon:code]", False),
        ("/tmp/new\nline", False),
        ("[vdso]", False),
        ("[vsyscall]", False),
    ]
    assert [each.is_file for each in mappings] == [1, 1, 0, 1, 0, 0, 1, 0, 0]
    assert [each.is_kernel_page for each in mappings] == [0, 0, 0, 0, 1, 0, 0, 1, 1]
    assert [each.is_uprobes for each in mappings] == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    second = mappings[1]
    assert (second.start, second.end, second.offset) == (0x7F0000000000, 0x7F0000001000, 0x2000)
    assert (second.device, second.inode, second.text) == (
        "fe:00",
        12,
        "7f0000000000-7f0000001000",
    )


def test_addresses_are_found_between_start_and_end() -> None:
    """The start belongs to a mapping, the end does not, holes belong to none."""
    maps = AddressMap(parse_maps(TEXT))
    paths = {
        0x3FFFFF: None,
        0x400000: "/usr/bin/program",
        0x451FFF: "/usr/bin/program",
        0x452000: None,
        0x7F0000000FFF: "/tmp/with blank",
        0x7F0000001000: "",
        0x7F0000002000: None,
        0: None,
        -1: None,
        (1 << 64) - 1: None,
    }
    for address, path in paths.items():
        found = maps.find(address)
        assert (None if found is None else found.path) == path, hex(address)


def test_damaged_lines_are_skipped() -> None:
    """A line that is cut, reversed or not a mapping does not hide the others."""
    good = TEXT.splitlines()[0]
    text = b"\n".join(
        [b"00400000-0045", b"5000-4000 r-xp 0 0:0 0", b"\xff\xfe", b"-", good[:30], good]
    )
    assert [each.path for each in parse_maps(text)] == ["/usr/bin/program"]


def test_the_number_of_mappings_is_bounded() -> None:
    """A process cannot make its reader keep more than the limit."""
    line = b"%x000-%x000 r-xp 0 0:0 0\n"
    text = b"".join(line % (number, number + 1) for number in range(1, MAX_MAPPINGS + 10))
    assert len(parse_maps(text)) == MAX_MAPPINGS


@given(st.binary(max_size=400) | st.lists(st.sampled_from(TEXT.splitlines())).map(b"\n".join))
def test_any_text_is_parsed(text: bytes) -> None:
    """Whatever the text, the result is a list of non-empty ranges."""
    for mapping in parse_maps(text):
        assert mapping.start < mapping.end
        assert AddressMap([mapping]).find(mapping.start) == mapping


def test_a_live_process_has_its_program_mapped() -> None:
    """The real file is understood."""
    maps = read_maps(os.getpid(), Path("/proc"))
    assert maps is not None
    assert str(Path("/proc/self/exe").readlink()) in {each.path for each in maps.mappings}


def test_a_process_that_is_gone_has_no_maps() -> None:
    """None instead of an exception."""
    assert read_maps(1 << 30, Path("/proc")) is None
