"""`otel-gpuflame env`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Final

import click

from otel_gpuflame.capture.cupti.inject import LIBRARY, VARIABLE, library_path
from otel_gpuflame.errors import ConfigError

IMAGE: Final = "otel-gpuflame:latest"
"""As in collector-config/deploy/daemonset.yaml."""
VOLUME: Final = "otel-gpuflame"
DIRECTORY: Final = "/otel-gpuflame"
"""Where the pod has the library."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_PATCH: Final = """\
# For a Deployment, StatefulSet, DaemonSet or Job: kubectl patch deployment NAME --patch-file FILE
spec:
  template:
    spec:
      initContainers:
        - name: {volume}
          image: {image}
          imagePullPolicy: IfNotPresent
          args: [env, --copy-to, {directory}]
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            runAsNonRoot: true
            runAsUser: 65534
            capabilities:
              drop: [ALL]
            seccompProfile:
              type: RuntimeDefault
          resources:
            requests:
              cpu: 50m
              memory: 64Mi
            limits:
              memory: 256Mi
          volumeMounts:
            - name: {volume}
              mountPath: {directory}
      containers:
        - name: {container}
          env:
            - name: {variable}
              value: {directory}/{library}
          volumeMounts:
            - name: {volume}
              mountPath: {directory}
              readOnly: true
      volumes:
        - name: {volume}
          emptyDir:
            sizeLimit: 16Mi
"""


@click.command(
    epilog="""\b
Examples:
  eval "$(otel-gpuflame env)"
  otel-gpuflame env --systemd | sudo tee /etc/systemd/system/trainer.service.d/gpu.conf
  otel-gpuflame env --k8s --container trainer > patch.yaml
  otel-gpuflame env --copy-to /opt/otel-gpuflame"""
)
@click.option("--systemd", is_flag=True, help="Print a drop-in for a systemd unit.")
@click.option("--k8s", is_flag=True, help="Print a patch for a Kubernetes workload.")
@click.option("--container", help="With --k8s: name of the container that uses the GPU.")
@click.option("--image", help=f"With --k8s: image of otel-gpuflame.  [default: {IMAGE}]")
@click.option(
    "--copy-to",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Copy the library into this directory instead: what the patch's init container does.",
)
def env(
    *, systemd: bool, k8s: bool, container: str | None, image: str | None, copy_to: Path | None
) -> None:
    """Print what a program must be started with, so that its GPU times can be captured.

    One variable has the CUDA driver load our library. It sleeps until `agent` or `record --pid` asks for GPU times.
    `otel-gpuflame record -- COMMAND` does this by itself.
    """
    if systemd + k8s + (copy_to is not None) > 1:
        raise click.UsageError("give one of --systemd, --k8s and --copy-to")
    if not k8s and (container is not None or image is not None):
        raise click.UsageError(
            "--container and --image without --k8s would do nothing: give --k8s too"
        )
    if k8s:
        click.echo(_patch(container, image or IMAGE), nl=False)
    elif copy_to is not None:
        _copy(copy_to)
    elif systemd:
        # Quoted as systemd reads it, where % begins a specifier.
        path = str(library_path()).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        click.echo(f'[Service]\nEnvironment="{VARIABLE}={path}"')
    else:
        click.echo(f"export {VARIABLE}={shlex.quote(str(library_path()))}")


def _patch(container: str | None, image: str) -> str:
    if container is None:
        raise click.UsageError("--k8s needs --container: the patch goes by the container's name")
    if _NAME.fullmatch(container) is None:
        raise click.UsageError(f"{container!r} is no name of a container")
    if container == VOLUME:
        raise click.UsageError(f"{VOLUME!r} is the name of the init container: rename the other")
    if _IMAGE.fullmatch(image) is None:
        raise click.UsageError(f"{image!r} is no name of an image")
    return _PATCH.format(
        container=container,
        image=f'"{image}"',
        volume=VOLUME,
        directory=DIRECTORY,
        variable=VARIABLE,
        library=LIBRARY.name,
    )


def _copy(directory: Path) -> None:
    """Whole or not at all: a program may be loading the one that was there."""
    target = directory / LIBRARY.name
    partial = directory / f".{LIBRARY.name}.{os.getpid()}"
    try:
        shutil.copyfile(library_path(), partial)
        partial.chmod(0o555)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
