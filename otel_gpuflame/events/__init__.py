"""The vocabulary: what sources observe. Pure data, shared by live capture and replay."""
