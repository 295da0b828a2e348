"""A "model" of the CUDA driver alone: no PyTorch is needed to see how spans reach the GPU. It computes nothing."""

from __future__ import annotations

from typing import Final

from device import Device

LAYERS: Final = 4
BYTES_A_TOKEN: Final = 64
PREFILL, ATTENTION, FEED_FORWARD = KERNELS = "prefill", "attention", "feed_forward"


class DriverModel:
    """See `worker.Model`. All its tokens are 0."""

    def __init__(self) -> None:
        self._device = Device(KERNELS)
        self._lengths: dict[int, int] = {}

    def warm_up(self) -> None:
        """Make the device usable in this thread."""
        self._device.bind_thread()

    def prefill(self, slot: int, prompt_tokens: int) -> None:
        """Copy the text, and run each layer: the longer the text, the longer it takes."""
        self._lengths[slot] = prompt_tokens
        self._device.upload(bytes(BYTES_A_TOKEN * prompt_tokens))
        for _ in range(LAYERS):
            self._device.launch(PREFILL, rounds=100 * prompt_tokens)

    def decode(self, slots: list[int]) -> list[int]:
        """Run each layer's two kernels, and wait."""
        for _ in range(LAYERS):
            self._device.launch(ATTENTION, rounds=10 * sum(self._lengths[slot] for slot in slots))
            self._device.launch(FEED_FORWARD, rounds=1000)
        self._device.synchronize()
        for slot in slots:
            self._lengths[slot] += 1
        return [0] * len(slots)
