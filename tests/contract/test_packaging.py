"""What is in a wheel, what it needs, and what a machine that cannot build one is told."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from tests.contract.native_build import ROOT, require_tools
from tests.tiers import require

NATIVE = (
    *("capture.bpf.o", "libogf_drain.so", "libogf_context.so", "libogf_inject.so"),
    *("libogf_unwind.so", "capture.bcc", "libbpf.so.1", "libbpf-NOTICE"),
)
DEMO = ("h200_service.ogfcap", "h200_service.json")
BUILD_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", ".gitignore")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "_artifacts", "node_modules")
BASE = "opentelemetry-api"


def copy_sources(directory: Path) -> Path:
    """What a build needs, without anything that was built before."""
    checkout = directory / "checkout"
    for name in ("otel_gpuflame", "bpf"):
        shutil.copytree(ROOT / name, checkout / name, ignore=LEFT_OUT)
    captures = ROOT / "examples" / "captures"
    shutil.copytree(captures, checkout / "examples" / "captures")
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, checkout)
    return checkout


def build(checkout: Path, target: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Build a wheel or sdist into dist/, without network: the backend is that of this environment."""
    require("bpf", importlib.util.find_spec("hatchling") is not None, "hatchling is not installed")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "dist"],
        cwd=checkout,
        env=environment | ({"PATH": path} if path is not None else {}),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    require_tools("make", "cc", "clang", "llvm-strip")
    checkout = copy_sources(tmp_path_factory.mktemp("wheel"))
    result = build(checkout, "wheel")
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = (checkout / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and what the base install pulls in, and nothing else."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in needed(BASE):
        for file in importlib.metadata.files(name) or ():
            target = site / file
            if ".." not in file.parts and Path(str(file.locate())).is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    return site


def needed(distribution: str) -> Iterator[str]:
    """A distribution and all that it requires here, unconditionally."""
    yield distribution
    for requirement in importlib.metadata.requires(distribution) or ():
        if ";" not in requirement:
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match is not None
            yield from needed(match[0])


def run_installed(site: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run Python that sees the standard library and `site` only."""
    return subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.append({str(site)!r})\n{program}",
        ],
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_has_everything_that_runs(wheel: Path) -> None:
    """Compiled parts, the recording of the demo, the pages' scripts and styles, and the vendored pprof messages."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {f"otel_gpuflame/_artifacts/{name}" for name in (*NATIVE, *DEMO)}
    sources = ROOT / "otel_gpuflame"
    assets = [
        f"encode/html_assets/{kind}" for kind in ("*.js", "*.css", "*.html", "vendor/*.min.js")
    ]
    for pattern in ("**/*.py", "**/*.pyi", *assets):
        expected |= {str(p.relative_to(ROOT)) for p in sources.glob(pattern)}
    assert "otel_gpuflame/encode/_vendor/profile_pb2.py" in expected
    assert "otel_gpuflame/encode/html_assets/page.html" in expected
    assert expected - names == set()


def test_the_wheel_has_nothing_else(wheel: Path) -> None:
    """No tests, no caches, nothing outside the package and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"otel_gpuflame"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".tmp"))]


def test_the_wheel_is_for_a_platform_and_any_python(wheel: Path) -> None:
    """Native parts tie it to Linux and a processor, but to no version of Python."""
    assert re.fullmatch(
        rf"otel_gpuflame-[^-]+-py3-none-linux_{os.uname().machine}\.whl", wheel.name
    )
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/WHEEL"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Root-Is-Purelib"] == "false"
    assert re.match(r"py3-none-linux_", metadata["Tag"])


def test_the_base_install_needs_the_opentelemetry_api_only(wheel: Path) -> None:
    """Everything else that the agent needs comes with the extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        requirements = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    unconditional = [r for r in requirements if ";" not in r]
    assert [re.split(r"[<>=~! ]", r)[0] for r in unconditional] == [BASE]
    assert all("extra == 'agent'" in r for r in requirements if ";" in r)


def test_instrument_works_in_the_base_install(installed: Path) -> None:
    """With the API alone, the library of the wheel is found and spans can be published."""
    program = (
        "import otel_gpuflame.instrument as instrument\n"
        "from otel_gpuflame.instrument._library import library_path\n"
        f"assert str(library_path()).startswith({str(installed)!r}), library_path()\n"
        "assert instrument.install()\n"
        "instrument.uninstall()\n"
        "loaded = {m.split('.')[0] for m in sys.modules} & {'numpy', 'google', 'grpc', 'click', 'rich'}\n"
        "assert not loaded and 'opentelemetry.sdk' not in sys.modules, loaded\n"
        "print('published')"
    )
    result = run_installed(installed, program)
    assert (result.returncode, result.stdout) == (0, "published\n"), result.stderr


def test_opentelemetry_instrument_finds_the_instrumentor(installed: Path) -> None:
    """The wheel's metadata names it; it is loaded and started as that command does."""
    program = (
        "from importlib.metadata import entry_points\n"
        "(entry,) = entry_points(group='opentelemetry_instrumentor', name='gpuflame')\n"
        "assert entry.load()().instrument(skip_dep_check=True)\n"
        "print('published')"
    )
    result = run_installed(installed, program)
    assert (result.returncode, result.stdout) == (0, "published\n"), result.stderr


def test_the_command_line_of_a_base_install_says_what_is_missing(installed: Path) -> None:
    """The script exists without the extra too: it names the extra instead of showing a traceback."""
    result = run_installed(installed, "from otel_gpuflame.cli import main; main()")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "pip install 'otel-gpuflame[agent]'" in result.stderr


@pytest.mark.parametrize(
    ("missing", "purpose"),
    [
        ("clang", "clang: needed to compile the BPF programs"),
        ("llvm-strip", "llvm-strip: needed to strip the BPF object"),
        ("cc", "cc: needed to compile the native libraries"),
        ("make", "make: needed to run the Makefiles"),
    ],
)
def test_a_missing_tool_is_named(tmp_path: Path, missing: str, purpose: str) -> None:
    """A machine that cannot build is told what is missing, what for, and how to install it."""
    tools = {"make", "cc", "clang", "llvm-strip"}
    require_tools(*tools)
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in tools - {missing}:
        (directory / tool).symlink_to(str(shutil.which(tool)))
    result = build(copy_sources(tmp_path), "wheel", path=str(directory))
    assert result.returncode != 0
    output = result.stdout + result.stderr
    assert purpose in output
    assert "apt-get install" in output
    assert "needed to" not in output.replace(purpose, "")


def test_a_compiler_error_is_shown(tmp_path: Path) -> None:
    """What the compiler says about a broken source reaches the person who builds."""
    require_tools("make", "cc", "clang", "llvm-strip")
    checkout = copy_sources(tmp_path)
    source = checkout / "otel_gpuflame" / "native" / "context.c"
    source.write_text(source.read_text() + "\n#error broken on purpose\n")
    result = build(checkout, "wheel")
    assert result.returncode != 0
    assert "make -C native failed" in result.stdout + result.stderr
    assert "broken on purpose" in result.stdout + result.stderr


def test_the_sdist_holds_sources_and_nothing_built(tmp_path: Path) -> None:
    """Everything that the wheel is built from, and no binary; making it needs no compiler."""
    checkout = copy_sources(tmp_path)
    artifacts = checkout / "otel_gpuflame" / "_artifacts"
    artifacts.mkdir()
    (artifacts / "capture.bpf.o").write_bytes(b"old")
    result = build(checkout, "sdist", path="")
    assert result.returncode == 0, result.stderr
    (path,) = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = [p for d in ("bpf", "otel_gpuflame") for p in (ROOT / d).rglob("*")]
    built_from = {
        str(p.relative_to(ROOT))
        for p in sources
        if p.suffix in (".c", ".h", ".py") or p.name == "Makefile"
    }
    assert {
        n for n in built_from if "__pycache__" not in n and "node_modules" not in n
    } - names == set()
    assert not [name for name in names if name.endswith((".o", ".so"))]
