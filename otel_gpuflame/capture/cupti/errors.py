"""Why a process's region cannot be used. Never leaves this package: other work goes on without it."""

from __future__ import annotations


class RegionError(Exception):
    """Base; the text says what was found, without the process."""


class NotReadyError(RegionError):
    """The library has not finished making it; look again."""


class MalformedError(RegionError):
    """Holds something that the library never writes."""


class OtherVersionError(RegionError):
    """Written by a library of another version: final."""


class InUseError(RegionError):
    """Another exporter reads it: two would take each other's records."""


class NotOursError(RegionError):
    """The region of another process, or one that is read already."""
