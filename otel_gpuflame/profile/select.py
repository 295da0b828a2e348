"""Parts of profiles: one span, one sample type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from otel_gpuflame.profile.model import Bundle, Profile


def only_span(bundles: Iterable[Bundle], span_id: bytes) -> list[Bundle]:
    """Samples linked to the span with this 8-byte id; bundles without any are left out."""
    selected = []
    for bundle in bundles:
        wanted = [index for index, link in enumerate(bundle.links) if link.span_id == span_id]
        profiles = tuple(_rows_with_links(profile, wanted) for profile in bundle.profiles)
        if any(len(profile.value) for profile in profiles):
            selected.append(replace(bundle, profiles=profiles))
    return selected


def _rows_with_links(profile: Profile, links: list[int]) -> Profile:
    rows = np.isin(profile.link, links)
    return replace(
        profile,
        stack=profile.stack[rows],
        link=profile.link[rows],
        attributes=profile.attributes[rows],
        value=profile.value[rows],
    )
