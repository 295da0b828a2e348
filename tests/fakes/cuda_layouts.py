"""ctypes layouts of the structures that driver calls point to, for x86-64 and arm64 Linux."""

from __future__ import annotations

import ctypes

MEMORY_HOST = 1
MEMORY_DEVICE = 2
MEMORY_ARRAY = 3
FORMAT_UNSIGNED_8 = 1


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig, 56 bytes."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    ]


class Side2D(ctypes.Structure):
    """Source or destination of a CUDA_MEMCPY2D."""

    _fields_ = [
        ("x_bytes", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("array", ctypes.c_void_p),
        ("pitch_bytes", ctypes.c_size_t),
    ]


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D, 128 bytes."""

    _fields_ = [
        ("source", Side2D),
        ("target", Side2D),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


class Side3D(ctypes.Structure):
    """Source or destination of a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER."""

    _fields_ = [
        ("x_bytes", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("z", ctypes.c_size_t),
        ("level", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("array", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("pitch_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER, 200 bytes."""

    _fields_ = [
        ("source", Side3D),
        ("target", Side3D),
        ("width_bytes", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    ]
