"""Edges that make events: live capture by BPF, and replay of a recording."""
