# SPDX-License-Identifier: Apache-2.0
"""The build is made once and cached, and says what is missing. Needs neither Go nor a Collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.collector import build
from tests.integration.collector.build import (
    COLLECTOR,
    JAEGER,
    CollectorError,
    GoProgram,
    build_collector,
    build_program,
    cached_binary,
)


@pytest.fixture
def go_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for `go`: a shell script for the test to write, found as the real one is."""
    script = tmp_path / "bin" / "go"
    script.parent.mkdir()
    monkeypatch.setattr(build, "find_go", lambda: script)
    return script


def _write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("program", [COLLECTOR, JAEGER], ids=lambda program: program.name)
def test_a_second_call_returns_the_first_build(
    program: GoProgram, go_that: Path, tmp_path: Path
) -> None:
    """The sources decide: the same ones are compiled once."""
    # The output is go build's argument after -o.
    _write_script(go_that, f'echo run >> {tmp_path}/runs; echo binary > "$7"')
    first = build_program(program, tmp_path / "cache")
    second = build_program(program, tmp_path / "cache")
    assert first == second == cached_binary(tmp_path / "cache", program)
    assert first.read_text() == "binary\n"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_changed_sources_get_another_binary(tmp_path: Path) -> None:
    """A new pin in go.mod is never tested with the old build."""
    changed = GoProgram(COLLECTOR.name, COLLECTOR.title, tmp_path / "otelcol")
    changed.source_dir.mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (changed.source_dir / name).write_bytes((COLLECTOR.source_dir / name).read_bytes())
    before = cached_binary(tmp_path, changed)
    assert before == cached_binary(tmp_path)
    with (changed.source_dir / "go.mod").open("a") as go_mod:
        go_mod.write("// changed\n")
    assert cached_binary(tmp_path, changed) != before


def test_programs_share_a_cache(tmp_path: Path) -> None:
    """Each has a name of its own in it."""
    assert cached_binary(tmp_path, JAEGER).name.startswith("jaeger-")
    assert cached_binary(tmp_path).name.startswith("otelcol-")


def test_a_failed_build_raises_with_gos_words_and_caches_nothing(
    go_that: Path, tmp_path: Path
) -> None:
    """The last lines of `go build` are in the error, and the next call tries again."""
    _write_script(go_that, 'echo half > "$7"; echo "main.go:1: no such module" >&2; exit 1')
    with pytest.raises(CollectorError, match=r"main\.go:1: no such module"):
        build_collector(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["otelcol.lock"]


def test_without_go_the_error_names_go_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contributor without Go learns what to install, or how to leave these tests out."""
    monkeypatch.setattr(build, "find_go", lambda: None)
    with pytest.raises(CollectorError, match=r"Install Go 1\.26 .* -m 'not collector'"):
        build_collector(tmp_path)


def test_cache_dir_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`XDG_CACHE_HOME` moves the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.default_cache_dir() == tmp_path / "otel-gpuflame"
