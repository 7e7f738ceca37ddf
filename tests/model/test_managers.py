"""Whose processes a cgroup's are: each manager's paths, and paths that only resemble them."""

from __future__ import annotations

import pytest

from nodeagent.model.managers import manager_of

ID = "0f" * 32
ALLOCATION = "8c5f7ab2-9c1d-4e0b-8f3a-1d2e3f4a5b6c"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"/kubepods.slice/kubepods-podx.slice/cri-containerd-{ID}.scope", "the kubelet"),
        (f"/kubepods/burstable/podx/{ID}", "the kubelet"),
        (f"/kubelet.slice/kubelet-kubepods.slice/crio-{ID}.scope", "the kubelet"),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "Slurm"),
        ("/slurm_node1/uid_1000/job_7/step_batch", "Slurm"),
        ("/slurm/uid_1000/job_7", "Slurm"),
        ("/system.slice/node1_slurmstepd.scope/job_7", "Slurm"),
        ("/batch/job_7/step_0", "Slurm"),
        # Where its jobs have no cgroups of their own, they are here.
        ("/system.slice/slurmd.service", "Slurm"),
        ("/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@node7", "HTCondor"),
        ("/htcondor/condor_var_lib_condor_execute_slot4@node7", "HTCondor"),
        ("/batch/condor_scratch_slot1@node7.example.org/below", "HTCondor"),
        ("/pbs_jobs.service/jobid/2404743.head", "PBS"),
        ("/pbs_jobs.service/jobs/2404743.head", "PBS"),
        ("/pbspro.slice/pbspro-7.slice", "PBS"),
        ("/pbspro/7.head", "PBS"),
        (f"/nomad.slice/share.slice/{ALLOCATION}.rank0.scope", "Nomad"),
        (f"/nomad.slice/reserve.slice/{ALLOCATION}.rank0.scope", "Nomad"),
        (f"/nomad.slice/{ALLOCATION}.rank0.scope", "Nomad"),
        (f"/nomad.slice/docker-{ID}.scope", "Nomad"),
        (f"/nomad/{ALLOCATION}.rank0", "Nomad"),
        ("/nomad/shared", "Nomad"),
        ("/lsf/cluster1/job.104.4181.1600143134", "LSF"),
    ],
)
def test_a_manager_is_known_by_its_cgroups(path: str, name: str) -> None:
    found = manager_of(path)
    assert found is not None and found.name == name and found.instead


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/system.slice/nomad.service",
        "/system.slice/condor.service",
        "/system.slice/pbs.service",
        "/system.slice/kubelet.service",
        "/system.slice/slurm-exporter.service",
        "/system.slice/job_7",
        "/system.slice/index@0.service",
        "/system.slice/lsf/x",
        "/system.slice/htcondor-exporter.service",
        f"/system.slice/docker-{ID}.scope",
        "/user.slice/user-1000.slice/session-3.scope",
        "/nomadic/x",
        "/nodeagent/rank0",
    ],
)
def test_what_only_resembles_one_is_nobodys(path: str) -> None:
    assert manager_of(path) is None
