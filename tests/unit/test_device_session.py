"""Parts of a device session run one after the other, each within its time, and leave what they found."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.integration.gpu.device_session import FOLDER, Part, Session, chosen, parts_of

GOOD = Part(100, "json.tool", ("--help",))
BAD = Part(100, "json.tool", ("--no-such-option",))
WRITES = Part(100, "zipfile", ("-c", f"{FOLDER}/made.zip", __file__))
ENDLESS = Part(0.1, "http.server", ("--bind", "127.0.0.1", "0"))


def session(tmp_path: Path) -> Session:
    """One with folders of its own."""
    (tmp_path / "work").mkdir()
    return Session(tmp_path / "out", tmp_path / "work", os.environ)


def read(tmp_path: Path) -> dict[str, str]:
    """Verdicts that were written."""
    rows = json.loads((tmp_path / "out" / "session.json").read_text())
    return {name: row["verdict"] for name, row in rows.items()}


def test_a_part_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    """All run; what they wrote and said is in the archive, and in the table whether they are good."""
    parts = {"bad": BAD, "writes": WRITES, "endless": ENDLESS, "good": GOOD}
    held = session(tmp_path)
    assert not held.run(parts, 600)
    assert read(tmp_path) == {
        "bad": "exit 2",
        "writes": "ok",
        "endless": "not within 0 s",
        "good": "ok",
    }
    with tarfile.open(tmp_path / "out" / "session.tar.gz") as archive:
        names = archive.getnames()
    assert {"session/writes/made.zip", "session/good/log", "session/endless/log"} <= set(names)
    assert [line.split()[0] for line in held.table().splitlines()] == list(parts)
    assert "== good: ok" in (tmp_path / "out" / "session.txt").read_text()


def test_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    """It is told, and the session is not good."""
    held = session(tmp_path)
    assert not held.run({"long": Part(1e6, GOOD.module, GOOD.arguments)}, 60)
    assert read(tmp_path) == {"long": "no time left"}
    assert not (tmp_path / "work" / "long").exists()


def test_parts_are_chosen_by_name_and_in_order() -> None:
    """All without a name; an unknown one is an error."""
    parts = {"a": GOOD, "b": BAD}
    assert list(chosen(parts, [])) == ["a", "b"]
    assert list(chosen(parts, ["b", "a"])) == ["b", "a"]
    with pytest.raises(KeyError):
        chosen(parts, ["c"])


def test_all_parts_fit_in_a_session() -> None:
    """1,500 s of device time, in calls of at most 580."""
    parts = parts_of(fake=False)
    assert sum(part.about_s for part in parts.values()) <= 1_500
    assert max(part.about_s for part in parts.values()) <= 580
    assert set(parts_of(fake=True)) < set(parts)
