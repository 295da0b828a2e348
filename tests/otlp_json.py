"""Messages of OTLP as its JSON has them."""

from __future__ import annotations

import base64
from typing import Any


def as_otlp_json(message: Any) -> Any:
    """What protobuf's JSON is in OTLP's, which writes ids in hexadecimal, not base64."""
    if isinstance(message, list):
        return [as_otlp_json(item) for item in message]
    if not isinstance(message, dict):
        return message
    return {
        key: base64.b64decode(value).hex() if key.lower().endswith("id") else as_otlp_json(value)
        for key, value in message.items()
    }
