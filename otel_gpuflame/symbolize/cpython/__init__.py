"""CPython of the target process: where it keeps its frames, and what a code object says."""
