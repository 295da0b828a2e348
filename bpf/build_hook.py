"""Hatchling build hook: compiles the BPF object and the native libraries into otel_gpuflame/_artifacts.

Runs for wheels and for editable installs. Nothing built is ever committed.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# command -> (what it is for, Debian package)
TOOLS = {
    "make": ("run the Makefiles", "make"),
    "cc": ("compile the native libraries", "gcc"),
    "clang": ("compile the BPF programs", "clang"),
    "llvm-strip": ("strip the BPF object", "llvm"),
}
DIRECTORIES = ("bpf", "otel_gpuflame/native")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles before files are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Build everything; the wheel becomes specific to this platform, but not to a Python version."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        self._check_tools()
        for directory in DIRECTORIES:
            self._make(root / directory)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def _check_tools(self) -> None:
        missing = [name for name in TOOLS if shutil.which(name) is None]
        if missing:
            lines = "\n".join(f"  {name}: needed to {TOOLS[name][0]}" for name in missing)
            packages = " ".join(
                dict.fromkeys([TOOLS[name][1] for name in missing] + ["libbpf-dev"])
            )
            raise RuntimeError(
                f"cannot build otel-gpuflame, missing:\n{lines}\n"
                f"Debian, Ubuntu: apt-get install {packages}"
            )

    def _make(self, directory: Path) -> None:
        result = subprocess.run(
            ["make", "-C", str(directory)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            hint = ""
            if "bpf_helpers.h" in result.stderr:
                hint = "\nlibbpf's headers are missing: apt-get install libbpf-dev"
            raise RuntimeError(f"make -C {directory.name} failed:\n{result.stderr.strip()}{hint}")
