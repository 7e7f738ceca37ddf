"""cgroup: what managers, units and runtimes gave away, took back or forgot, from pasted texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.declared import RELEASE, given
from nodeagent.check.pinning import group_cpus
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    shown,
    some,
    warn,
)
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostreport import (
    ContainerOptions,
    CpuGrant,
    DeviceRules,
    Sample,
    ThreadState,
    UnitFile,
)

OTHERS = ("cpu.max", "stat", "pressure", "current", "procs", "threads", "events")
"""Files of a group that are no limit, or that another check compares."""


def unit_cpus(text: str) -> CpuSet | None:
    """CPUAffinity= in systemd's form: lists with spaces or commas, `numa`; None for none."""
    try:
        return CpuSet.parse(",".join(text.replace(",", " ").split())) or None
    except ParseError:
        return None


@check(
    "cgroup.affinity-remembered",
    "processes may use all CPUs of their group",
    means="WARN when a process may use fewer CPUs than its cpuset and a unit's CPUAffinity= says "
    "the same CPUs: since Linux 6.2 the kernel remembers a mask that was asked for, across every "
    "change of the cpuset. INFO without such a unit.",
    why="Containers inherit the mask of the service that starts them; a runtime that does not "
    "reset it confines every container to the housekeeping CPUs.",
    prove="taskset -pc PID; cat /sys/fs/cgroup/GROUP/cpuset.cpus.effective; "
    "systemctl show -p CPUAffinity UNIT",
    mend="A runc or crun that resets the mask (runc 1.3 and newer, crun 1.9), or drop CPUAffinity= "
    "and use AllowedCPUs= instead.",
    source="Linux da019032819a (v6.2), sched: Enforce user requested affinity; runc pull 4865",
)
def affinity_remembered(s: Seen) -> Iterator[Judged]:
    """Allowed CPUs against the cpuset."""
    p = given(s)
    units = [
        (u, cpus)
        for u in p.of(UnitFile)
        for text in u.settings.get("CPUAffinity", ())[-1:]
        if (cpus := unit_cpus(text)) is not None
    ]
    group = group_cpus(s)
    threads = [t for t in p.of(ThreadState) if t.allowed]
    if group is None or not threads:
        raise NotApplicable("no process's CPUs and no cpuset were pasted together")
    narrow = [t for t in threads if t.allowed and t.allowed < group[0]]
    if not narrow:
        yield ok("affinity", f"{len(threads)} processes may use CPUs {group[0]}, as their group")
        return
    t = narrow[0]
    unit = next((u for u, cpus in units if t.allowed and t.allowed <= cpus), None)
    kernel = s.snapshot.texts.get(RELEASE, "")
    who = f"{t.comm or 'process'} {t.pid}" if t.pid else t.comm or "a process"
    evidence = saw(t.source, f"allowed {t.allowed}"), saw(group[1], str(group[0]))
    if unit is not None:
        yield warn(
            unit.unit,
            f"{who} may use CPUs {t.allowed} only, its cpuset is {group[0]}: it inherited "
            f"CPUAffinity= of {unit.unit}"
            + (f", and kernel {kernel} remembers it (6.2 and newer)" if kernel else ""),
            *evidence,
            saw(unit.source, f"CPUAffinity={unit.settings['CPUAffinity'][-1]}"),
            remedy="use a runc or crun that resets the mask, or replace CPUAffinity= by "
            f"AllowedCPUs= in {unit.unit}; now: taskset -apc {group[0]} {t.pid or 'PID'}",
        )
    else:
        yield info(
            "affinity", f"{who} may use CPUs {t.allowed} of its cpuset {group[0]}", *evidence
        )


@check(
    "cgroup.devices",
    "the group may use the GPU's device files",
    means="FAIL when the rules of a device group no longer let it read and write the NVIDIA "
    "devices (major 195) they had before, or list none; a unit's closed DevicePolicy= without "
    "DeviceAllow= for them counts the same.",
    why="systemctl daemon-reload makes systemd write the rules anew: those that a runtime added go "
    "away, and NVML answers Unknown Error inside the container.",
    prove="cat /sys/fs/cgroup/devices/GROUP/devices.list; systemctl show -p DeviceAllow UNIT",
    mend="nvidia-ctk system create-dev-char-symlinks --create-all (systemd then finds the devices "
    "by number), or cgroup driver cgroupfs; restart the container.",
    source="Linux Documentation/admin-guide/cgroup-v1/devices.rst; systemd.resource-control(5), "
    "DeviceAllow=",
)
def devices(s: Seen) -> Iterator[Judged]:
    """Rules for character major 195."""
    p = given(s)
    listings = p.of(DeviceRules)
    before = next((x for x in listings if x.later is False), None)
    after = next((x for x in listings if x.later is not False), None)
    if after is None or (before is None and not any("195" in r for r in after.rules)):
        closed = [
            u for u in p.of(UnitFile)
            if u.settings.get("DevicePolicy", ("",))[-1] in ("closed", "strict")
        ]  # fmt: skip
        if not closed:
            raise NotApplicable("no rules of a device group about NVIDIA devices were pasted")
        unit = closed[0]
        allowed = " ".join(unit.settings.get("DeviceAllow", ()))
        if "nvidia" in allowed or "195" in allowed:
            yield ok(unit.unit, "DeviceAllow= names the NVIDIA devices")
            return
        yield fail(
            unit.unit,
            f"{unit.unit} may use no NVIDIA device: DevicePolicy= is closed and DeviceAllow= names "
            "none",
            saw(unit.source, f"DeviceAllow={allowed}"),
            remedy="DeviceAllow=char-nvidia rw, DeviceAllow=char-nvidia-uvm rw in the unit",
        )
        return
    if _usable(after.rules):
        yield ok("devices", "the NVIDIA devices may be read and written")
        return
    had = f" as before ({some(r for r in before.rules if '195' in r)})" if before else ""
    yield fail(
        "devices",
        f"the NVIDIA devices can no longer be read and written{had}: the rules were written anew, "
        "as by systemctl daemon-reload",
        *([saw(before.source, some(before.rules))] if before else []),
        saw(after.source, some(after.rules) or "(empty)"),
        remedy="nvidia-ctk system create-dev-char-symlinks --create-all, then restart the "
        "container; no daemon-reload while such containers run",
    )


def _usable(rules: tuple[str, ...]) -> bool:
    for rule in rules:
        kind, number, rights = [*rule.split(), "", ""][:3]
        major = number.partition(":")[0]
        if kind in ("a", "c") and major in ("*", "195") and {"r", "w"} <= set(rights):
            return True
    return False


@check(
    "cgroup.changed",
    "nobody rewrote the group's limits",
    means="WARN when a limit of a group (cpuset.cpus, memory.max) reads otherwise the second time; "
    "cgroup.quota-changed looks at cpu.max.",
    why="systemd applies its own view of a unit at daemon-reload: what a runtime set by hand is "
    "undone, a limited container takes the whole machine.",
    prove="cat /sys/fs/cgroup/GROUP/cpu.max before and after systemctl daemon-reload",
    mend="Set the limit in the unit too: systemctl set-property UNIT CPUQuota=30% AllowedCPUs=0-3.",
    source="systemd.resource-control(5), Delegate=; Linux Documentation/admin-guide/cgroup-v2.rst",
)
def changed(s: Seen) -> Iterator[Judged]:
    """Two readings of one file."""
    samples = [x for x in given(s).of(Sample) if x.path.startswith("sys/fs/cgroup")]
    first = {x.path: x for x in samples if not x.later}
    last = {x.path: x for x in samples if x.later}
    both = [p for p in first if p in last and not p.endswith(OTHERS)]
    pairs = [(first[p], last[p]) for p in both]
    if not pairs:
        raise NotApplicable("no limit of a group was pasted twice")
    bad = False
    for a, b in pairs:
        if a.text.split() == b.text.split():
            continue
        bad = True
        yield warn(
            shown(a.path),
            f"{a.path.rpartition('/')[2]} changed from '{a.text}' to '{b.text}'"
            + (f" ({gone})" if "cpuset" in a.path and (gone := _lost(a.text, b.text)) else "")
            + ": somebody rewrote it, as systemctl daemon-reload does",
            saw(a.source, a.text),
            saw(b.source, b.text),
            remedy="set it in the unit: systemctl set-property UNIT CPUQuota=... AllowedCPUs=...",
        )
    if not bad:
        yield ok("cgroup", f"{len(pairs)} limits read the same twice")


@check(
    "cgroup.exclusive-cpus",
    "exclusive CPUs are exclusive, online and not reserved",
    means="FAIL when CPUs handed to a container are reserved for the system, offline, or handed "
    "out "
    "twice; WARN when containers, or a container and the shared pool, share a core (SMT).",
    why="The CPU manager's state was made for another set of CPUs: after a CPU went offline, or "
    "the "
    "reservation changed, it hands out what belongs to others.",
    prove="cat /var/lib/kubelet/cpu_manager_state /sys/devices/system/cpu/online; "
    "grep reservedSystemCPUs /var/lib/kubelet/config.yaml",
    mend="Drain the node, stop kubelet, delete cpu_manager_state, start it again.",
    source="Kubernetes, Control CPU Management Policies on the Node, static policy",
)
def exclusive_cpus(s: Seen) -> Iterator[Judged]:
    """Assigned sets against reserved, online and one another."""
    grants = given(s).of(CpuGrant)
    assigned = [g for g in grants if g.what == "assigned"]
    reserved = CpuSet.of(c for g in grants if g.what == "reserved" for c in g.cpus)
    if not assigned:
        if not reserved:
            raise NotApplicable("no exclusive CPUs were pasted")
        online = s.snapshot.topology.online
        if online and (gone := reserved - online):
            yield fail(
                f"cpu {gone}",
                f"CPUs {gone} are reserved for the system, but not online",
                saw("reservedSystemCPUs", str(reserved)),
                saw("sys/devices/system/cpu/online", str(online)),
                remedy="reserve CPUs that are online in reservedSystemCPUs, then delete "
                "/var/lib/kubelet/cpu_manager_state and restart kubelet",
            )
        elif online:
            yield ok(f"cpu {reserved}", "the reserved CPUs are online")
        else:
            raise NotApplicable("no exclusive CPUs were pasted")
        return
    remedy = (
        "drain the node, then: systemctl stop kubelet; rm /var/lib/kubelet/cpu_manager_state; "
        "systemctl start kubelet"
    )
    bad = False
    online = s.snapshot.topology.online
    for i, g in enumerate(assigned):
        problems = [("reserved for the system", g.cpus & reserved)]
        problems += [("offline", g.cpus - online)] if online else []
        problems += [(f"also given to {o.owner}", g.cpus & o.cpus) for o in assigned[:i]]
        shared = CpuSet.of(c for o in grants if o.what == "default" for c in o.cpus)
        problems += [("still in the shared pool", g.cpus & shared)]
        for why, cpus in problems:
            if cpus:
                bad = True
                yield fail(
                    g.owner,
                    f"{g.owner} was given CPUs {cpus}, which are {why}",
                    saw(g.source, f"{g.owner}: {g.cpus}"),
                    *([saw("reserved", str(reserved))] if "reserved" in why else []),
                    *([saw("sys/devices/system/cpu/online", str(online))] if online else []),
                    remedy=remedy,
                )
    for core in sorted(
        {c.ids: c for _, c in s.snapshot.topology.smt_siblings}.values(), key=lambda c: c.ids
    ):
        owners = {g.owner: g.cpus & core for g in assigned if g.cpus & core}
        pool = CpuSet.of(c for o in grants if o.what == "default" for c in o.cpus) & core
        if len(owners) + bool(pool) < 2 or not owners:
            continue
        bad = True
        shares = [f"{o} has CPU {c}" for o, c in owners.items()]
        shares += [f"the shared pool has CPU {pool}"] if pool else []
        yield warn(
            some(owners),
            f"CPUs {core} are one core: {some(shares)}",
            *(saw(g.source, f"{g.owner}: {g.cpus}") for g in assigned if g.cpus & core),
            saw(f"sys/devices/system/cpu/cpu{min(core.ids)}/topology/thread_siblings_list",
                str(core)),
            remedy='cpuManagerPolicyOptions: {full-pcpus-only: "true"} in the kubelet\'s '
            "configuration, and whole cores in the pods' requests; " + remedy,
        )  # fmt: skip
        break
    if not bad:
        yield ok("cpu manager", f"{len(assigned)} exclusive sets do not overlap")


@check(
    "cgroup.container",
    "the container was given what a pinned GPU job needs",
    means="WARN when a container's shared memory is the 64 MiB default, when cpuset CPUs and "
    "memory "
    "nodes do not fit one another, or when a Kubernetes pod is not Guaranteed with whole CPUs.",
    why="NCCL and inference servers die of SIGBUS on 64 MiB. CPUs of one node with memory of "
    "another make all of it remote. Only Guaranteed pods with whole CPUs get CPUs of their own.",
    prove="docker inspect NAME | grep -E 'ShmSize|Cpuset|IpcMode|CapAdd'; "
    "kubectl get pod NAME -o jsonpath='{.status.qosClass}'",
    mend="--shm-size=16g (or --ipc=host) --cpuset-cpus=LIST --cpuset-mems=NODE; in Kubernetes "
    "equal "
    "requests and limits, whole CPUs, an emptyDir with medium: Memory on /dev/shm.",
    source="Docker run reference; Kubernetes, Configure Quality of Service for Pods",
    bounds={"shm_bytes": 1 << 30},
)
def container(s: Seen) -> Iterator[Judged]:
    """Options of each container."""
    rows = given(s).of(ContainerOptions)
    if not rows:
        raise NotApplicable("no container's options were pasted")
    nodes = {n.id: n.cpus for n in s.cpu_nodes}
    for c in rows:
        bad = False
        if c.shm_bytes is not None and c.shm_bytes < s.bounds["shm_bytes"] and c.ipc != "host":
            bad = True
            yield warn(
                c.name,
                f"{c.name} has {c.shm_bytes >> 20} MiB of shared memory: inference servers and "
                f"NCCL "
                "need more and die with SIGBUS",
                saw(c.source, f"shared memory {c.shm_bytes} bytes"),
                remedy="--shm-size=16g or --ipc=host; in Kubernetes an emptyDir with medium: "
                "Memory "
                "mounted on /dev/shm",
            )
        if c.guaranteed is False:
            bad = True
            yield warn(
                c.name,
                f"{c.name} is not Guaranteed with whole CPUs: it gets no CPUs of its own",
                saw(c.source, "resources"),
                remedy="kubectl set resources deploy/NAME --requests=cpu=N,memory=M "
                "--limits=cpu=N,memory=M",
            )
        if c.cpus and c.mems and nodes:
            on = CpuSet.of(n for n, cpus in nodes.items() if cpus & c.cpus)
            if on - c.mems:
                bad = True
                yield warn(
                    c.name,
                    f"{c.name} runs on CPUs {c.cpus} of node {on}, but takes memory from node "
                    f"{c.mems} only",
                    saw(c.source, f"cpuset-cpus {c.cpus}, cpuset-mems {c.mems}"),
                    remedy=f"--cpuset-mems={on}",
                )
        if not bad:
            yield ok(c.name, "its options fit a pinned GPU job")


@check(
    "cgroup.unit",
    "systemd units name CPUs and nodes that are there",
    means="FAIL when CPUAffinity= or AllowedCPUs= of a unit names CPUs that are not online, or the "
    "two have no CPU in common; WARN "
    "when "
    "it names isolated CPUs of a unit that is not a workload, or NUMAPolicy=bind without "
    "NUMAMask=, when the group pasted beside it has CPUs that AllowedCPUs= leaves out or no cpuset "
    "controller, or when a process may use CPUs outside CPUAffinity= of system.conf.",
    why="A unit whose CPUs are not there does not start (CPUAFFINITY); one on isolated CPUs "
    "disturbs "
    "them.",
    prove="systemctl show -p CPUAffinity -p AllowedCPUs -p NUMAPolicy UNIT",
    mend="systemctl edit UNIT, then systemctl daemon-reload (not while GPU containers run).",
    source="systemd.exec(5), CPUAffinity=; systemd.resource-control(5), AllowedCPUs=",
)
def unit(s: Seen) -> Iterator[Judged]:
    """CPU lists of each unit."""
    units = given(s).of(UnitFile)
    keys = ("CPUAffinity", "AllowedCPUs", "NUMAPolicy", "NUMAMask")
    mine = [u for u in units if any(u.settings.get(k, ("",))[-1] for k in keys)]
    if not mine:
        raise NotApplicable("no unit with CPUs or nodes was pasted")
    online = s.snapshot.topology.online
    housekeeping = re.compile(r"system\.(?:conf|slice)|init\.scope|user\.slice|kubelet|containerd|"
                              r"docker|sshd|cron|systemd-")  # fmt: skip
    for u in mine:
        bad = False
        for key in ("CPUAffinity", "AllowedCPUs"):
            text = u.settings.get(key, ("",))[-1]
            cpus = unit_cpus(text)
            if cpus is None:
                continue
            if online and (gone := cpus - online):
                bad = True
                yield fail(
                    u.unit,
                    f"{key}= of {u.unit} names CPUs {gone}, which are not online",
                    saw(u.source, f"{key}={text}"),
                    saw("sys/devices/system/cpu/online", str(online)),
                    remedy=f"{key}={cpus & online}",
                )
            if (both := cpus & s.isolated) and housekeeping.search(u.unit):
                bad = True
                yield warn(
                    u.unit,
                    f"{key}= of {u.unit} names the isolated CPUs {both}",
                    saw(u.source, f"{key}={text}"),
                    remedy=f"{key}={cpus - s.isolated}",
                )
        for found in (_apart(u), _not_in_force(s, u), _wider(s, u)):
            if found is not None:
                bad = True
                yield found
        policy = u.settings.get("NUMAPolicy", ("",))[-1]
        if (
            policy in ("bind", "interleave", "preferred")
            and not u.settings.get("NUMAMask", ("",))[-1]
        ):
            bad = True
            yield warn(
                u.unit,
                f"NUMAPolicy={policy} of {u.unit} has no NUMAMask=: systemd ignores it",
                saw(u.source, f"NUMAPolicy={policy}"),
                remedy="NUMAMask=0  # the node of the unit's device",
            )
        if not bad:
            yield ok(u.unit, some(f"{k}={u.settings[k][-1]}" for k in keys if k in u.settings))


def _apart(u: UnitFile) -> Judged | None:
    """CPUAffinity= and AllowedCPUs= of one unit without a CPU in common."""
    mask, group = (u.settings.get(k, ("",))[-1] for k in ("CPUAffinity", "AllowedCPUs"))
    wanted, allowed = unit_cpus(mask), unit_cpus(group)
    if wanted is None or allowed is None or wanted & allowed:
        return None
    return fail(
        u.unit,
        f"CPUAffinity={mask} and AllowedCPUs={group} of {u.unit} have no CPU in common: the mask "
        "cannot be set",
        saw(u.source, f"CPUAffinity={mask}"),
        saw(u.source, f"AllowedCPUs={group}"),
        remedy=f"systemctl edit {u.unit}: CPUAffinity={allowed}, or drop CPUAffinity=",
    )


def _not_in_force(s: Seen, u: UnitFile) -> Judged | None:
    """AllowedCPUs= against the group pasted beside it and its controllers."""
    text = u.settings.get("AllowedCPUs", ("",))[-1]
    cpus = unit_cpus(text)
    if cpus is None:
        return None
    wanted = saw(u.source, f"AllowedCPUs={text}")
    for leaf in ("cgroup.subtree_control", "cgroup.controllers"):
        for path, names in s.matching("sys/fs/cgroup", f"/{leaf}"):
            if "cpuset" not in names.split():
                return warn(
                    u.unit,
                    f"AllowedCPUs={text} of {u.unit} does nothing: the cpuset controller is not on "
                    "in the group pasted beside it",
                    wanted,
                    saw(path, names),
                    remedy="echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control  # and in each "
                    f"group on the way; systemctl daemon-reload; systemctl restart {u.unit}",
                )
    group = group_cpus(s)
    if group is None or group[0] <= cpus:
        return None
    name = group[1].rpartition("/")[0].rpartition("/")[2]
    if name != "pasted" and not name.startswith(u.unit.partition(".")[0]):
        return None
    return warn(
        u.unit,
        f"AllowedCPUs={text} of {u.unit} is not in force: its group may use CPUs {group[0]}",
        wanted,
        saw(group[1], str(group[0])),
        remedy=f"systemctl set-property --runtime {u.unit} AllowedCPUs={text}; grep cpuset "
        "/sys/fs/cgroup/cgroup.subtree_control",
    )


def _wider(s: Seen, u: UnitFile) -> Judged | None:
    """CPUAffinity= of systemd itself against processes that may use more."""
    cpus = unit_cpus(u.settings.get("CPUAffinity", ("",))[-1])
    if cpus is None or u.unit != "system.conf":
        return None
    wide = [t for t in given(s).of(ThreadState) if t.allowed and not t.allowed <= cpus]
    if not wide:
        return None
    t = wide[0]
    who = f"{t.comm or 'process'} {t.pid}" if t.pid else t.comm or "a process"
    return warn(
        u.unit,
        f"{who} may use CPUs {t.allowed}, beyond CPUAffinity={cpus} of {u.unit}: it set a mask of "
        "its own, or its cpuset was changed, which resets the mask before Linux 6.2",
        saw(u.source, f"CPUAffinity={u.settings['CPUAffinity'][-1]}"),
        saw(t.source, f"allowed {t.allowed}"),
        remedy=f"systemctl set-property system.slice AllowedCPUs={cpus}  # and user.slice; a "
        "cpuset holds where a mask does not",
    )


def _lost(before: str, after: str) -> str:
    """CPUs or nodes that a list lost, in words; "" where it is no list."""
    try:
        gone = CpuSet.parse(before) - CpuSet.parse(after)
    except ParseError:
        return ""
    return f"{gone} are gone" if gone else ""
