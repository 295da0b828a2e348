"""How many libraries are probed: each takes descriptors, and any user may bring files with the right names."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_MAX_DESCRIPTORS: Final = 4096
"""For libraries: 409 libcudas with uprobe_multi, which take 10 each. Without it one takes 151."""
_KEPT_DESCRIPTORS: Final = 400
"""For everything else, of which 256 are of mapped files."""
_USERS_SHARE: Final = 2
"""One user gets no more than half."""
_OF_PROCESS: Final = 16
"""Libraries that one process brings. Programs with PyTorch have four: two drivers, the engine, CUPTI."""
_WANTED_LIMIT: Final = _MAX_DESCRIPTORS + _KEPT_DESCRIPTORS


class Holder(NamedTuple):
    """Who was the first to map a library."""

    pid: int
    uid: int


class Holding(NamedTuple):
    """A library with probes: whom it counts for (None: whoever started the capture), and its descriptors."""

    holder: Holder | None
    descriptors: int


def holder_of(pid: int, proc: Path) -> Holder | None:
    """Whoever runs a process, as the host sees it; None where it is gone."""
    try:
        # No Path: it interns each part, and Python 3.12 frees no interned string.
        return Holder(pid, os.stat(f"{proc}/{pid}").st_uid)
    except OSError:
        return None


def raise_descriptor_limit() -> None:
    """As far as libraries may need it, and the hard limit lets us: services begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_LIMIT if hard == resource.RLIM_INFINITY else min(_WANTED_LIMIT, hard)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def lack_of_room(wanted: Holding, holdings: Iterable[Holding]) -> str:
    """Why one more library finds no room beside `holdings`; empty where it does."""
    holder, descriptors = wanted
    if holder is None:
        return ""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_DESCRIPTORS
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft - _KEPT_DESCRIPTORS)
    of_host, of_user, of_process = descriptors, descriptors, 1
    for each in holdings:
        of_host += each.descriptors
        if each.holder is not None:
            of_user += each.descriptors if each.holder.uid == holder.uid else 0
            of_process += each.holder.pid == holder.pid
    if of_process > _OF_PROCESS:
        return f"process {holder.pid} has mapped {_OF_PROCESS} others"
    if of_user > limit // _USERS_SHARE:
        return f"those of user {holder.uid} take {limit // _USERS_SHARE} descriptors"
    return f"all take {limit} descriptors" if of_host > limit else ""
