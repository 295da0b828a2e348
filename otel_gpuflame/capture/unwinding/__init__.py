"""Unwind tables for the walker in BPF: made of the files that stacks went through, off the hot path."""
