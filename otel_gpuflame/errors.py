"""Errors that a person can act on: each message says what is wrong and what to do about it."""

from __future__ import annotations


class OtelGpuflameError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(OtelGpuflameError):
    """A flag, file or environment variable has a value that cannot be used."""


class SourceUnavailable(OtelGpuflameError):
    """Capture cannot start on this host; the message names the missing thing and the remedy."""


class TargetError(OtelGpuflameError):
    """The process to be recorded does not exist, cannot be started, or must not be read."""


class CaptureFileError(OtelGpuflameError):
    """A capture file cannot be read at all. Damage after a readable start is reported, not raised."""


class TracesFileError(OtelGpuflameError):
    """A file of recorded traces cannot be read, or is something else; the message names the line."""


class EncodeError(OtelGpuflameError):
    """A profile cannot be expressed in the output format."""


class ExportError(OtelGpuflameError):
    """An exporter cannot be set up; failures while sending are results, not exceptions."""
