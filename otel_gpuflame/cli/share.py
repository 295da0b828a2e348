"""Options that are a share of something."""

from __future__ import annotations

import click


def share(_ctx: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """0.01 and 1% are the same. A callback of click; raises BadParameter for what is not in (0, 1]."""
    if value is None:
        return None
    text = value.strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share: 0.01 or 1%") from None
    if not 0 < number <= 1:
        raise click.BadParameter(f"{value!r} is not above 0 and at most 1 (100%)")
    return number
