"""Caches: programs choose the numbers and names that they are keyed by, so each has a bound."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import otel_gpuflame


def test_every_cache_of_a_function_with_arguments_has_a_bound() -> None:
    """`functools.cache` keeps what it was asked for until the process ends."""
    caches = {}
    for module in pkgutil.walk_packages(otel_gpuflame.__path__, "otel_gpuflame."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if hasattr(value, "cache_parameters") and inspect.signature(value).parameters:
                caches[f"{value.__module__}.{name}"] = value.cache_parameters()["maxsize"]
    assert "otel_gpuflame.profile.labels.device_call_frame" in caches
    assert {name: size for name, size in caches.items() if size is None} == {}
