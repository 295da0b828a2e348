"""When targets are described, and described again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_gpuflame.capture import targets as targets_module
from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.describe import Attributes
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey

PARENT, CHILD = 7, 8
SECOND_NS = 1_000_000_000
NOBODY = ProcessKey(0, 0)


class World:
    """Two processes, what they say of themselves, and how often they are asked."""

    def __init__(self) -> None:
        self.service = {PARENT: "train.py", CHILD: "train.py"}
        self.publishing: set[int] = set()
        self.asked = 0
        self.now_ns = 0

    def describe(self, pid: int, _proc: Path) -> Attributes | None:
        """What `describe` finds."""
        self.asked += 1
        name = self.service.get(pid)
        return None if name is None else (("process.pid", pid), ("service.name", name))

    def publishes_itself(self, pid: int, _proc: Path) -> bool:
        """Whether it has a process context."""
        return pid in self.publishing


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Descriptions come from it."""
    world = World()
    monkeypatch.setattr(targets_module, "describe", world.describe)
    monkeypatch.setattr(targets_module, "publishes_itself", world.publishes_itself)
    monkeypatch.setattr(targets_module, "time", SimpleNamespace(monotonic_ns=lambda: world.now_ns))
    return world


@pytest.fixture
def targets(world: World, tmp_path: Path) -> Targets:
    """Targets with PARENT added and described, at time 0."""
    for pid in (PARENT, CHILD):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nTgid:\t{pid}\n")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) R{19 * ' 1'}")
        (tmp_path / str(pid) / "maps").write_text("1000-2000 r-xp 00000000 08:01 7 /bin/x\n")
    bpf_map = SimpleNamespace(set=lambda *_args, **_options: True)
    kernel: Any = SimpleNamespace(
        targets=bpf_map, costs=bpf_map, report=SimpleNamespace(missing={})
    )
    attachments: Any = SimpleNamespace(attach=lambda *_: None, wants=lambda _path: False)
    targets = Targets(kernel, attachments, proc=tmp_path)
    targets.add(PARENT, 0)
    targets.look(0)
    targets.take_redescribed()
    return targets


def service(targets: Targets, pid: int) -> object:
    """Name by which a target is known."""
    return dict(targets.attributes(pid) or ())["service.name"]


def happened(
    change: wire.ProcessChange,
    pid: int,
    parent: ProcessKey = NOBODY,
    time_ns: int = 0,
    comm: str = "x",
) -> ProcessChange:
    """A report of BPF."""
    return ProcessChange(change, ProcessKey(pid, 0), parent, time_ns, comm)


def before_exec(targets: Targets, pid: int, time_ns: int) -> object:
    """Name of the program that another one replaces now."""
    change = happened(wire.ProcessChange.EXEC, pid, time_ns=time_ns, comm="new")
    return dict(targets.apply(change, time_ns) or ())["service.name"]


@pytest.mark.parametrize("seconds", [0.2, 1, 10, 60])
def test_what_a_process_publishes_late_is_noticed(
    seconds: float, targets: Targets, world: World
) -> None:
    """OpenTelemetry may be set up after the first GPU call; the change is told once."""
    world.service[PARENT] = "shop"
    targets.look(round(seconds * SECOND_NS))
    assert targets.take_redescribed() == {PARENT}
    assert targets.take_redescribed() == set()
    assert service(targets, PARENT) == "shop"


def test_a_program_that_loads_its_libraries_is_not_described_each_time(
    targets: Targets, world: World
) -> None:
    """The first looks after a change come often, and a description reads several files."""
    before = world.asked
    for time_ns in range(0, SECOND_NS // 2, SECOND_NS // 100):
        targets.apply(happened(wire.ProcessChange.MAP, PARENT), time_ns)
        targets.look(time_ns)
    assert world.asked == before


def test_the_same_description_is_no_change(targets: Targets) -> None:
    """Nothing is told."""
    targets.look(60 * SECOND_NS)
    assert targets.take_redescribed() == set()


def test_a_forked_child_is_described_like_its_parent(targets: Targets, world: World) -> None:
    """With its own pid; the parent's process context is not inherited, its work is the same."""
    world.service |= {PARENT: "shop", CHILD: "python -c"}
    targets.look(SECOND_NS)
    targets.apply(happened(wire.ProcessChange.FORK, CHILD, ProcessKey(PARENT, 0)), SECOND_NS)
    targets.look(2 * SECOND_NS)
    assert targets.attributes(CHILD) == (("process.pid", CHILD), ("service.name", "shop"))


def one_round(targets: Targets, *changes: ProcessChange) -> None:
    """Changes that are reported together."""
    for change in changes:
        targets.apply(change, 0)
    targets.attend(0)


STARTED = happened(wire.ProcessChange.EXEC, PARENT)
FORKED = happened(wire.ProcessChange.FORK, CHILD, ProcessKey(PARENT, 0))
ENDED = happened(wire.ProcessChange.EXIT, CHILD)


def test_a_child_that_has_ended_before_its_parent_was_described_is_like_it(
    targets: Targets, world: World
) -> None:
    """All of it may happen in one round, and calls of the child come in that round too."""
    world.service = {PARENT: "shop"}
    one_round(targets, STARTED, FORKED, ENDED)
    assert targets.take_redescribed() == {PARENT, CHILD}
    assert targets.attributes(CHILD) == (("process.pid", CHILD), ("service.name", "shop"))


def test_grandchildren_too(targets: Targets, world: World) -> None:
    """A daemon forks twice."""
    grandchild = 9
    world.service = {PARENT: "shop"}
    again = happened(wire.ProcessChange.FORK, grandchild, ProcessKey(CHILD, 0))
    one_round(targets, STARTED, FORKED, again, ENDED, happened(wire.ProcessChange.EXIT, grandchild))
    assert service(targets, grandchild) == "shop"


def test_a_child_of_the_program_before_is_not_described_like_the_one_after(
    targets: Targets, world: World
) -> None:
    """Its parent has executed another program before anybody looked."""
    world.service = {PARENT: "next.py"}
    one_round(targets, STARTED, FORKED, ENDED, STARTED)
    assert service(targets, PARENT) == "next.py"
    assert service(targets, CHILD) == "x"


def test_a_child_that_executes_another_program_does_not_wait_for_its_parents_name(
    targets: Targets, world: World
) -> None:
    """It is another program by then, and has ended without a description."""
    world.service = {PARENT: "shop"}
    one_round(targets, STARTED, FORKED, happened(wire.ProcessChange.EXEC, CHILD), ENDED)
    assert service(targets, CHILD) == "x"


def test_a_forked_child_that_publishes_is_described_by_itself(
    targets: Targets, world: World
) -> None:
    """Workers set up their own SDK after the fork."""
    targets.apply(happened(wire.ProcessChange.FORK, CHILD, ProcessKey(PARENT, 0)), 0)
    world.service[CHILD] = "worker"
    assert service(targets, CHILD) == "train.py"
    world.publishing.add(CHILD)
    assert service(targets, CHILD) == "worker"


def test_a_child_that_executes_another_program_is_described_anew(
    targets: Targets, world: World
) -> None:
    """It has nothing to do with its parent any more."""
    targets.apply(happened(wire.ProcessChange.FORK, CHILD, ProcessKey(PARENT, 0)), 0)
    targets.apply(happened(wire.ProcessChange.EXEC, CHILD), 0)
    world.service[CHILD] = "other"
    targets.look(0)
    assert service(targets, CHILD) == "other"


def test_a_process_that_has_ended_keeps_its_description(targets: Targets, world: World) -> None:
    """Its last calls come later, and its pid may mean another one by then."""
    targets.apply(happened(wire.ProcessChange.EXIT, PARENT), 0)
    world.service[PARENT] = "somebody else"
    assert service(targets, PARENT) == "train.py"


def test_a_process_that_is_no_target_is_described_when_asked_for(
    targets: Targets, world: World
) -> None:
    """Calls may come before the report of their process."""
    assert service(targets, CHILD) == "train.py"
    world.service = cast("dict[int, str]", {})
    assert targets.attributes(CHILD) is None


def test_a_program_is_described_as_it_was_before_it_was_replaced(
    targets: Targets, world: World
) -> None:
    """Its last calls may come when the process is another program already."""
    world.service[PARENT] = "next.py"
    assert before_exec(targets, PARENT, SECOND_NS) == "train.py"
    targets.attend(SECOND_NS)
    assert service(targets, PARENT) == "next.py"


@pytest.mark.parametrize("read_before_ns", [-5_000_000, 0, 5_000_000])
def test_what_was_read_when_another_program_began_is_not_said_of_the_old_one(
    read_before_ns: int, targets: Targets, world: World
) -> None:
    """/proc shows the new program a little before its start is reported: then the kernel's name has to do."""
    world.service[CHILD], world.now_ns = "next.py", SECOND_NS - read_before_ns
    targets.apply(happened(wire.ProcessChange.MAP, CHILD, comm="old"), world.now_ns)
    targets.attend(world.now_ns)
    assert service(targets, CHILD) == "next.py"
    assert before_exec(targets, CHILD, SECOND_NS) == "old"


def test_a_description_that_came_too_late_leaves_the_one_before_it(
    targets: Targets, world: World
) -> None:
    """What was known of the old program for long is still right."""
    world.service[PARENT], world.now_ns = "next.py", 2 * SECOND_NS
    assert service(targets, PARENT) == "next.py"
    assert before_exec(targets, PARENT, 2 * SECOND_NS) == "train.py"


def test_a_forked_child_that_executes_at_once_was_its_parents_program(targets: Targets) -> None:
    """Calls between fork and exec are of the program that forked."""
    targets.apply(happened(wire.ProcessChange.FORK, CHILD, ProcessKey(PARENT, 0)), 0)
    assert before_exec(targets, CHILD, 1) == "train.py"


def test_an_exec_of_a_process_that_was_never_seen_before_has_no_wrong_name(
    targets: Targets,
) -> None:
    """Neither a description nor the kernel's name of the old program is known."""
    assert before_exec(targets, CHILD, SECOND_NS) == "unknown_service"
