"""Writing files."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from otel_gpuflame.errors import ExportError
from otel_gpuflame.export.files import write_file


def test_file_is_written(tmp_path: Path) -> None:
    """The file has the content, the mode that the umask allows, and nothing lies beside it."""
    umask = os.umask(0o027)
    try:
        write_file(tmp_path / "a.pb.gz", b"content")
    finally:
        os.umask(umask)

    assert (tmp_path / "a.pb.gz").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "a.pb.gz").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.pb.gz"]


def test_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    """The file is replaced, not overwritten: who has the old one open reads it to its end."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_file(path, b"new content")

        assert reader.read() == b"old"
    assert path.read_bytes() == b"new content"


def test_symbolic_link_stays(tmp_path: Path) -> None:
    """The target of a link is replaced, the link is not."""
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")

    write_file(tmp_path / "link", b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_pipe_is_written_to(tmp_path: Path) -> None:
    """A named pipe, like any device, receives the bytes and stays what it is."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()

    write_file(path, b"content")

    reader.join()
    assert received == [b"content"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/a", "No such file or directory"),
        ("file/a", "Not a directory"),
        ("folder", "is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_unusable_path_is_explained(tmp_path: Path, name: str, reason: str) -> None:
    """A path that cannot be written is an error with the path and the reason."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ExportError, match=reason) as caught:
        write_file(tmp_path / name, b"content")

    assert str(tmp_path / name) in str(caught.value)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full the old content stays and no temporary file is left."""
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(ExportError, match="No space left on device"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
