"""Bundles -> one HTML page with an interactive flame graph, which works offline and sends nothing.

The page holds tables, not a tree: strings, frames, stacks (sorted; each one says how long a prefix
it shares with the one before) and a series of samples for each target and sample type. The viewer
in `html_assets/` makes the tree. Names come from traced programs and are hostile: they travel as
JSON in a data block, and the page's Content-Security-Policy lets the scripts of this package run
and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, count
from typing import Final, Generic, TypeVar

import numpy as np

from otel_gpuflame.errors import EncodeError
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile, Window

LAYERS: Final = ("target", "python", "native", "driver_api", "os_kernel", "gpu", "mark", "loss")
"""What a frame is coloured by; the page stores the index."""

SCRIPTS: Final = (
    "format.js",
    "profile.js",
    "view.js",
    "search.js",
    "chart.js",
    "controls.js",
    "viewer.js",
)
"""Own scripts, in the order in which they are joined."""

_KIND_LAYERS: Final = {
    FrameKind.PYTHON: "python",
    FrameKind.NATIVE: "native",
    FrameKind.OS_KERNEL: "os_kernel",
    FrameKind.GPU: "gpu",
    FrameKind.GPU_OPENCL: "gpu",
    FrameKind.MARK: "mark",
}
_API_MODULE: Final = re.compile(
    r"lib(cuda|cudart|OpenCL|nvidia-opencl|pocl|amdocl64|igdrcl|amdhip64|ze_loader)\b"
)
_API_NAME: Final = re.compile(r"(cu|cuda|cl|hip|ze)[A-Z]\w*$")
_LOSS_MARK: Final = re.compile(
    r"\[(lost|no stack|no launch|no sample|unknown|not sampled)\b|\[.* cut\]$"
)

_Item = TypeVar("_Item")
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_StackIds = tuple[int, ...]


def encode_html(bundles: Sequence[Bundle], *, title: str) -> str:
    """The page as text, to be written as UTF-8; the same bundles always give the same text.

    Bundles with equal resources are windows of one target and are added up. Samples that differ in
    attributes only are added up too, since the page does not show attributes of samples.

    Raises:
        EncodeError: a value is negative, which no width can show.
    """
    data = json.dumps(_Tables(bundles).document(title), separators=(",", ":"))
    style = _asset("viewer.css")
    vendor = _asset("vendor/d3-flame-graph.min.js")
    own = "(() => {\n'use strict';\n" + "".join(_asset(name) for name in SCRIPTS) + "})();\n"
    parts = {
        "policy": _policy(scripts=(vendor, own), style=style),
        "title": _ascii_html(title),
        "style": style,
        "data": _script_safe(data),
        "vendor": vendor,
        "viewer": own,
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], _asset("page.html"))


@lru_cache(16)
def _asset(name: str) -> str:
    path = files("otel_gpuflame") / "encode" / "html_assets"
    for part in name.split("/"):
        path = path / part
    return path.read_text(encoding="utf-8")


def _policy(*, scripts: Iterable[str], style: str) -> str:
    script_sources = " ".join(_hash_source(text) for text in scripts)
    return (
        f"default-src 'none'; script-src {script_sources}; style-src {_hash_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _ascii_html(text: str) -> str:
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode("ascii")


def _script_safe(ascii_json: str) -> str:
    """JSON in which nothing can end the script element or open a comment.

    `json.dumps` has already escaped all that is not ASCII, U+2028, U+2029 and surrogates included.
    """
    return ascii_json.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


class _Interner(Generic[_Item]):
    """Numbers items in the order in which they first appear."""

    def __init__(self) -> None:
        self._ids: dict[_Item, int] = {}

    def __call__(self, item: _Item) -> int:
        return self._ids.setdefault(item, len(self._ids))

    def items(self) -> list[_Item]:
        """All items; the position is the id."""
        return list(self._ids)


class _Tables:
    """The tables of the page, filled from all bundles."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self._strings = _Interner[str]()
        self._strings("")
        self._frames = _Interner[tuple[int, ...]]()
        self._stacks = _Interner[_StackIds]()
        self._links = _Interner[Link]()
        self._targets = _Interner[AttributeSet]()
        self._types = _Interner[tuple[str, str, str]]()
        self._values: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        self._windows = [bundle.window for bundle in bundles]
        self._labels = _target_labels(bundles)
        for known in sample_types.ALL:
            self._types((sample_types.SCOPE, known.type, known.unit))
        for bundle in bundles:
            self._add(bundle)

    def _add(self, bundle: Bundle) -> None:
        target = self._targets(bundle.resource)
        label = self._labels[bundle.resource]
        root = self._frames((LAYERS.index("target"), self._strings(label), 0, 0, 0, 0))
        # Only what samples refer to: the page of one span says nothing of the others.
        frame_id = cache(lambda index: self._frame(bundle.frames[index]))
        for profile in bundle.profiles:
            sample_type = self._types((bundle.scope, *profile.sample_type))
            values = self._values.setdefault((target, sample_type), {})
            for stack, link, value in _merged_samples(profile):
                frames = (root, *map(frame_id, bundle.stacks[stack]))
                key = (self._stacks(frames), -1 if link < 0 else self._links(bundle.links[link]))
                values[key] = values.get(key, 0) + value

    def _frame(self, frame: Frame) -> int:
        """Frames that look the same are one: addresses count only where there is no name."""
        name = frame.name or f"{_base_name(frame.module) or '[unknown]'}+{frame.address:#x}"
        texts = (name, frame.system_name, frame.file, frame.module)
        name_id, system_name, file, module = (self._strings(text) for text in texts)
        layer = LAYERS.index(_layer(frame))
        return self._frames((layer, name_id, system_name, file, module, frame.line))

    def document(self, title: str) -> dict[str, object]:
        """What the viewer reads; `html_assets/README.md` describes it."""
        stacks, new_ids = _sorted_stacks(self._stacks.items())
        frame_columns = ("layer", "name", "system_name", "file", "module", "line")
        rows = self._frames.items()
        columns = {name: [row[i] for row in rows] for i, name in enumerate(frame_columns)}
        return {
            "title": title,
            "window": _window(self._windows),
            "layers": LAYERS,
            "strings": self._strings.items(),
            "frames": columns,
            "stacks": _front_coded(stacks),
            "links": [[link.trace_id.hex(), link.span_id.hex()] for link in self._links.items()],
            "targets": [
                {"label": self._labels[resource], "attributes": resource}
                for resource in self._targets.items()
            ],
            "types": [
                {"type": name, "unit": unit, "label": _type_label(scope, name)}
                for scope, name, unit in self._types.items()
            ],
            "series": [
                _series(target, sample_type, self._values[target, sample_type], new_ids)
                for target, sample_type in sorted(self._values)
                if self._values[target, sample_type]
            ],
        }


def _merged_samples(profile: Profile) -> Iterable[tuple[int, int, int]]:
    """(stack, link, value) of a profile, added up over attributes, zeros left out."""
    if profile.value.size and int(profile.value.min()) < 0:
        raise EncodeError(
            f"{profile.sample_type.type} has a negative value, which a flame graph cannot show; "
            "write the profile as pprof instead"
        )
    pairs = np.stack([profile.stack, profile.link], axis=1)
    keys, group = np.unique(pairs, axis=0, return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, group.reshape(-1), profile.value)
    kept = sums > 0
    stacks, links = keys[kept, 0].tolist(), keys[kept, 1].tolist()
    return zip(stacks, links, sums[kept].tolist(), strict=True)


def _series(
    target: int, sample_type: int, values: dict[tuple[int, int], int], new_ids: Sequence[int]
) -> dict[str, object]:
    samples = sorted((new_ids[stack], link, value) for (stack, link), value in values.items())
    return {
        "target": target,
        "type": sample_type,
        "total": sum(values.values()),
        "stack": [stack for stack, _, _ in samples],
        "link": [link for _, link, _ in samples],
        "value": [value for _, _, value in samples],
    }


def _sorted_stacks(stacks: Sequence[_StackIds]) -> tuple[list[_StackIds], list[int]]:
    """Stacks in lexical order, and for each old position the new one."""
    order = sorted(range(len(stacks)), key=stacks.__getitem__)
    new_ids = [0] * len(stacks)
    for new, old in enumerate(order):
        new_ids[old] = new
    return [stacks[old] for old in order], new_ids


def _front_coded(stacks: Iterable[_StackIds]) -> list[int]:
    """For each stack: frames shared with the one before, number of further frames, those frames."""
    coded: list[int] = []
    before: _StackIds = ()
    for stack in stacks:
        limit = min(len(before), len(stack))
        shared = next((i for i in range(limit) if before[i] != stack[i]), limit)
        coded += (shared, len(stack) - shared, *stack[shared:])
        before = stack
    return coded


def _layer(frame: Frame) -> str:
    if frame.kind is FrameKind.MARK and _LOSS_MARK.match(frame.name):
        return "loss"
    if frame.kind is FrameKind.NATIVE and _is_driver_api(frame):
        return "driver_api"
    return _KIND_LAYERS[frame.kind]


def _is_driver_api(frame: Frame) -> bool:
    if frame.module:
        return _API_MODULE.match(_base_name(frame.module)) is not None
    return _API_NAME.match(frame.name) is not None


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _type_label(scope: str, name: str) -> str:
    if scope == sample_types.SCOPE:
        return name
    return f"{name} ({scope.removeprefix(sample_types.SCOPE + '/')})"


def _target_labels(bundles: Iterable[Bundle]) -> dict[AttributeSet, str]:
    """A distinct name for each resource: service name, if needed with pid, if needed numbered."""
    resources = list(dict.fromkeys(bundle.resource for bundle in bundles))
    names = [str(dict(resource).get("service.name", "unknown service")) for resource in resources]
    labels: dict[AttributeSet, str] = {}
    used: set[str] = set()
    for resource, name in zip(resources, names, strict=True):
        pid = dict(resource).get("process.pid")
        wanted = f"{name} (pid {pid})" if names.count(name) > 1 and pid is not None else name
        numbered = (f"{wanted} #{number}" for number in count(2))
        label = next(text for text in chain([wanted], numbered) if text not in used)
        used.add(label)
        labels[resource] = label
    return labels


def _window(windows: Sequence[Window]) -> dict[str, object] | None:
    """Start and duration of what all windows span together."""
    if not windows:
        return None
    start_ns = min(window.start_unix_ns for window in windows)
    end_ns = max(window.end_unix_ns for window in windows)
    start = _UNIX_EPOCH + timedelta(microseconds=start_ns // 1000)
    return {
        "start_utc": f"{start:%Y-%m-%d %H:%M:%S}.{start.microsecond // 1000:03} UTC",
        "start_unix_ns": str(start_ns),
        "duration_ns": end_ns - start_ns,
    }
