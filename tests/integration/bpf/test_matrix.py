# SPDX-License-Identifier: Apache-2.0
"""Every alias of every probed driver function is seen, with its kind and arguments."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from otel_gpuflame.capture.bpf.probes import spec_for_symbol
from otel_gpuflame.events import apis
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH
from tests.fakes.app_matrix import BATCH_BYTES, ROW_BYTES, ROWS, SIZE_BYTES
from tests.fakes.build import app_command
from tests.integration.bpf.recording import Recording, app, record, total

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

PLANE_BYTES = ROW_BYTES * ROWS
NAME_FUNCTIONS = ("cuModuleGetFunction", "cuLibraryGetKernel", "cuKernelGetFunction")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recording:
    """A recording of every function of the fake driver."""
    output = tmp_path_factory.mktemp("matrix") / "test.ogfcap"
    recording = record(output, *app_command("app_matrix"), environment=environment)
    assert recording.exit_code == 0, recording.stderr
    return recording


def made(recording: Recording) -> Counter[str]:
    """Calls that the program made, by name without version and stream suffixes."""
    counts: Counter[str] = Counter()
    for symbol, count in recording.truth["counts"].items():
        spec = spec_for_symbol(symbol)
        if spec is not None and spec.base not in NAME_FUNCTIONS:
            counts[spec.base] += count
    return counts


def test_every_alias_is_counted(matrix: Recording) -> None:
    """Calls of a function are the sum over its aliases, each of which the program calls."""
    seen = Counter(apis.BY_ID[api].name for api in matrix.capture.calls["api"].tolist())
    assert seen == made(matrix)
    assert len(seen) == sum(api.runtime is apis.Runtime.CUDA for api in apis.ALL)
    assert matrix.capture.pending() == {}


def test_every_call_has_the_kind_of_its_function(matrix: Recording) -> None:
    """The kind in each row is that of the API table, and its arguments could be read."""
    rows = matrix.capture.calls
    assert all(row["kind"] == apis.BY_ID[int(row["api"])].kind for row in rows)
    assert not (rows["flags"] & CallFlag.ARGS_UNREADABLE).any()


def test_calls_that_may_block_have_a_return(matrix: Recording) -> None:
    """A call has an end exactly where its function can block, never before its start."""
    for row in matrix.capture.calls:
        can_block = apis.BY_ID[int(row["api"])].blocking is not apis.Blocking.NEVER
        assert bool(row["flags"] & CallFlag.RETURNED) == can_block
        assert not can_block or row["end_ns"] >= row["start_ns"]


def test_copies_have_their_bytes(matrix: Recording) -> None:
    """Each copy has the bytes that were passed; their sum is what the driver moved."""
    copies = matrix.capture.kind(Kind.COPY)
    for row in copies:
        name = apis.BY_ID[int(row["api"])].name
        is_plane = "2D" in name or name.removesuffix("Async")[-1] == "A" or "AtoH" in name
        is_plane |= "AtoD" in name
        assert row["bytes"] == (PLANE_BYTES if is_plane else SIZE_BYTES), name
    assert int(copies["bytes"].sum()) == matrix.truth["counters"]["copy_bytes"]
    assert total(matrix.samples(GPU_COPY)) == matrix.truth["counters"]["copy_bytes"]


def test_sets_have_their_bytes_whatever_their_unit(matrix: Recording) -> None:
    """Sets of 8, 16 and 32 bits count bytes, not elements."""
    sets = matrix.capture.kind(Kind.SET)
    assert len(sets) == matrix.truth["counters"]["sets"]
    for row in sets:
        name = apis.BY_ID[int(row["api"])].name
        assert row["bytes"] == (PLANE_BYTES if "D2D" in name else SIZE_BYTES), name


def test_batches_have_the_stream_of_their_form(matrix: Recording) -> None:
    """Both forms of a batch are on the stream on which all other copies of the program are."""
    streams = set(matrix.capture.api("cuMemcpyAsync")["stream"].tolist())
    assert set(matrix.capture.api("cuMemcpyBatchAsync")["stream"].tolist()) == streams
    assert len(streams) == 1


def test_submissions_add_up(matrix: Recording) -> None:
    """Launches, graph launches, copies and sets in the profile are those that the driver counted."""
    counters = matrix.truth["counters"]
    kinds = ("launches", "graph_launches", "copies", "sets")
    # A batch is one call.
    batches = len(matrix.capture.api("cuMemcpyBatchAsync"))
    batched = batches * (len(BATCH_BYTES) - 1)
    assert batches == 4
    expected = sum(counters[kind] for kind in kinds) - batched
    assert total(matrix.samples(GPU_LAUNCH)) == expected
    # The launch that was captured into a graph is a call, and none to the driver.
    assert matrix.result.ledger.dropped["launch", "captured"] == 1


def test_names_come_from_modules_libraries_and_kernels(matrix: Recording) -> None:
    """Handles from cuModuleGetFunction, cuLibraryGetKernel and cuKernelGetFunction have names."""
    names = Counter(name.name for name in matrix.capture.names)
    assert names["from_library"] == 2
    assert names["_Z5saxpyPfS_fi"] >= 1
    assert matrix.capture.count("name", "seen") == matrix.capture.count("name", "sent")


def test_launches_have_sizes_stream_and_function(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> None:
    """Grid, block, stream and function of each launch function are those that were passed."""
    output = tmp_path_factory.mktemp("shapes") / "test.ogfcap"
    recording = record(output, *app("launch_shapes"), environment=environment)
    launches = recording.truth["launches"]
    rows = recording.capture.kind(Kind.LAUNCH)
    found = [
        {
            "api": apis.BY_ID[int(row["api"])].name,
            "function": int(row["object"]),
            "stream": int(row["stream"]),
            "grid": row["grid"].tolist(),
            "block": row["block"].tolist(),
        }
        for row in np.sort(rows, order="start_ns")
    ]
    assert found == [{k: v for k, v in each.items() if k != "name"} for each in launches]
    leaves = Counter(sample.frames[-1].name for sample in recording.samples(GPU_LAUNCH))
    assert leaves == Counter(each["name"] for each in launches)
