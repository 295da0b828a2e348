# SPDX-License-Identifier: Apache-2.0
"""The build is made once and cached, and says what is missing. Needs neither Go nor a Collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.collector import build
from tests.integration.collector.build import CollectorError, build_collector, cached_binary


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


def test_a_second_call_returns_the_first_build(go_that: Path, tmp_path: Path) -> None:
    """The sources decide: the same ones are compiled once."""
    # The output is go build's argument after -o.
    _write_script(go_that, f'echo run >> {tmp_path}/runs; echo binary > "$7"')
    first = build_collector(tmp_path / "cache")
    second = build_collector(tmp_path / "cache")
    assert first == second == cached_binary(tmp_path / "cache")
    assert first.read_text() == "binary\n"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_changed_sources_get_another_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new pin in go.mod is never tested with the old build."""
    sources = tmp_path / "otelcol"
    sources.mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (sources / name).write_bytes((build.SOURCE_DIR / name).read_bytes())
    monkeypatch.setattr(build, "SOURCE_DIR", sources)
    before = cached_binary(tmp_path)
    with (sources / "go.mod").open("a") as go_mod:
        go_mod.write("// changed\n")
    assert cached_binary(tmp_path) != before


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
