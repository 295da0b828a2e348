"""The exporter's side of the memory that our injected library shares with it (docs/decisions/0011-gpu-side.md)."""
