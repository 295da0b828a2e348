"""What to capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from otel_gpuflame.capture.bpf.backend import Loader, RingSizes
from otel_gpuflame.capture.bpf.drain import POLL_NS
from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.capture.devices import nvidia_is_loaded
from otel_gpuflame.capture.windows import BudgetOptions


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What to capture. `pids` are captured with their present and future descendants."""

    pids: tuple[int, ...] = ()
    libraries: tuple[Path, ...] = ()
    """Libraries to probe at once; others are found when a process maps them."""
    host_wide: bool = False
    """Capture every process that uses a GPU library, now or later."""
    budget: BudgetOptions | None = None
    """Capture calls that return at once only in windows, within this budget."""
    unwind: bool = False
    """Walk native stacks by unwind tables, where the kernel takes the search."""
    cpu: bool = False
    """Also on-CPU samples and off-CPU stacks."""
    driver: bool = False
    """Also system calls on GPU devices."""
    devices: tuple[Path, ...] = ()
    """Device files that `driver` takes for GPUs besides those of known drivers."""
    gpu: bool = False
    """Also when devices executed what they were given, of processes with our injected library: in windows, where there
    is a budget."""
    loader: Loader = Loader.LIBBPF
    rings: RingSizes = field(default_factory=RingSizes)
    poll_ns: int = POLL_NS
    """Pause of the drain between sweeps."""
    attributes: tuple[tuple[str, str], ...] = ()

    def features(self, proc: Path) -> set[Feature]:
        """What BPF programs are needed for that."""
        wanted = {
            Feature.CALLS: True,
            Feature.CPU: self.cpu,
            Feature.DRIVER: self.driver,
            # On other hosts nothing is missing.
            Feature.ERRORS: nvidia_is_loaded(proc),
        }
        return {feature for feature, is_wanted in wanted.items() if is_wanted}
