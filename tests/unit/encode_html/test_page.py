# SPDX-License-Identifier: Apache-2.0
"""The page as a file: closed to hostile names and to the network, and always the same."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable

import pytest

from otel_gpuflame.encode.html import encode_html
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_WAIT
from tests.unit.encode_html.builders import bundle, gpu, mark, python, span
from tests.unit.encode_html.page import ParsedPage

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]></SCRIPT ><svg onload=alert(1)>",
    "\u2028alert(1)\u2029",
    '"};alert(1);{"',
    "{{viewer}}{{policy}}",
    "&lt;/script&gt;",
    "\\u003c/script>",
    "nul\x00 bell\x07 escape\x1b[31m",
    "lone \udcff surrogate",
    "__proto__",
]


def everywhere(name: str) -> list[Bundle]:
    """A bundle that carries `name` wherever text of a traced program can stand."""
    frame = gpu(name, system_name=name)._replace(file=name, module=name)
    rows = [((frame, python(name, file=name), mark(name)), span(1), 1)]
    return [bundle({GPU_WAIT: rows}, resource=((name, name), ("service.name", name)))]


def structure(text: str) -> tuple[object, ...]:
    """What of the page must not depend on names: elements, attributes, code, policy."""
    page = ParsedPage(text)
    return page.elements, page.attributes, page.texts["script"][1:], page.texts["style"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_data(name: str) -> None:
    """Elements, attributes and scripts are those of a plain name, and the name is in the data."""
    text = encode_html(everywhere(name), title=name)
    assert structure(text) == structure(encode_html(everywhere("plain"), title="plain"))
    assert name in ParsedPage(text).data["strings"]


@pytest.mark.parametrize("name", HOSTILE)
def test_data_block_has_no_markup_characters(name: str) -> None:
    """The JSON holds no character that any HTML parser or script engine could take for its own."""
    text = encode_html(everywhere(name), title=name)
    block = text.partition(' id="data">')[2].partition("</script>")[0]
    assert json.loads(block)["title"] == name
    assert block.isascii()
    assert not {"<", ">", "&"} & set(block)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_can_be_written(name: str) -> None:
    """The page encodes as UTF-8, lone surrogates in names included."""
    assert encode_html(everywhere(name), title=name).encode("utf-8")


def test_title_is_text() -> None:
    """Markup in the title is shown, not obeyed."""
    page = ParsedPage(encode_html([], title="</title><script>alert(1)</script>"))
    assert page.elements["script"] == 3
    assert page.texts["title"] == ["</title><script>alert(1)</script>"]


def test_policy_allows_exactly_the_scripts_and_the_style_of_the_page() -> None:
    """The policy lists their hashes, and default-src 'none' forbids all else."""
    page = ParsedPage(encode_html(everywhere("plain"), title="t"))

    def source(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    assert page.policy() == {
        "default-src": ["'none'"],
        "script-src": [source(text) for text in page.texts["script"][1:]],
        "style-src": [source(page.texts["style"][0])],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }


def test_page_refers_to_nothing_outside() -> None:
    """No element of the page has an address, and its style loads nothing."""
    page = ParsedPage(encode_html(everywhere("plain"), title="t"))
    addresses = {"src", "href", "srcset", "action", "data", "poster", "style", "background"}
    assert not [each for each in page.attributes if each[1] in addresses]
    assert not [each for each in page.attributes if each[1].startswith("on")]
    assert "url(" not in page.texts["style"][0]
    assert "@import" not in page.texts["style"][0]


def test_page_is_deterministic() -> None:
    """The same bundles give the same bytes."""
    first, second = (encode_html(everywhere("f"), title="t") for _ in range(2))
    assert first == second


def test_size_of_ten_thousand_deep_stacks(record_property: Callable[[str, object], None]) -> None:
    """Distinct stacks of 40 frames that share nothing cost less than 6 bytes a frame."""
    choice = random.Random(1)
    frames = [python(f"module.function_{i}", f"/app/file_{i % 200}.py", i) for i in range(2000)]
    rows = [(tuple(choice.choices(frames, k=40)), span(i % 200), i + 1) for i in range(10_000)]
    empty = len(encode_html([], title="t"))
    size_bytes = len(encode_html([bundle({GPU_WAIT: rows})], title="t"))
    record_property("size_bytes", size_bytes)
    assert size_bytes - empty < 10_000 * 40 * 6
