"""Unwind tables: how to get from any place in a file's code to its caller, for the walker in BPF."""
