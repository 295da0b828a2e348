# SPDX-License-Identifier: Apache-2.0
"""What a program does in a window is in the records, with its times, its thread and its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.events.wire_gpu import GpuKind, Incomplete, LibraryCounter, Limit
from tests.integration.inject.region import of_kind, wait_for
from tests.integration.inject.session import session

pytestmark = pytest.mark.inject

LOW_WORD = 0xFFFFFFFF
COPY_SIZE = 4096
HTOD, DTOH, DTOD, PEER = 1, 2, 8, 10
EVENT, STREAM_WAIT, STREAM, CONTEXT = 1, 2, 3, 4
COMMAND_BUFFER_FULL = 6
EXECUTIONS = (GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET)


def test_each_launch_has_its_record_and_its_execution(library: Path) -> None:
    """Times, thread, shape, name, and the id that joins the two."""
    with session(library, FAKE_CUDA_KERNEL_NS="20000") as target:
        region = target.region()
        region.open_window(1)
        truth = target.do("launch", kernel="saxpy", count=100)
        target.do("synchronize")
        region.close_window()
        records = region.read()
        names = {region.name(int(h)) for h in of_kind(records, GpuKind.KERNEL)["name"]}
    launches, kernels = of_kind(records, GpuKind.API), of_kind(records, GpuKind.KERNEL)
    assert len(launches) == len(kernels) == 100
    launches, kernels = np.sort(launches, order="start_ns"), np.sort(kernels, order="start_ns")
    spans = np.array(truth["spans"], np.uint64)
    assert (launches["start_ns"] >= spans[:, 0]).all()
    assert (launches["end_ns"] <= spans[:, 1]).all()
    assert (launches["thread_pointer"] == truth["thread"] & LOW_WORD).all()
    assert (launches["correlation_id"] == kernels["correlation_id"]).all()
    assert (kernels["start_ns"] >= launches["start_ns"]).all()
    assert (kernels["end_ns"] - kernels["start_ns"] == 20_000).all()
    assert (kernels["grid"][:, 0] == np.arange(1, 101)).all()
    assert (kernels["block"] == (32, 4, 1)).all()
    assert (kernels["device"] == 0).all()
    assert names == {"saxpy"}


def test_a_window_is_marked_by_its_begin_and_end(library: Path) -> None:
    """Around all that was launched in it, with the generation of its lease, and complete."""
    with session(library) as target:
        region = target.region()
        region.open_window(7)
        target.do("launch", count=10)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    (opened,) = of_kind(records, GpuKind.WINDOW_OPEN)
    (closed,) = of_kind(records, GpuKind.WINDOW_CLOSE)
    launches = of_kind(records, GpuKind.API)
    assert opened["correlation_id"] == closed["correlation_id"] == 7
    assert opened["start_ns"] <= opened["end_ns"] <= launches["start_ns"].min()
    assert launches["start_ns"].max() <= closed["start_ns"] <= closed["end_ns"]
    assert closed["detail"] == Incomplete.COMPLETE


def test_copies_and_sets_say_what_and_how_much(library: Path) -> None:
    """Each direction, between devices too, with the bytes and the launch of each."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("copies", size_bytes=COPY_SIZE)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    copies, sets = of_kind(records, GpuKind.COPY), of_kind(records, GpuKind.SET)
    assert sorted(copies["detail"].tolist()) == sorted([HTOD, DTOH, DTOD, PEER])
    assert len(sets) == 1
    work = records[np.isin(records["kind"], EXECUTIONS)]
    assert (work["bytes"] == COPY_SIZE).all()
    launched = of_kind(records, GpuKind.API)["correlation_id"]
    assert set(work["correlation_id"].tolist()) == set(launched.tolist())


def test_a_graph_has_one_launch_and_its_nodes(library: Path) -> None:
    """Each replay: one launch, and one execution a node, by the node's id; capturing is no work."""
    kernels = ["first", "second", "third"]
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("make_graph", kernels=kernels)
        target.do("launch_graph", count=4)
        target.do("synchronize")
        region.close_window()
        records = region.read()
        work = of_kind(records, GpuKind.KERNEL)
        names = [region.name(int(handle)) for handle in work["name"]]
    replays = of_kind(records, GpuKind.API)[-4:]
    assert names == kernels * 4
    assert set(work["correlation_id"].tolist()) == set(replays["correlation_id"].tolist())
    assert len(np.unique(work["graph_id"])) == 1
    assert (work["graph_id"] != 0).all()
    assert work["graph_node_id"].tolist() == work["graph_node_id"][:3].tolist() * 4


def test_threads_are_told_apart(library: Path) -> None:
    """Each thread's launches carry its thread pointer, and their executions its kernel."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        truth = target.do("in_threads", threads=4, count=50)
        target.do("synchronize")
        region.close_window()
        records = region.read()
        kernels = of_kind(records, GpuKind.KERNEL)
        name_of = {int(k["correlation_id"]): region.name(int(k["name"])) for k in kernels}
    launches = of_kind(records, GpuKind.API)
    assert len(launches) == len(kernels) == 200
    for thread in truth["threads"]:
        own = launches[launches["thread_pointer"] == thread["thread"] & LOW_WORD]
        assert {name_of[int(i)] for i in own["correlation_id"]} >= {thread["kernel"]}


def test_streams_are_told_apart(library: Path) -> None:
    """Work on two streams has two stream ids of one context."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_alternating", count=20, streams=["left", "right"])
        target.do("synchronize")
        region.close_window()
        kernels = of_kind(region.read(), GpuKind.KERNEL)
    assert np.unique(kernels["stream_id"], return_counts=True)[1].tolist() == [10, 10]
    assert len(np.unique(kernels["context_id"])) == 1


def test_waits_are_recorded_with_what_they_wait_for(library: Path) -> None:
    """A synchronisation of the context is of that type, and ends after the work."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch", duration_ns=30_000_000)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    (wait,) = of_kind(records, GpuKind.SYNC)
    (kernel,) = of_kind(records, GpuKind.KERNEL)
    assert wait["detail"] == CONTEXT
    assert kernel["end_ns"] <= wait["end_ns"]


def test_a_full_queue_is_recorded_as_overhead_of_the_launch(library: Path) -> None:
    """With the launch's id, inside it, in its thread."""
    with session(library, FAKE_CUDA_QUEUE_NS="1000000") as target:
        region = target.region()
        region.open_window(1)
        truth = target.do("launch", count=5, duration_ns=5_000_000)
        target.do("synchronize")
        region.close_window()
        records = region.read()
    launches = {int(r["correlation_id"]): r for r in of_kind(records, GpuKind.API)}
    blocked = of_kind(records, GpuKind.OVERHEAD)
    assert len(blocked) == 5
    assert (blocked["detail"] == COMMAND_BUFFER_FULL).all()
    assert (blocked["thread_pointer"] == truth["thread"] & LOW_WORD).all()
    for record in blocked:
        launch = launches[int(record["correlation_id"])]
        assert launch["start_ns"] <= record["start_ns"] <= record["end_ns"] <= launch["end_ns"]


def test_each_name_is_written_once(library: Path) -> None:
    """However often its kernel runs, in however many windows."""
    with session(library) as target:
        region = target.region()
        for generation in (1, 2, 3):
            region.open_window(generation)
            target.do("launch", kernel="again", count=20)
            target.do("launch", kernel="and_again", count=20)
            target.do("synchronize")
            region.close_window()
        kernels = of_kind(region.read(), GpuKind.KERNEL)
        size = int(region.field("names_head"))
        names = {region.name(int(handle)) for handle in np.unique(kernels["name"])}
    assert len(kernels) == 120
    assert names == {"again", "and_again"}
    assert size == (4 + 8) + (4 + 12)


def test_long_names_are_shortened_without_merging_any(library: Path) -> None:
    """Names longer than the limit that differ at their end only stay different."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_names", count=3, size=Limit.MAX_NAME_BYTES + 100)
        target.do("synchronize")
        region.close_window()
        kernels = of_kind(region.read(), GpuKind.KERNEL)
        names = {region.name(int(handle)) for handle in kernels["name"]}
    assert len(names) == 3
    assert {len(name) for name in names} == {Limit.MAX_NAME_BYTES}


def test_names_without_room_are_counted(library: Path) -> None:
    """Their kernels are recorded all the same, with an unknown name; the window stays complete."""
    with session(library) as target:
        region = target.region()
        region.open_window(1)
        target.do("launch_names", count=300, size=4000)
        target.do("synchronize")
        region.close_window()
        records = region.read()
        unnamed = region.counter(LibraryCounter.NAMES_FULL)
        size = int(region.field("names_head"))
    kernels = of_kind(records, GpuKind.KERNEL)
    assert len(kernels) == 300
    assert (kernels["name"] == 0).sum() == unnamed == 300 - Limit.NAMES_BYTES // 4004
    assert size <= Limit.NAMES_BYTES


def test_devices_are_described_once_the_driver_answers(library: Path) -> None:
    """Their UUID, model and size, in the order of their ordinals."""
    with session(library, FAKE_CUDA_DEVICES="3") as target:
        region = target.region()
        wait_for(lambda: int(region.field("device_count")) > 0, "the devices")
        devices = region.field("devices")[:3].copy()
        count = int(region.field("device_count"))
    assert count == 3
    assert devices["model"].tolist() == [f"Fake CUDA Device {n}".encode() for n in range(3)]
    assert [bytes(device["uuid"])[-1] for device in devices] == [0, 1, 2]
    assert (devices["multiprocessors"] == 132).all()
    assert (devices["shared_bytes_per_multiprocessor"] == 233_472).all()
