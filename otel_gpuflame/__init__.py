"""GPU profiles for OpenTelemetry: what your code made the GPU do, and what it waited for.

Importing this package loads nothing else: `otel_gpuflame.instrument` runs inside applications and must stay light.
"""

__version__ = "0.1.0"
