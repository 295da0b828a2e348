"""Damaged and hostile captures: all before the damage, its name, bounded memory, no crash."""

from __future__ import annotations

import io
import json
import re
import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import capture_format as fmt
from otel_gpuflame.events.capture_format import Kind
from otel_gpuflame.events.capture_reader import read_capture
from otel_gpuflame.events.capture_tables import TABLES
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import Calls, Stacks, Watermark
from tests.unit.events.capture_samples import (
    assert_same,
    block,
    calls,
    capture_bytes,
    events_block,
    forge,
    is_prefix,
    offsets_of,
    packed,
    read_all,
    small_recording,
    split,
    with_header,
)

CAPTURE = capture_bytes(small_recording())
HEAD, BLOCKS = split(CAPTURE)
END = block(Kind.END, 0, b"")
MARK = block(Kind.WATERMARKS, 1, struct.pack("<q", 5))
WHOLE = [MARK, events_block((Kind.WATERMARKS, 1))]


def damage_of(blocks: Sequence[bytes], head: bytes = HEAD) -> str:
    """What a file of one good segment and then `blocks` is said to suffer from."""
    found, reader = read_all(forge(head, [*WHOLE, *blocks]))
    assert_same(found, [Watermark(5)])
    assert reader.damage is not None
    return reader.damage


def test_truncation_anywhere_gives_a_prefix_and_names_the_damage() -> None:
    """A capture cut after any byte yields whole segments only, and says where it is cut."""
    expected = small_recording()
    block_offsets = set(offsets_of(BLOCKS, HEAD))
    lengths = set()
    for size in range(len(CAPTURE)):
        if size < len(HEAD):
            with pytest.raises(CaptureFileError):
                read_all(CAPTURE[:size])
            continue
        found, reader = read_all(CAPTURE[:size])
        assert is_prefix(found, expected)
        assert reader.damage is not None
        assert int(re.split("[ :,]", reader.damage)[2]) in block_offsets
        lengths.add(len(found))
    assert lengths == {0, 4, 11, 24}


def test_truncation_names_offset_and_kind_of_the_cut_block() -> None:
    """The message leads to the block that is not whole."""
    offsets = list(offsets_of(BLOCKS, HEAD))
    kind, data = BLOCKS[2]
    _, reader = read_all(CAPTURE[: offsets[2] + len(data) - 1])
    name = Kind(kind).name.lower()
    assert str(reader.damage).startswith(f"at offset {offsets[2]}, block {name} ({kind}): expected")


def test_no_flipped_bit_gives_wrong_events() -> None:
    """Any single bit that is not as written is noticed: never a crash, never a changed event."""
    expected = small_recording()
    for position in range(len(CAPTURE)):
        data = bytearray(CAPTURE)
        data[position] ^= 1 << (position % 8)
        try:
            found, reader = read_all(bytes(data))
        except CaptureFileError:
            assert position < len(HEAD)
            continue
        assert reader.damage is not None
        assert is_prefix(found, expected)


@pytest.mark.parametrize("change", ["lost", "repeated", "swapped"])
def test_whole_blocks_out_of_place_are_noticed(change: str) -> None:
    """The checksums form a chain, so that blocks cannot get lost, repeated or swapped unseen."""
    blocks = [data for _, data in BLOCKS]
    for i in range(len(blocks) - 1):
        here, after = blocks[i : i + 1], blocks[i + 1 :]
        rest = {
            "lost": after,
            "repeated": here * 2 + after,
            "swapped": after[:1] + here + after[1:],
        }[change]
        found, reader = read_all(HEAD + b"".join(blocks[:i] + rest))
        assert reader.damage is not None
        assert is_prefix(found, small_recording())


@settings(deadline=None)
@given(data=st.binary(max_size=200), keep=st.integers(0, len(CAPTURE)))
def test_arbitrary_bytes_never_crash_the_reader(data: bytes, keep: int) -> None:
    """Garbage alone, or after a good beginning, is a CaptureFileError or named damage."""
    try:
        found, reader = read_all(CAPTURE[:keep] + data)
    except CaptureFileError:
        return
    assert is_prefix(found, small_recording())
    assert reader.damage is not None or CAPTURE[:keep] + data == CAPTURE


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_forged_blocks_never_crash_the_reader(data: st.DataObject) -> None:
    """Blocks with valid checksums and arbitrary content end in events or in named damage."""
    kinds = st.sampled_from(sorted(Kind))
    rows = st.integers(0, 3)
    words = st.integers(0, 2) | st.integers(0, 255)
    blocks = []
    for _ in range(data.draw(st.integers(0, 6))):
        kind, count = data.draw(kinds), data.draw(rows)
        table = TABLES.get(kind)
        size = count * table.packed_bytes if table else data.draw(st.integers(0, 9))
        payload = bytes(data.draw(st.lists(words, min_size=size, max_size=size)))
        blocks.append(block(kind, count, payload))
    found, reader = read_all(forge(HEAD, [*blocks, END]))
    assert len(found) <= 6 * 3
    assert reader.damage is None or reader.damage.startswith(("at offset ", "in the segment "))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a capture file"),
        (b"\x1f\x8b\x08 a gzip file", "not a capture file"),
        (CAPTURE[:7], "not a capture file"),
        (CAPTURE[:12], "inside its header"),
        (CAPTURE[: len(HEAD) - 1], "inside its header"),
        (CAPTURE[:8] + struct.pack("<HHII", 2, 7, 0, 0), "format version 2.7"),
        (CAPTURE[:12] + struct.pack("<II", 2**32 - 1, 0), "claims 4294967295 bytes of header"),
        (CAPTURE[:16] + b"\0\0\0\0" + CAPTURE[20:], "checksum"),
        (forge(HEAD[:12] + struct.pack("<II", 3, 0) + b"{1}", []), "expected JSON"),
        (forge(HEAD[:12] + struct.pack("<II", 2, 0) + b"[]", []), "expected a JSON object"),
        (forge(HEAD[:12] + struct.pack("<II", 90_000, 0) + b"[" * 90_000, []), "expected JSON"),
        (forge(with_header(HEAD, created=1), []), "lacks `created`"),
        (forge(with_header(HEAD, kinds=[]), []), "schemas by kind"),
        (forge(with_header(HEAD, kinds={"22": 1}), []), "expected a table schema"),
    ],
)
def test_files_of_which_nothing_can_be_read_are_refused(data: bytes, message: str) -> None:
    """Without a good header there is nothing to deliver: the error says what is wrong."""
    with pytest.raises(CaptureFileError, match=message):
        read_capture(io.BytesIO(data))


def test_newer_minor_version_is_read() -> None:
    """A minor version only adds what older readers may skip."""
    newer = HEAD[:10] + struct.pack("<H", 9) + HEAD[12:]
    found, reader = read_all(forge(newer, [data for _, data in BLOCKS]))
    assert_same(found, small_recording())
    assert (reader.version, reader.damage) == ((1, 9), None)


def test_older_minor_version_is_read() -> None:
    """A file of format 1.0 has no schemas for what 1.1 added, and needs none."""
    kinds = {k: v for k, v in json.loads(HEAD[20:])["kinds"].items() if int(k) < Kind.EXECUTIONS}
    head = with_header(HEAD[:10] + struct.pack("<H", 0) + HEAD[12:], kinds=kinds)
    found, reader = read_all(forge(head, [*WHOLE, END]))
    assert_same(found, [Watermark(5)])
    assert (reader.version, reader.damage) == ((1, 0), None)


def test_unknown_blocks_and_events_are_skipped_and_counted() -> None:
    """Kinds of a newer minor version are left out, whatever they hold, and the rest is read."""
    unknown = block(900, 7, b"???", encoding=1, raw_bytes=50)
    order = events_block((901, 3), (Kind.WATERMARKS, 1), (901, 1))
    found, reader = read_all(forge(HEAD, [unknown, MARK, unknown, order, unknown, END]))
    assert_same(found, [Watermark(5)])
    assert reader.damage is None
    assert (dict(reader.skipped_blocks), dict(reader.skipped_events)) == ({900: 3}, {901: 2})


def test_unknown_frame_kinds_become_native_and_are_counted() -> None:
    """A frame of a kind that a newer version invented is still shown."""
    frame = Frame(FrameKind.NATIVE, "f")
    stack = Stack(StackKey(1, 2), ProcessKey(3, 4), (frame,))
    head, blocks = split(capture_bytes([Stacks((stack,))]))
    changed = [
        block(kind, 7, b"?ative" + b"f") if kind == Kind.STRING_BYTES else data
        for kind, data in blocks
    ]
    found, reader = read_all(forge(head, changed))
    assert_same(found, [Stacks((stack,))])
    assert dict(reader.unknown_frame_kinds) == {"?ative": 1}


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "found the end of the file"),
        ([MARK, END], "expected no such block"),
        ([MARK, block(Kind.RESET, 0, b"")], "expected no such block"),
        ([END, MARK], "expected the end of the file"),
        ([block(Kind.CALLS, 0, b"")], "expected a schema"),
        ([block(Kind.WATERMARKS, 1, b"1234567")], "expected 1 rows of 8 bytes, found 7"),
        ([block(Kind.WATERMARKS, 2**32 - 1, b"")], "expected 4294967295 rows"),
        ([block(Kind.WATERMARKS, 0, b"", raw_bytes=2**32 - 1)], "expected at most 67108864 bytes"),
        ([block(Kind.WATERMARKS, 1, bytes(8), stored_bytes=9)], "9 stored bytes cannot make 8"),
        ([block(Kind.WATERMARKS, 1, bytes(7), raw_bytes=8)], "7 stored bytes cannot make 8"),
        ([block(Kind.WATERMARKS, 1, bytes(8), encoding=2)], "unknown encoding 2"),
        ([block(Kind.WATERMARKS, 1, bytes(8), reserved=1)], "reserved byte 1"),
        (
            [block(Kind.WATERMARKS, 1, b"junk", encoding=1, raw_bytes=8)],
            "one zstd frame of 8 bytes",
        ),
        ([packed(Kind.WATERMARKS, 9, bytes(80), raw_bytes=72)], "72 bytes, found one of 80"),
        (
            [packed(Kind.STRING_BYTES, 2**20, bytes(2**20)), events_block()],
            "of strings, found 1048576",
        ),
        ([block(Kind.STRINGS, 1, struct.pack("<I", 9)), events_block()], "9 bytes of strings"),
        (
            [
                block(Kind.STRINGS, 1, struct.pack("<I", 1)),
                block(Kind.STRING_BYTES, 1, b"\xff"),
                events_block(),
            ],
            "UTF-8",
        ),
        (
            [block(Kind.FRAMES, 1, b"\1" + bytes(39)), events_block()],
            "string index below 1, found 1",
        ),
        ([events_block((Kind.WATERMARKS, 1))], "need 1 rows of watermarks"),
        ([MARK, MARK, events_block((Kind.WATERMARKS, 1))], "use 1 rows of watermarks"),
        ([MARK, events_block((Kind.WATERMARKS, 2))], "expected one row of watermarks"),
        ([events_block((Kind.CALLS, 2**32 - 1))], "which no schema describes"),
        ([block(Kind.SCHEMA, 2, b"[]")], "expected a JSON object"),
        ([block(Kind.SCHEMA, 9, b'{"17": 1}')], "expected a table schema"),
        ([packed(Kind.SCHEMA, 2**21, b" " * 2**21)], "bytes of schema"),
        ([block(Kind.SCHEMA, 4, b"junk", encoding=1, raw_bytes=9)], "one zstd frame"),
    ],
)
def test_damage_is_named_and_what_lies_before_it_is_read(blocks: list[bytes], message: str) -> None:
    """Blocks that contradict the format end the reading with a message; checksums may be right."""
    assert message in damage_of(blocks)


def test_stack_of_unknown_frames_is_damage() -> None:
    """An index past the frame table is refused, not wrapped or filled."""
    row = struct.pack("<QQIqI", 1, 2, 3, 4, 1)
    stack = block(Kind.STACKS, 1, row)
    blocks = [stack, block(Kind.STACK_FRAMES, 1, bytes(4)), events_block((Kind.STACKS, 1))]
    assert "frame index below 0, found 0" in damage_of(blocks)


def test_reset_forgets_strings_and_frames() -> None:
    """After a reset the indices from before it mean nothing."""
    text = [block(Kind.STRINGS, 1, struct.pack("<I", 1)), block(Kind.STRING_BYTES, 1, b"x")]
    attribute = block(Kind.START_ATTRIBUTES, 1, struct.pack("<II", 1, 1))
    start = block(Kind.CAPTURE_STARTS, 1, struct.pack("<qqI", 1, 2, 1))
    order = events_block((Kind.CAPTURE_STARTS, 1))
    segment = [attribute, start, order]
    found, reader = read_all(forge(HEAD, [*text, *segment, block(Kind.RESET, 0, b""), *segment]))
    assert len(found) == 1
    assert "string index below 1, found 1" in str(reader.damage)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": []}, "expected 1 to 1024 columns"),
        ({"names": ["a", "b"]}, "each with format, offset, codec"),
        ({"names": ["other"]}, "expected column 'time_ns' as <i8, found None"),
        ({"names": [1]}, "watermarks"),
        ({"formats": ["<u8"]}, "expected column 'time_ns' as <i8, found uint64"),
        ({"formats": [">i8"]}, "not a little-endian number"),
        ({"formats": ["|O"]}, "not a little-endian number"),
        ({"formats": ["(99999,99999)<i8"]}, "is not 1 to 65536 bytes"),
        ({"formats": [["time_ns"]]}, "not a little-endian number"),
        ({"offsets": [1]}, "overlaps"),
        ({"offsets": [-1]}, "offsets or itemsize"),
        ({"offsets": [True]}, "offsets or itemsize"),
        ({"itemsize": 2**40}, "offsets or itemsize"),
        ({"itemsize": True}, "expected 'itemsize' to be int"),
        ({"codecs": ["lzma"]}, "codec 'lzma' is unknown"),
        ({"codecs": [[]]}, "is unknown"),
        ({"name": None}, "expected 'name' to be str"),
    ],
)
def test_schemas_are_checked_before_use(change: dict[str, Any], message: str) -> None:
    """A header that describes impossible or missing columns is refused with the table's name."""
    kinds = json.loads(HEAD[20:])["kinds"]
    kinds["22"] = {**kinds["22"], **change}
    with pytest.raises(CaptureFileError, match=message.replace("(", r"\(")):
        read_all(forge(with_header(HEAD, kinds=kinds), []))


def test_columns_may_not_overlap() -> None:
    """Two columns at one offset would make rows in memory and in the file differ in size."""
    kinds = json.loads(HEAD[20:])["kinds"]
    kinds["4"]["offsets"] = [0, 1]
    with pytest.raises(CaptureFileError, match="overlaps"):
        read_all(forge(with_header(HEAD, kinds=kinds), []))


def _wide_calls() -> bytes:
    """A schema whose rows are 1 byte in the file and 64 KiB in memory."""
    schema = {"name": "calls", "names": ["a"], "formats": ["|u1"], "offsets": [0]}
    text = json.dumps({"17": {**schema, "itemsize": 1 << 16, "codecs": ["raw"]}}).encode()
    return block(Kind.SCHEMA, len(text), text)


def _bomb(size: int) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(bytes(size))


BOMB = _bomb(256 << 20)


@pytest.mark.parametrize(
    "blocks",
    [
        [block(Kind.WATERMARKS, 2**32 - 1, b"", raw_bytes=2**32 - 1, stored_bytes=2**32 - 1)],
        [block(Kind.WATERMARKS, 2**20, BOMB, encoding=1, raw_bytes=2**23)],
        [block(Kind.STRING_BYTES, 2**28, BOMB, encoding=1, raw_bytes=2**28)],
        [_wide_calls(), packed(Kind.CALLS, 2**22, bytes(2**22))],
        [_wide_calls(), *[packed(Kind.CALLS, 500, bytes(500))] * 40],
        [packed(Kind.EVENTS, 2**17 + 1, bytes(6 * (2**17 + 1)))],
        [packed(Kind.STRINGS, 2**20 + 1, bytes(4 * (2**20 + 1)))],
        [packed(Kind.WATERMARKS, 2**20, bytes(2**23)), MARK],
    ],
    ids=["counts", "lying bomb", "bomb", "wide rows", "many blocks", "events", "strings", "rows"],
)
def test_hostile_sizes_do_not_cost_memory(blocks: list[bytes]) -> None:
    """What a file claims is checked before it is allocated: no more than a segment's 64 MiB."""
    data = forge(HEAD, [*WHOLE, *blocks])
    tracemalloc.start()
    try:
        found, reader = read_all(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_same(found, [Watermark(5)])
    assert "expected" in str(reader.damage)
    assert peak_bytes < fmt.MAX_SEGMENT_BYTES + (8 << 20)


def test_reader_holds_one_segment_at_a_time() -> None:
    """Reading 20 segments of 1 MB takes the memory of a few, not of all."""
    rows = calls(7_000)
    events = (each for n in range(20) for each in (Calls(rows), Watermark(n)))
    stream = io.BytesIO(capture_bytes(events))
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_capture(stream))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 40
    assert peak_bytes < 8 * rows.nbytes
