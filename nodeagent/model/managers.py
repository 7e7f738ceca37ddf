"""Programs that place the processes of their own cgroups: a kubelet, batch systems, Nomad.

What is written into such a cgroup, or to a thread in it, its manager writes over at its own time,
and it accounts by its own plan. So nodeagent leaves those processes alone, and says whom to ask.
Told by the path alone: with a prefix that a site chose itself, nothing tells.

Source: kubernetes pkg/kubelet/cm (kubepods); Slurm, Control Group v2 plugin
(slurmstepd.scope/job_N) and Control Group in Slurm (slurm/uid_N/job_N); HTCondor Manual,
BASE_CGROUP (htcondor/condor_EXECUTE_SLOT); OpenPBS cgroups hook, cgroup_prefix
(pbs_jobs.service/jobid/ID on v1, pbs_jobs.service/jobs/ID on v2; pbspro in older ones); Nomad
client/lib/cgroupslib (nomad.slice/share.slice/ALLOCATION.TASK.scope, nomad.slice/reserve.slice;
nomad/ on v1); IBM Spectrum LSF, LSF_PROCESS_TRACKING (lsf/CLUSTER/job.ID).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """Who owns the processes of a cgroup, and how CPUs are asked of it."""

    name: str
    instead: str


KUBELET = Manager(
    name="the kubelet",
    instead="ask for whole CPUs in a Guaranteed pod, with the kubelet's static CPU manager policy",
)
SLURM = Manager(
    name="Slurm",
    instead="ask for CPUs near the GPU there, by --gpus-per-task and --gpu-bind=closest, with "
    "Cores= in gres.conf",
)
CONDOR = Manager(
    name="HTCondor",
    instead="ask for them there, by request_cpus, and have the startd bind them by "
    "ASSIGN_CPU_AFFINITY = True",
)
PBS = Manager(
    name="PBS",
    instead="ask for them there, by -l select=1:ncpus=N:ngpus=M, with cpuset and "
    "vnode_per_numa_node on in the configuration of its cgroups hook",
)
NOMAD = Manager(
    name="Nomad",
    instead="ask for whole cores there, by cores = N in the task's resources, and for one node by "
    "its numa block (Nomad Enterprise)",
)
LSF = Manager(
    name="LSF",
    instead='ask for them there, by bsub -R "affinity[core(N):cpubind=numa:membind=localprefer]"',
)
_SLURM = re.compile(
    r"(?:^|/)slurm(?:_[^/]*|d\.service)?(?:/|$)|slurmstepd\.scope(?:/|$)|/job_\d+/step_",
    re.IGNORECASE,
)
_FOUND = (
    (re.compile("kubepods"), KUBELET),
    (_SLURM, SLURM),
    (re.compile(r"/htcondor(?:/|$)|/condor_[^/]*slot\d+(?:_\d+)?(?:@[^/]*)?(?:/|$)"), CONDOR),
    (re.compile(r"/pbs_jobs\.service(?:/|$)|/pbs(?:pro|_jobs)(?:\.slice)?(?:/|$)"), PBS),
    (re.compile(r"/nomad(?:\.slice)?/|/nomad\.slice$"), NOMAD),
    (re.compile(r"^/lsf/"), LSF),
)


def manager_of(path: str) -> Manager | None:
    """Who places the processes of that cgroup; None: nobody that the path names. Pure."""
    return next((manager for pattern, manager in _FOUND if pattern.search(path)), None)
