"""Bundles to folded stacks, a `root;...;leaf value` line each, as flamegraph.pl reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from otel_gpuflame.encode.dictionary import display_name, valid_text
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile.model import Bundle, ValueType

_ESCAPES = str.maketrans({"\\": "\\\\", ";": "\\x3b"} | {chr(c): f"\\x{c:02x}" for c in range(32)})
"""`;` separates frames, a newline ends a line. With the backslash escaped, no two names melt."""


def encode_folded(
    bundles: Bundle | Sequence[Bundle], sample_type: ValueType, *, lines: bool = False
) -> str:
    """Folded stacks of `sample_type`, sorted, equal stacks added up; empty without samples.

    Spans and attributes are left out: the format has no place for them. `;`, control characters and
    backslashes in names are escaped. With `lines`, Python frames read `name (file.py:12)`.
    """
    totals: Counter[str] = Counter()
    for bundle in [bundles] if isinstance(bundles, Bundle) else bundles:
        texts = [_text(frame, with_line=lines) for frame in bundle.frames]
        for profile in bundle.profiles:
            if profile.sample_type != sample_type:
                continue
            for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
                totals[";".join([texts[frame] for frame in bundle.stacks[stack]])] += value
    return "".join(f"{stack} {value}\n" for stack, value in sorted(totals.items()))


def _text(frame: Frame, *, with_line: bool) -> str:
    name = display_name(frame)
    if with_line and frame.kind is FrameKind.PYTHON and frame.file:
        name = f"{name} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"
    return valid_text(name).translate(_ESCAPES)
