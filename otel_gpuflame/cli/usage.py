"""Refuses options that would do nothing: whoever gives one expects something of it."""

from __future__ import annotations

import click
from click.core import ParameterSource


def needs(option: str, *others: str) -> None:
    """Refuse `option`, where it was given, if none of `others` was. Raises click.UsageError."""
    given = _given()
    if option in given and not given & set(others):
        either = " or ".join(others)
        raise click.UsageError(
            f"{option} without {either} would do nothing: give {either} too, or leave out {option}"
        )


def excludes(option: str, other: str) -> None:
    """Refuse `option` beside `other`, with which it means nothing. Raises click.UsageError."""
    if {option, other} <= _given():
        raise click.UsageError(f"{option} with {other} would do nothing: leave out one of them")


def _given() -> set[str]:
    """Long names of the options of the running command that were given, in the direction in which they were."""
    context = click.get_current_context()
    given: set[str] = set()
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            is_off = parameter.secondary_opts and not context.params[parameter.name or ""]
            given.update(parameter.secondary_opts if is_off else parameter.opts)
    return given
