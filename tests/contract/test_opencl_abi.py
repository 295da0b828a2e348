"""The OpenCL layer's own statement of OpenCL's ABI is Khronos'."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.tiers import require

ROOT = Path(__file__).parents[2]
ABI = ROOT / "otel_gpuflame" / "native" / "opencl" / "abi.h"
HEADER = Path("/usr/include/CL/cl_icd.h")
OURS: Final = {"OGF_CL_MAX_FUNCTIONS"}
"""Names without a counterpart."""


def constants() -> dict[str, str]:
    """Our name -> the expression that Khronos' headers have for it."""
    text = ABI.read_text(encoding="utf-8")
    table, values = text.split("enum {", 1)
    functions = re.findall(r"^\t(OGF_CL_\w+) = ", table, re.MULTILINE)
    numbers = re.findall(r"^\t(OGF_CL_\w+) = ", values, re.MULTILINE)
    found = {name: _place(name.removeprefix("OGF_CL_")) for name in functions}
    found |= {name: name.removeprefix("OGF_") for name in numbers}
    return {name: expression for name, expression in found.items() if name not in OURS}


def _place(words: str) -> str:
    """GET_EVENT_INFO is the member clGetEventInfo of the table."""
    member = "cl" + "".join(part.capitalize() for part in words.split("_"))
    member = member.replace("clEnqueueNdRange", "clEnqueueNDRange")
    return f"offsetof(struct _cl_icd_dispatch, {member}) / sizeof(void *)"


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Name -> (ours, theirs), as the C compiler computes them."""
    require("inject", HEADER.exists(), f"{HEADER} is missing: apt-get install opencl-c-headers")
    lines = [
        f'printf("{n} %lld %lld\\n", (long long){n}, (long long)({e}));'
        for n, e in constants().items()
    ]
    source = (
        "#define CL_TARGET_OPENCL_VERSION 300\n#define CL_USE_DEPRECATED_OPENCL_1_2_APIS\n"
        "#include <CL/cl.h>\n#include <CL/cl_ext.h>\n#include <CL/cl_layer.h>\n"
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{ABI}"\n'
        "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path_factory.mktemp("abi") / "abi"
    subprocess.run(["cc", "-x", "c", "-o", str(program), "-"], input=source, text=True, check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return {name: (int(a), int(b)) for name, a, b in (line.split() for line in output.splitlines())}


@pytest.mark.parametrize("name", constants())
def test_numbers_are_those_of_the_headers(values: dict[str, tuple[int, int]], name: str) -> None:
    """A wrong place in the table of functions would call another function."""
    ours, theirs = values[name]
    assert ours == theirs
