"""A small decoder-only transformer in PyTorch, with a cache of keys and values. It is not trained: it babbles."""

from __future__ import annotations

import sys
from typing import Final

from worker import MAX_BATCH, MAX_NEW_TOKENS, MAX_PROMPT_TOKENS

try:
    import torch
except ImportError:
    sys.exit(
        "inference: torch (PyTorch) is not installed: pip install torch, or use --device driver"
    )
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY: Final = 4096
HEAD_WIDTH: Final = 64
MAX_TOKENS: Final = MAX_PROMPT_TOKENS + MAX_NEW_TOKENS
BUCKET_TOKENS: Final = 64
"""Texts are filled up to a multiple of so many tokens, the rest of them masked: libraries then see few shapes."""


class Block(nn.Module):
    """Attention and a feed-forward network, each added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        cache = torch.zeros(2, MAX_BATCH, MAX_TOKENS, width // HEAD_WIDTH, HEAD_WIDTH)
        self.register_buffer("cache", cache)

    def forward(self, hidden: Tensor, slots: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Shapes: hidden (texts, new, width), slots (texts), positions (texts, new), mask (texts, 1, new, tokens)."""
        hidden = hidden + self.attend(self.before_attention(hidden), slots, positions, mask)
        widened = functional.gelu(self.widen(self.before_feed_forward(hidden)))
        fed_forward: Tensor = hidden + self.narrow(widened)
        return fed_forward

    def attend(self, hidden: Tensor, slots: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Of the new tokens to all of their text."""
        query, *new = self.project_in(hidden).unflatten(-1, (3, -1, HEAD_WIDTH)).unbind(2)
        tokens = mask.shape[-1]
        seen = []
        for cache, values in zip(self.cache, new, strict=True):
            cache[slots[:, None], positions] = values
            seen.append(cache[slots, :tokens].transpose(1, 2))
        attended = functional.scaled_dot_product_attention(
            query.transpose(1, 2), *seen, attn_mask=mask
        )
        projected: Tensor = self.project_out(attended.transpose(1, 2).flatten(2))
        return projected


class TorchModel(nn.Module):
    """See `worker.Model`. Half precision on a GPU."""

    def __init__(self, device: str, layers: int, width: int) -> None:
        super().__init__()
        if device == "cuda" and not torch.cuda.is_available():
            sys.exit("inference: torch finds no CUDA device: use --device cpu or --device driver")
        torch.manual_seed(0)
        self.device, self._lengths = device, [0] * MAX_BATCH
        with torch.device(device):
            self.tokens = nn.Embedding(VOCABULARY, width)
            self.places = nn.Embedding(MAX_TOKENS, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
            self.last_norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
            self.register_buffer("last", torch.zeros(MAX_BATCH, dtype=torch.int64))
        if device == "cuda":
            # It makes a plan for each new shape, on an H200 for 40 to 860 ms: idle for that in 12.8 s of 15.
            torch.backends.cuda.enable_cudnn_sdp(False)
            self.to(torch.bfloat16)  # Buffers of whole numbers stay what they are.

    def warm_up(self) -> None:
        """Have all kernels loaded, and libraries choose among theirs, for each shape that can come."""
        for prompt_tokens in range(BUCKET_TOKENS, MAX_PROMPT_TOKENS + 1, BUCKET_TOKENS):
            self.prefill(0, prompt_tokens)
        for texts in range(1, MAX_BATCH + 1):
            self._lengths = [0] * MAX_BATCH
            self.decode(list(range(texts)))

    @torch.inference_mode()
    def prefill(self, slot: int, prompt_tokens: int) -> None:
        """Read a text of so many tokens into a slot; does not wait for the GPU."""
        self._lengths[slot] = prompt_tokens
        # What fills it up is written behind the text, where nothing looks before new tokens are there.
        text = torch.arange(filled_up(prompt_tokens))[None]
        self.advance(text.to(self.device), [slot], text, prompt_tokens - 1)

    @torch.inference_mode()
    def decode(self, slots: list[int]) -> list[int]:
        """One more token for each text. `tolist` waits until the GPU has it."""
        positions = torch.tensor([[self._lengths[slot]] for slot in slots])
        for slot in slots:
            self._lengths[slot] += 1
        tokens: list[int] = self.advance(self.last[slots][:, None], slots, positions, 0).tolist()
        return tokens

    def advance(self, tokens: Tensor, slots: list[int], positions: Tensor, after: int) -> Tensor:
        """What follows in each text, shape (texts), after one of its new tokens: (texts, new), as their positions."""
        seen = torch.arange(filled_up(int(positions.max()) + 1), device=self.device)
        positions, where = positions.to(self.device), torch.tensor(slots).to(self.device)
        mask = seen <= positions[:, None, :, None]
        hidden = self.tokens(tokens) + self.places(positions)
        for block in self.blocks:
            hidden = block(hidden, where, positions, mask)
        following: Tensor = self.head(self.last_norm(hidden[:, after])).argmax(-1)
        self.last[where] = following
        return following


def filled_up(tokens: int) -> int:
    """The next multiple of BUCKET_TOKENS."""
    return -(-tokens // BUCKET_TOKENS) * BUCKET_TOKENS
