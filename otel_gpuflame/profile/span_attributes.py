"""Ids of spans as attributes of samples, for backends that do not read links."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile

TRACE_ID: Final = "trace_id"
SPAN_ID: Final = "span_id"
"""As the labels are called that pprof files have, and others read."""


def with_span_attributes(bundle: Bundle) -> Bundle:
    """The same samples and links; those with a link have its ids as text, 32 and 16 hexadecimal digits."""
    numbers: dict[AttributeSet, int] = {}
    for each in bundle.attribute_sets:
        numbers.setdefault(each, len(numbers))
    profiles = [_with(profile, bundle, numbers) for profile in bundle.profiles]
    return replace(bundle, attribute_sets=tuple(numbers), profiles=tuple(profiles))


def _with(profile: Profile, bundle: Bundle, numbers: dict[AttributeSet, int]) -> Profile:
    """`numbers` of attribute sets; new ones are added."""
    width = len(bundle.attribute_sets)
    pairs = (profile.link.astype(np.int64) + 1) * width + profile.attributes
    distinct, row = np.unique(pairs, return_inverse=True)
    found = np.zeros(len(distinct), np.int32)
    for position, pair in enumerate(distinct.tolist()):
        link, attributes = divmod(pair, width)
        of_sample = bundle.attribute_sets[attributes]
        span = bundle.links[link - 1] if link else None
        if span is not None and any(span.trace_id) and any(span.span_id):
            of_sample = _named(of_sample, span)
        found[position] = numbers.setdefault(of_sample, len(numbers))
    return replace(profile, attributes=found[row.reshape(-1)])


def _named(attributes: AttributeSet, link: Link) -> AttributeSet:
    ids = {TRACE_ID: link.trace_id.hex(), SPAN_ID: link.span_id.hex()}
    return tuple(sorted({**dict(attributes), **ids}.items()))
