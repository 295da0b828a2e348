"""Files that `replay` and `demo` write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from otel_gpuflame.encode.folded import encode_folded
from otel_gpuflame.encode.html import encode_html
from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.export.files import write_file
from otel_gpuflame.profile.model import Bundle, ValueType
from otel_gpuflame.profile.view import has_device_times, view_of, with_gpu_view


def write_pprof(path: Path, bundles: Sequence[Bundle]) -> int:
    """One gzipped pprof file with all sample types; its size in bytes."""
    return _write(path, encode_pprof(bundles))


def write_html(path: Path, bundles: Sequence[Bundle], title: str) -> int:
    """One self-contained page; its size in bytes."""
    shown = [with_gpu_view(b) if has_device_times(b) else b for b in bundles]
    return _write(path, encode_html(shown, title=title).encode())


def write_folded(path: Path, bundles: Sequence[Bundle], sample_type: ValueType) -> int:
    """Folded stacks of one sample type, to standard output if `path` is `-`; size in bytes."""
    data = encode_folded(view_of(bundles, sample_type), sample_type).encode()
    if str(path) == "-":
        click.echo(data, nl=False)
        return len(data)
    return _write(path, data)


def _write(path: Path, data: bytes) -> int:
    write_file(path, data)
    return len(data)
