"""Names of programs behind launchers, titles and helpers; plain command lines are in test_describe.py."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from otel_gpuflame.capture.describe import describe, workload_name, workload_of_pod

PYTHON = "/opt/venv/bin/python3.12"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun train.py", "train.py"),
        ("torchrun --nproc-per-node 8 /srv/train.py --lr 0.1 eval.py", "train.py"),
        ("torchrun --standalone --nnodes=1 train", "train"),
        ("torchrun --nproc_per_node=8 -m pkg.train --config c.py", "pkg.train"),
        ("torchrun --no-python /usr/bin/app", "app"),
        ("torchrun --unknown-flag train.py", "train.py"),
        ("torchrun --rdzv-endpoint host:29400 -- train.py", "train.py"),
        ("torchrun --help", "torchrun"),
        ("torchrun", "torchrun"),
        ("-m torch.distributed.run --nnodes 2 train.py", "train.py"),
        ("-m torch.distributed.launch --use_env train.py", "train.py"),
        ("-u -m torch.distributed.run train.py", "train.py"),
        ("accelerate launch --multi_gpu --num_processes 4 train.py", "train.py"),
        ("accelerate launch --config_file c.yaml -m pkg.train", "pkg.train"),
        ("accelerate config", "accelerate"),
        ("accelerate-launch train.py", "train.py"),
        ("-m accelerate.commands.launch --mixed_precision bf16 train.py", "train.py"),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", "train.py"),
        ("-u -m deepspeed.launcher.launch --world_info=e30= --node_rank=0 train.py", "train.py"),
        ("uvicorn app:main", "app:main"),
        ("uvicorn pkg.app:create() --factory", "pkg.app:create()"),
        ("uvicorn --reload --host 0.0.0.0 --port 8000 app:main", "app:main"),
        ("uvicorn --uds x.sock --unknown-flag app:main", "app:main"),
        ("-m uvicorn app:main --workers 2", "app:main"),
        ("gunicorn -w 4 -k uvicorn.workers.UvicornWorker -b 127.0.0.1:8000 app:main", "app:main"),
        ("gunicorn -c gunicorn.conf.py -b localhost:80 mysite.wsgi", "mysite.wsgi"),
        ("gunicorn --preload mysite.wsgi", "mysite.wsgi"),
        ("hypercorn --bind unix:/run/app.sock app:main", "app:main"),
        ("ray job submit --address http://x -- python train.py", "train.py"),
        ("ray start --head", "ray"),
        (
            "/opt/venv/lib/python3.12/site-packages/ray/_private/workers/default_worker.py --x=1",
            "ray worker",
        ),
        ("default_worker.py", "default_worker.py"),
        ("/srv/app/__main__.py", "app"),
        ("__main__.py", "__main__.py"),
    ],
)
def test_launched_programs_have_the_name(command: str, name: str) -> None:
    """A service is called by what it runs, not by what runs it."""
    script, *arguments = shlex.split(command)
    program = script if script.startswith(("-", "/", "__")) else f"/opt/venv/bin/{script}"
    assert workload_name([PYTHON, program, *arguments], PYTHON) == name


def test_launchers_that_are_no_scripts_are_known_too() -> None:
    """Some installers make programs of them."""
    assert workload_name(["torchrun", "train.py"], "/opt/bin/torchrun") == "train.py"


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("gunicorn: master [app:main]", "app:main"),
        ("gunicorn: worker [mysite.wsgi]", "mysite.wsgi"),
        ("ray::IDLE", "ray worker"),
        ("ray::Trainer.fit", "ray::Trainer"),
        ("ray::step(epoch=3)", "ray::step"),
        ("VLLM::EngineCore_0", "VLLM::EngineCore_0"),
        ("[celeryd: celery@host:Worker-1] -active-", "celeryd"),
        ("python", "python interactive"),
        ("renamed", "python interactive"),
        (" : ", "python interactive"),
    ],
)
def test_titles_that_programs_give_themselves_are_read(title: str, name: str) -> None:
    """A title overwrites the command line (setproctitle): one string, usually with a colon."""
    assert workload_name([title], PYTHON) == name


class Proc:
    """A made-up /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, command: str, parent: int = 1, executable: str = PYTHON) -> None:
        """A process."""
        directory = self.root / str(pid)
        directory.mkdir()
        (directory / "cmdline").write_bytes("\0".join([*shlex.split(command), ""]).encode())
        (directory / "environ").write_bytes(b"")
        (directory / "stat").write_text(f"{pid} (a b) c) S {parent} 1 1")
        os.symlink(executable, directory / "exe")

    def service(self, pid: int) -> object:
        """Its name."""
        return dict(describe(pid, self.root) or ())["service.name"]


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc."""
    return Proc(tmp_path)


SPAWN = (
    "python -c 'from multiprocessing.spawn import spawn_main; spawn_main(8)' --multiprocessing-fork"
)
TRACKER = "python -c 'from multiprocessing.resource_tracker import main;main(4)'"
FORKSERVER = "python -c 'from multiprocessing.forkserver import main; main(3)'"


@pytest.mark.parametrize("helper", [SPAWN, TRACKER, FORKSERVER])
def test_helpers_of_multiprocessing_are_called_like_their_parent(proc: Proc, helper: str) -> None:
    """They work for it: workers of a data loader are no service of their own."""
    proc.add(10, "python train.py")
    proc.add(11, helper, parent=10)
    proc.add(12, SPAWN, parent=11)
    assert proc.service(12) == "train.py"


@pytest.mark.parametrize("parent_executable", ["/usr/lib/systemd/systemd", "/bin/sh"])
def test_helpers_whose_parent_is_gone_are_not_called_by_their_foster_parent(
    proc: Proc, parent_executable: str
) -> None:
    """An orphan belongs to init, which is not what it works for."""
    proc.add(1, "init", parent=0, executable=parent_executable)
    proc.add(12, SPAWN, parent=1)
    proc.add(13, SPAWN, parent=99)
    assert proc.service(12) == proc.service(13) == "python -c"


def test_the_way_to_the_parent_has_an_end(proc: Proc) -> None:
    """Parents that change while they are read may form a circle."""
    proc.add(12, SPAWN, parent=13)
    proc.add(13, SPAWN, parent=12)
    assert proc.service(12) == "python -c"


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("web-7d9f8b6c5d-x2x7k", "web"),
        ("web-api-849ddf6bb-4wzqk", "web-api"),
        ("trainer-x2x7k", "trainer"),
        ("trainer-3-x2x7k", "trainer"),
        ("nightly-28934567-x2x7k", "nightly"),
        ("llama-70b-0", "llama-70b"),
        ("job-worker-12", "job-worker"),
        ("gpu-tools", "gpu-tools"),
        ("train", "train"),
        ("kube-proxy-aeiou", "kube-proxy-aeiou"),
        ("", ""),
    ],
)
def test_pods_are_called_by_what_made_them(pod: str, workload: str) -> None:
    """Deployments, Jobs, CronJobs and StatefulSets add parts that change at each restart."""
    assert workload_of_pod(pod) == workload
