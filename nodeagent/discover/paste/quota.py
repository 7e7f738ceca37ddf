"""CPU quotas of a group: cpu.max and its forms of cgroup v1, one or several of them, and how many
threads stand against how many CPUs.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max), Documentation/scheduler/
sched-bwc.rst (cfs_quota_us).
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.latency import Quota, Sizes

_MAX = re.compile(r"\s*(max|\d{1,15})(?:\s+(\d{1,9}))?\s*")
_GROUP = "sys/fs/cgroup/pasted"
_V1_QUOTA = re.compile(r"cpu\.cfs_quota_us")
_V1_PERIOD = re.compile(r"cpu\.cfs_period_us")
_THREADS = re.compile(r"(?:nr_)?threads?(?:[-_.](?:count|total|nr))?|pids\.current|nlwp")
_MACHINE = re.compile(r"nproc(?:[-_](?:host|all))?|cpu[-_]?count|host[-_]cpus|ncpus?")
PERIOD_US = 100_000
"""The kernel's default period."""


def read_quota(text: str, name: str) -> Part | None:
    """Files of one value, told by their names."""
    leaf = name.rpartition("/")[2].removesuffix(".txt")
    body = text.strip()
    if leaf.startswith("cpu.max") and (m := _MAX.fullmatch(body)) and leaf != "cpu.max":
        label = leaf.removeprefix("cpu.max").strip("._-")
        if label == "burst":
            return None
        return Part(
            kind="quota",
            reports=(
                Quota(
                    source=name,
                    quota_us=None if m[1] == "max" else int(m[1]),
                    period_us=int(m[2] or PERIOD_US),
                    label=label,
                ),
            ),
        )
    if m := _V1_QUOTA.match(leaf):
        label = leaf[m.end() :].strip("._-")
        if re.fullmatch(r"-?\d{1,15}", body):
            value = int(body)
            quota = Quota(
                source=name,
                quota_us=None if value < 0 else value,
                period_us=PERIOD_US,
                label=label,
            )
            weak = {f"{_GROUP}/cpu.max": f"{'max' if value < 0 else value} {PERIOD_US}"}
            return Part(kind="quota", reports=(quota,), weak={} if label else weak)
    if _V1_PERIOD.fullmatch(leaf) and body.isdigit():
        return Part(kind="quota")
    if body.isdigit() and len(body) < 8:
        if _THREADS.fullmatch(leaf):
            return Part(kind="sizes", reports=(Sizes(source=name, threads=int(body)),))
        if _MACHINE.fullmatch(leaf):
            return Part(kind="sizes", reports=(Sizes(source=name, machine_cpus=int(body)),))
    return None
