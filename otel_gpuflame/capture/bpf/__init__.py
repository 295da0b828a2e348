"""Live capture: loading the BPF object, attaching probes, draining rings."""
