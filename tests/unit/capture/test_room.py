"""For how many libraries there are descriptors, and for whose."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpuflame.capture import room
from otel_gpuflame.capture.room import Holder, Holding, holder_of, lack_of_room

LIBRARY = 9
"""Descriptors of a libcuda."""


def others(number: int, uid: int = 1000, pid: int = 100) -> list[Holding]:
    """Libraries of a user, one a process."""
    return [Holding(Holder(pid + each, uid), LIBRARY) for each in range(number)]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service with 1,024 descriptors: 624 for libraries."""
    monkeypatch.setattr(room.resource, "getrlimit", lambda _what: (1024, 4096))


@pytest.mark.usefixtures("limited")
def test_one_user_gets_half() -> None:
    """34 libraries: another user's find room beside them."""
    assert lack_of_room(Holding(Holder(7, 1000), LIBRARY), others(33)) == ""
    lack = lack_of_room(Holding(Holder(7, 1000), LIBRARY), others(34))
    assert lack == "those of user 1000 take 312 descriptors"
    assert lack_of_room(Holding(Holder(7, 1001), LIBRARY), others(34)) == ""


@pytest.mark.usefixtures("limited")
def test_all_together_are_limited() -> None:
    """What is left is for what the agent needs else."""
    three = [holding for uid in (1, 2, 3) for holding in others(23, uid, 100 * uid)]
    assert lack_of_room(Holding(Holder(7, 4), LIBRARY), three[1:]) == ""
    lack = lack_of_room(Holding(Holder(7, 4), LIBRARY), three)
    assert lack == "all take 624 descriptors"


@pytest.mark.usefixtures("limited")
def test_a_library_that_was_asked_for_always_has_room() -> None:
    """By whoever started the capture: then errors of the kernel say what is short."""
    assert lack_of_room(Holding(None, LIBRARY), others(500)) == ""


def test_without_a_limit_of_descriptors_there_is_one_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attaching takes time, too."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(room.resource, "getrlimit", lambda _what: unlimited)
    assert lack_of_room(Holding(Holder(7, 1000), LIBRARY), others(226)) == ""
    assert "take 2048 descriptors" in lack_of_room(Holding(Holder(7, 1000), LIBRARY), others(227))


def test_the_holder_is_the_processs_user() -> None:
    """As the host sees it."""
    assert holder_of(os.getpid(), Path("/proc")) == Holder(os.getpid(), os.geteuid())
    assert holder_of(2**22 + 1, Path("/proc")) is None


@pytest.mark.parametrize(("hard", "soft"), [(6000, 4496), (2048, 2048), (512, 512)])
def test_the_limit_is_raised_as_far_as_allowed(hard: int, soft: int) -> None:
    """The soft one only."""
    code = (
        "import resource as r; from otel_gpuflame.capture.room import raise_descriptor_limit\n"
        f"r.setrlimit(r.RLIMIT_NOFILE, (min(1024, {hard}), {hard}))\n"
        "raise_descriptor_limit(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(soft), str(hard)]
