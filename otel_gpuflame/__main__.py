"""`python -m otel_gpuflame` is `otel-gpuflame`."""

from otel_gpuflame.cli import main

if __name__ == "__main__":
    main()
