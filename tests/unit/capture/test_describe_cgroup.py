"""Containers, pods and services by the lines that kernels and container runtimes really write."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.capture.describe.cgroup import Cgroup, parse_cgroup, read_cgroup

ID = "3f1b0e6c2d7a4958b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8"
OTHER = "a" * 64
UID = "0f5c6b7e-81a2-4c3d-9e4f-5a6b7c8d9e0f"
UID_ = UID.replace("-", "_")
STATIC_UID = "2d5b5ed5c3b7b2b3a1d4e5f60718293a"


@pytest.mark.parametrize(
    ("text", "container_id", "pod_uid"),
    [
        pytest.param(f"0::/system.slice/docker-{ID}.scope", ID, "", id="docker, v2, systemd"),
        pytest.param(f"0::/docker/{ID}", ID, "", id="docker, v2, cgroupfs"),
        pytest.param(f"12:cpu,cpuacct:/docker/{ID}\n0::/", ID, "", id="docker, v1"),
        pytest.param(f"0::/docker/{ID}/init.scope", ID, "", id="systemd inside docker"),
        pytest.param(
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope",
            *(ID, ""),
            id="docker, rootless",
        ),
        pytest.param(
            "0::/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
            *(ID, UID),
            id="kubernetes, containerd, systemd",
        ),
        pytest.param(
            f"0::/kubepods/besteffort/pod{UID}/{ID}", ID, UID, id="kubernetes, cgroupfs, v2"
        ),
        pytest.param(
            f"11:memory:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}",
            *(ID, UID),
            id="kubernetes, cgroupfs, v1, guaranteed",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope",
            *(ID, UID),
            id="kubernetes, CRI-O, systemd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope/container",
            *(ID, UID),
            id="kubernetes, CRI-O with crun",
        ),
        pytest.param(
            f"0::/kubepods/burstable/pod{STATIC_UID}/{ID}", ID, STATIC_UID, id="static pod"
        ),
        pytest.param(
            "7:cpuset:/system.slice/containerd.service/"
            f"kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}",
            *(ID, UID),
            id="containerd without SystemdCgroup below a systemd kubelet",
        ),
        pytest.param(
            f"0::/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope",
            *(ID, UID),
            id="kubernetes inside docker: the innermost",
        ),
        pytest.param(
            f"0::/../../kubepods-besteffort-pod{UID_}.slice/cri-containerd-{ID}.scope",
            *(ID, UID),
            id="seen from a container with its own cgroup namespace",
        ),
        pytest.param(f"0::/../cri-containerd-{ID}.scope", ID, "", id="seen from the same pod"),
        pytest.param(
            f"0::/machine.slice/libpod-{ID}.scope/container", ID, "", id="podman, systemd"
        ),
        pytest.param(f"0::/libpod_parent/libpod-{ID}", ID, "", id="podman, cgroupfs"),
        pytest.param(
            f"0::/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope",
            *(ID, ""),
            id="podman pod: not Kubernetes",
        ),
        pytest.param(
            f"0::/system.slice/train.service/libpod-payload-{ID}", ID, "", id="podman quadlet"
        ),
        pytest.param(f"0::/machine.slice/libpod-conmon-{ID}.scope", "", "", id="podman's monitor"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-conmon-{ID}.scope",
            *("", UID),
            id="CRI-O's monitor",
        ),
        pytest.param(f"0::/default/nerdctl-{ID}.scope", ID, "", id="nerdctl"),
        pytest.param(
            f"9:perf_event:/ecs/{STATIC_UID}/{STATIC_UID}-2532753814",
            *(f"{STATIC_UID}-2532753814", ""),
            id="Amazon ECS",
        ),
        pytest.param(f"0::/docker/{ID} (deleted)", ID, "", id="removed while the process runs"),
        pytest.param("0::/", "", "", id="root"),
        pytest.param("0::/system.slice/ssh.service", "", "", id="no container"),
        pytest.param(f"0::/docker/{ID[:63]}", "", "", id="not an id: too short"),
        pytest.param(f"0::/docker/{ID}0", "", "", id="not an id: too long"),
        pytest.param(f"0::/docker/{ID.upper()}", "", "", id="not an id: capitals"),
        pytest.param("", "", "", id="empty"),
        pytest.param("rubbish\n::\n0::", "", "", id="rubbish"),
    ],
)
def test_containers_and_pods_are_recognised(text: str, container_id: str, pod_uid: str) -> None:
    """Docker, containerd, CRI-O, podman and ECS, both drivers, both versions of cgroups."""
    cgroup = parse_cgroup(f"{text}\n")
    assert (cgroup.container_id, cgroup.pod_uid) == (container_id, pod_uid)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/train.service", "train"),
        ("/system.slice/vllm@llama.service", "vllm@llama"),
        (r"/system.slice/gpu\x2dworker.service", "gpu-worker"),
        ("/system.slice/system-vllm.slice/vllm@7.service", "vllm@7"),
        ("/system.slice/train.service/workers/3", "train"),
        (f"/system.slice/train.service/libpod-payload-{ID}", "train"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/infer.service", "infer"),
        ("/user.slice/user-1000.slice/session-3.scope", ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-shell-42.scope", ""),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", ""),
        ("/user.slice/user-1000.slice/user@1000.service", ""),
        ("/system.slice/ssh.service", ""),
        ("/system.slice/sshd@3-10.0.0.1.service", ""),
        ("/system.slice/slurmd.service", ""),
        ("/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", ""),
        ("/system.slice/run-u42.service", ""),
        (f"/system.slice/docker-{ID}.scope", ""),
        (f"/system.slice/containerd.service/kubepods-pod{UID_}.slice:cri-containerd:{ID}", ""),
        ("/system.slice", ""),
        ("/", ""),
    ],
)
def test_the_service_that_a_process_works_for(path: str, unit: str) -> None:
    """A systemd service has a name for its work; sessions and services that run others' work have none."""
    assert parse_cgroup(f"0::{path}\n").unit == unit


def test_on_mixed_hosts_systemds_hierarchy_names_the_service() -> None:
    """With both versions mounted the second is empty, and controllers hold what others put there."""
    text = "4:memory:/other.service\n1:name=systemd:/system.slice/train.service\n0::/\n"
    assert parse_cgroup(text).unit == "train"


@pytest.mark.parametrize(
    ("path", "in_pod"),
    [
        (f"/kubepods/pod{UID}/{ID}", True),
        ("/kubepods/besteffort/something-new", True),
        (f"/../pod{UID}/{ID}", True),
        (f"/docker/{ID}", False),
        ("/user.slice", False),
    ],
)
def test_processes_in_pods_are_known(path: str, in_pod: bool) -> None:
    """Also where the pod's id is written in a way that is not known."""
    assert parse_cgroup(f"0::{path}\n").in_pod is in_pod


def test_the_file_is_read_of_the_process(tmp_path: Path) -> None:
    """/proc/PID/cgroup, up to a limit."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/docker/{ID}\n" + "x" * 200_000)
    assert read_cgroup(7, tmp_path) == Cgroup(container_id=ID)


def test_a_process_that_is_gone_raises(tmp_path: Path) -> None:
    """The caller decides what that means."""
    with pytest.raises(OSError, match="No such file"):
        read_cgroup(7, tmp_path)
