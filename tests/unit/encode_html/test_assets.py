# SPDX-License-Identifier: Apache-2.0
"""The files that the page is made of."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

import otel_gpuflame
from otel_gpuflame.encode.html import SCRIPTS, encode_html

ASSETS = Path(otel_gpuflame.__file__).parent / "encode" / "html_assets"
BUNDLE = ASSETS / "vendor" / "d3-flame-graph.min.js"


def test_bundle_is_the_one_described() -> None:
    """The bundled library is small, and the one whose checksum and size the description gives."""
    content = BUNDLE.read_bytes()
    description = (ASSETS / "README.md").read_text(encoding="utf-8")
    assert len(content) < 300_000
    assert hashlib.sha256(content).hexdigest() in description
    assert f"{len(content):,} bytes" in description


def test_bundle_holds_the_pinned_versions() -> None:
    """Versions and licences at the top of the bundle are those that the lock file pins."""
    lock = json.loads((ASSETS / "vendor" / "package-lock.json").read_text(encoding="utf-8"))
    head = BUNDLE.read_text(encoding="utf-8").partition("*/")[0]
    for path, package in lock["packages"].items():
        name = path.removeprefix("node_modules/")
        if name.startswith("d3-") or name == "internmap":
            assert f"{name} {package['version']} ({package['license']})" in head


def test_page_carries_the_licences() -> None:
    """Whoever gets a page gets the licence texts of what is in it."""
    licences = (ASSETS / "vendor" / "LICENSES.txt").read_text(encoding="utf-8")
    assert licences in encode_html([], title="t")


@pytest.mark.parametrize("name", SCRIPTS)
def test_own_scripts_make_no_markup(name: str) -> None:
    """Own scripts have no way to turn text into markup or code."""
    script = (ASSETS / name).read_text(encoding="utf-8")
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|\.html\("
    assert re.search(unsafe, script) is None


def test_all_scripts_are_joined() -> None:
    """No script lies unused beside the others."""
    assert {path.name for path in ASSETS.glob("*.js")} == set(SCRIPTS)
