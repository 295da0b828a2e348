"""The GPU side: which launch an execution belongs to, and what that says (docs/decisions/0011-gpu-side.md)."""
