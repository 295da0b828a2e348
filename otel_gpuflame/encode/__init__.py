"""Profiles to bytes: pprof, OTLP, folded stacks, HTML. Pure functions.

Import the module you need (`otel_gpuflame.encode.pprof`): this package itself loads no protobuf.
"""
