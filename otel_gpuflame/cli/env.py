"""`otel-gpuflame env`."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Final

import click

from otel_gpuflame.capture.cupti.inject import (
    LAYER,
    LAYERS_VARIABLE,
    LIBRARY,
    VARIABLE,
    layer_path,
    library_path,
)
from otel_gpuflame.errors import ConfigError

IMAGE: Final = "otel-gpuflame:latest"
"""As in collector-config/deploy/daemonset.yaml."""
VOLUME: Final = "otel-gpuflame"
DIRECTORY: Final = "/otel-gpuflame"
"""Where the pod has the libraries."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_PATCH: Final = """\
# For a Deployment, StatefulSet or DaemonSet: kubectl patch deployment NAME --patch-file FILE
# A Job cannot be patched once it exists: put this into its manifest.
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
            - name: {layers_variable}
              value: {directory}/{layer}
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
  otel-gpuflame env --systemd | sudo install -Dm644 /dev/stdin /etc/systemd/system/trainer.service.d/gpu.conf
  sudo systemctl daemon-reload && sudo systemctl restart trainer
  otel-gpuflame env --k8s --container trainer > patch.yaml
  otel-gpuflame env --copy-to /opt/otel-gpuflame"""
)
@click.option("--systemd", is_flag=True, help="Print a drop-in for a systemd unit.")
@click.option("--k8s", is_flag=True, help="Print a patch for a Kubernetes workload.")
@click.option("--container", help="With --k8s: name of the container that uses the GPU.")
@click.option("--image", help=f"With --k8s: image of otel-gpuflame.  [default: {IMAGE}]")
@click.option(
    "--copy-to",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy the libraries into this directory instead: what the patch's init container does.",
)
def env(
    *, systemd: bool, k8s: bool, container: str | None, image: str | None, copy_to: Path | None
) -> None:
    """Print what a program must be started with, so that its GPU times can be captured.

    One variable has the CUDA driver load our library, another the OpenCL loader. They sleep until `agent` or
    `record --pid` asks for GPU times. `otel-gpuflame record -- COMMAND` does this by itself.
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
        library, layer = (_quoted_for_systemd(path) for path in (library_path(), layer_path()))
        click.echo("[Service]")
        click.echo(f'Environment="{VARIABLE}={library}"')
        click.echo(f'Environment="{LAYERS_VARIABLE}={layer}"')
    else:
        library, layer = (shlex.quote(str(path)) for path in (library_path(), layer_path()))
        click.echo(f"export {VARIABLE}={library}")
        # Before other layers. A second time, as where this is in two profiles of a shell, the layer declines.
        click.echo(f"export {LAYERS_VARIABLE}={layer}${{{LAYERS_VARIABLE}:+:${LAYERS_VARIABLE}}}")


def _quoted_for_systemd(path: Path) -> str:
    """Inside of double quotes, where % begins a specifier."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


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
        layers_variable=LAYERS_VARIABLE,
        layer=LAYER.name,
    )


def _copy(directory: Path) -> None:
    """Each whole or not at all: a program may be loading the one that was there."""
    for source in (library_path(), layer_path()):
        target = directory / source.name
        partial = directory / f".{source.name}.{os.getpid()}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, partial)
            partial.chmod(0o555)
            partial.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise ConfigError(f"cannot write {target}: {error.strerror}") from error
