"""In a machine: what the kernel makes of a cpuset partition over given CPUs; one JSON object.

    partitions.py KIND CPUS     KIND is isolated or root

A cpuset of its own right below the root, a process in it, everything put back at the end.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path("/sys/fs/cgroup")
FILES = (
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.cpus.exclusive",
    "cpuset.cpus.exclusive.effective",
    "cpuset.cpus.partition",
)


def read(path: pathlib.Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def write(path: pathlib.Path, text: str) -> str:
    """Empty when it was taken, else the error's name."""
    try:
        path.write_text(text)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def unbalanced() -> str:
    """CPUs in no scheduling domain: those that the load balancer leaves alone."""
    domains = pathlib.Path("/sys/kernel/debug/sched/domains")
    if not domains.is_dir():
        return "unknown"
    found = (int(p.name.removeprefix("cpu")) for p in domains.iterdir() if not any(p.iterdir()))
    return ",".join(map(str, sorted(found)))


def state(group: pathlib.Path, pid: int) -> dict[str, object]:
    return {
        **{name: read(group / name) for name in FILES},
        "root cpuset.cpus.effective": read(ROOT / "cpuset.cpus.effective"),
        "root cpuset.cpus.isolated": read(ROOT / "cpuset.cpus.isolated"),
        "unbalanced": unbalanced(),
        "affinity": sorted(os.sched_getaffinity(pid)),
    }


def main(kind: str, cpus: str) -> None:
    before = read(ROOT / "cgroup.subtree_control") or ""
    # The kernel lists its scheduling domains once it is asked to be verbose.
    write(pathlib.Path("/sys/kernel/debug/sched/verbose"), "Y")
    (ROOT / "cgroup.subtree_control").write_text("+cpuset")
    group = ROOT / "partition-test"
    group.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as child:
        told = {
            "cpus_error": write(group / "cpuset.cpus", cpus),
            "attach_error": write(group / "cgroup.procs", str(child.pid)),
            "before": state(group, child.pid),
            "partition_error": write(group / "cpuset.cpus.partition", kind),
            "after": state(group, child.pid),
            "member_error": write(group / "cpuset.cpus.partition", "member"),
            "member": state(group, child.pid),
        }
        child.kill()
    for _ in range(100):
        try:
            group.rmdir()
            break
        except OSError:
            time.sleep(0.05)
    if "cpuset" not in before.split():
        (ROOT / "cgroup.subtree_control").write_text("-cpuset")
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
