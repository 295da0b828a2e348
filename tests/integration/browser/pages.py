# SPDX-License-Identifier: Apache-2.0
"""The profile that most browser tests open, and what they read from the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT
from tests.unit.encode_html.builders import api, bundle, gpu, mark, native, python, span

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

MS = 1_000_000
MAIN = (python("<module>", "/app/train.py", 112), python("epoch", "/app/train.py", 88))
ITEM = (*MAIN, python("item", "/torch/_tensor.py", 512), native("at::native::item(at::Tensor&)"))
WAIT = (*ITEM, api("cuStreamSynchronize"), mark("spin"))
SGEMM = gpu("sgemm<float>", "_Z5sgemmIfEvv")


def trainer() -> Bundle:
    """800 ms of gpu_wait: 600 under sgemm (100 of them in span 2), 150 in a copy, 50 lost."""
    return bundle(
        {
            GPU_WAIT: [
                ((*WAIT, SGEMM), span(1), 500 * MS),
                ((*WAIT, SGEMM), span(2), 100 * MS),
                ((*MAIN, api("cuMemcpyDtoH_v2"), mark("blocked")), None, 150 * MS),
                ((mark("no stack: ring full"),), None, 50 * MS),
            ],
            GPU_LAUNCH: [((*MAIN, api("cuLaunchKernel"), SGEMM), span(1), 12_345)],
            GPU_COPY: [((*MAIN, api("cuMemcpyDtoH_v2")), None, 3 * 1024**2)],
        }
    )


def server() -> Bundle:
    """200 ms of gpu_wait in another service."""
    rows = [((python("serve", "/srv/serve.py", 9), api("cuEventSynchronize")), None, 200 * MS)]
    return bundle({GPU_WAIT: rows}, resource=(("service.name", "server"),))


def box(page: Page, label: str) -> Locator:
    """The only box with exactly this label."""
    return page.locator("g.frame").and_(page.locator(f'[aria-label="{label}"]'))


def width_px(page: Page, label: str) -> float:
    """Drawn width of a box."""
    area = box(page, label).locator("rect").bounding_box()
    assert area is not None
    return area["width"]


def detail(page: Page) -> list[str]:
    """The three lines at the bottom."""
    return page.locator("footer p").all_inner_texts()
