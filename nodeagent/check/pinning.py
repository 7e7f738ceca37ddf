"""pinning: where threads, ranks and their memory really are, from pasted texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodeagent.check.declared import given
from nodeagent.check.record import (
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    share,
    some,
    warn,
)
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.gpu_report import Environ
from nodeagent.model.hostreport import (
    ContainerOptions,
    Count,
    CpuSetTiming,
    RankPlace,
    Rates,
    Syscall,
    ThreadState,
    ToolPresence,
)

HOT_PERCENT = 25
"""A thread with this share of a CPU wants one of its own, when others share it."""
MANY = 3
"""Threads from which on one CPU for all of them is no chance."""
BINDERS = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "MKL_DYNAMIC")


def variables(s: Seen) -> dict[str, tuple[str, str]]:
    """Pasted environment: name -> (value, source)."""
    return {k: (v, e.source) for e in given(s).of(Environ) for k, v in e.values.items()}


def group_cpus(s: Seen) -> tuple[CpuSet, str] | None:
    """The CPUs of the pasted control group and where they stand; None when none was pasted."""
    for path, text in s.matching("sys/fs/cgroup", "cpuset.cpus.effective"):
        if text:
            return s.cpus(path, absent=""), path
    return None


@check(
    "pinning.collapsed",
    "threads are not all bound to one CPU",
    means="FAIL when two or more threads of a paste may run on one and the same CPU only, or one "
    "is and a binding variable of OpenMP is set, while the group has more CPUs. WARN when two "
    "are bound to the two halves of one core (SMT) though there are cores enough, or top, ps "
    "or pidstat show busy threads that share one CPU, together about 100 % of it.",
    why="OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY bind the first thread at import; every "
    "thread made later inherits its single CPU.",
    prove="for t in /proc/PID/task/*; do grep Cpus_allowed_list $t/status; done",
    mend="Unset OMP_PROC_BIND (or set OMP_PLACES=cores with it) and give the process its mask "
    "back: taskset -apc LIST PID.",
    source="OpenMP API specification, OMP_PROC_BIND; libgomp affinity; sched_setaffinity(2)",
)
def collapsed(s: Seen) -> Iterator[Judged]:
    """Masks of one CPU."""
    threads = [t for t in given(s).of(ThreadState) if t.allowed]
    ran = [t for t in given(s).of(ThreadState) if t.psr is not None]
    if not threads and not ran:
        raise NotApplicable("no thread's CPUs were pasted")
    if not threads:
        yield _sharing(ran, s.snapshot.topology.online) or _where_they_ran(ran)
        return
    group = group_cpus(s)
    online = s.snapshot.topology.online
    room = group[0] if group else online
    narrow: dict[int, list[ThreadState]] = {}
    for t in threads:
        if t.allowed and len(t.allowed) == 1:
            narrow.setdefault(min(t.allowed.ids), []).append(t)
    env = variables(s)
    binders = [f"{k}={env[k][0]}" for k in BINDERS if k in env]
    calls = [c for c in given(s).of(Syscall) if c.name == "sched_setaffinity" and not c.error]
    for cpu, rows in sorted(narrow.items()):
        if room and len(room) == 1:
            continue
        if len(rows) < 2 and not binders:
            continue
        evidence = [saw(rows[0].source, f"{len(rows)} of {len(threads)} threads: CPU {cpu}")]
        evidence += [saw(env[k][1], f"{k}={env[k][0]}") for k in BINDERS if k in env][:2]
        evidence += [
            saw(c.source, f"sched_setaffinity({c.arguments})")
            for c in calls
            if c.cpus == CpuSet.of((cpu,))
        ][:1]
        evidence += [saw(group[1], str(group[0]))] if group else []
        yield fail(
            f"cpu {cpu}",
            f"{len(rows)} of {len(threads)} threads may run on CPU {cpu} only"
            + (f", the group allows {room}" if room else "")
            + (f"; {some(binders)} binds at import" if binders else ""),
            *evidence,
            remedy=f"unset {binders[0].partition('=')[0] if binders else 'OMP_PROC_BIND'} and give "
            f"the mask back: taskset -apc {room or 'LIST'} {rows[0].pid or 'PID'}",
        )
        return
    single = [
        c for c in calls if c.cpus and len(c.cpus) == 1 and binders and not (room and len(room) < 2)
    ]
    if single and not narrow:
        yield warn(
            "affinity",
            f"a thread was bound to CPU {single[0].cpus} while {some(binders)} is set",
            saw(single[0].source, single[0].arguments),
            remedy=f"unset {binders[0].partition('=')[0]}",
        )
        return
    yield _one_core(s, threads) or ok("threads", f"{len(threads)} threads have CPUs of their own")


def _one_core(s: Seen, threads: list[ThreadState]) -> Judged | None:
    """Threads bound to the two halves of one core, although there are cores enough for all."""
    cores = {c.ids: c for _, c in s.snapshot.topology.smt_siblings}.values()
    bound = [t for t in threads if t.allowed and len(t.allowed) == 1]
    if len(bound) > len(cores):
        return None
    for core in sorted(cores, key=lambda c: min(c.ids)):
        here = [t for t in bound if t.allowed and t.allowed <= core]
        if len({min(t.allowed.ids) for t in here if t.allowed}) < 2:
            continue
        names = some(f"{t.comm or 'thread'} {t.pid or ''}".strip() + f" on CPU {t.allowed}"
                     for t in here)  # fmt: skip
        used = CpuSet.of(c for t in bound for c in t.allowed or ())
        free = next((c for c in cores if not c & used), None)
        return warn(
            f"cpu {core}",
            f"CPUs {core} are one core, shared by {names}: each has half of it",
            *(saw(t.source, f"{t.comm or ''} {t.pid or ''}: {t.allowed}") for t in here[:3]),
            saw(f"sys/devices/system/cpu/cpu{min(core.ids)}/topology/thread_siblings_list",
                str(core)),
            remedy=f"taskset -pc {min(free.ids)} {here[-1].pid or '$PID'}  (a core that no thread "
            "of the paste is bound to)"
            if free
            else "bind the second one to a core of its own: lscpu -e=CPU,CORE",
        )  # fmt: skip
    return None


def _sharing(ran: list[ThreadState], online: CpuSet) -> Judged | None:
    """Threads that each want a CPU and had to share one, by a listing with shares of time."""
    by_cpu: dict[int, list[ThreadState]] = {}
    for t in ran:
        if t.psr is not None and (t.busy_percent or 0) >= HOT_PERCENT:
            by_cpu.setdefault(t.psr, []).append(t)
    for cpu, hot in sorted(by_cpu.items()):
        total = sum(t.busy_percent or 0 for t in hot)
        if len(hot) < 2 or not 90 <= total <= 110:
            continue
        return warn(
            f"cpu {cpu}",
            f"{len(hot)} busy threads share CPU {cpu}: "
            + some(f"{t.comm} {t.pid} {t.busy_percent:g} %" for t in hot),
            *(saw(t.source, f"{t.pid} {t.comm}: {t.busy_percent:g} % on CPU {cpu}")
              for t in hot[:3]),
            remedy=(
                f"taskset -pc {min(idle.ids)} {hot[-1].pid}  # a CPU that none of the listing runs "
                "on"
                if (idle := online - CpuSet.of(t.psr for t in ran if t.psr is not None))
                else f"grep Cpus_allowed_list $(printf '/proc/%s/status ' "
                f"{' '.join(str(t.pid) for t in hot[:4])})  # one CPU each: taskset -pc"
            )
            + "; OMP_PROC_BIND or an inherited mask may have put them there",
        )  # fmt: skip
    return None


def _where_they_ran(ran: list[ThreadState]) -> Judged:
    """Last CPUs of a listing of threads, where no mask was pasted."""
    cpus = CpuSet.of(t.psr for t in ran if t.psr is not None)
    if len(ran) < MANY or len(cpus) > 1:
        return ok("threads", f"{len(ran)} threads ran on CPUs {cpus}")
    return warn(
        f"cpu {cpus}",
        f"all {len(ran)} threads of the listing ran on CPU {cpus}: their masks may have collapsed",
        saw(ran[0].source, f"PSR {cpus}: {some(t.comm or t.pid for t in ran)}"),
        remedy=f"taskset -apc {ran[0].pid or 'PID'}; unset OMP_PROC_BIND, GOMP_CPU_AFFINITY",
    )


@check(
    "pinning.outside-group",
    "threads may use what their group gives",
    means="FAIL when the CPUs or nodes that a call asked for are not allowed; INFO when a process "
    "may use fewer CPUs than its group.",
    why="sched_setaffinity() drops what the cpuset forbids without a word and fails only when "
    "nothing is left; a memory policy fails for each node outside Mems_allowed.",
    prove="grep allowed_list /proc/PID/status; cat /sys/fs/cgroup/GROUP/cpuset.*.effective",
    mend="Ask within the allowed lists, or widen the group (docker --cpuset-cpus, --cpuset-mems).",
    source="sched_setaffinity(2), set_mempolicy(2), cpuset(7)",
)
def outside(s: Seen) -> Iterator[Judged]:
    """Failed calls against the allowed sets; nodes of the machine that are not allowed."""
    p = given(s)
    threads = [t for t in p.of(ThreadState) if t.allowed or t.mems]
    calls = [
        c for c in p.of(Syscall) if "affinity" in c.name or "mem" in c.name or c.name == "mbind"
    ]
    if not threads and not calls:
        raise NotApplicable("no process's allowed CPUs or nodes were pasted")
    bad = False
    for call in calls:
        if call.error is None or call.name == "sched_getaffinity":
            continue
        bad = True
        policy = call.name not in ("sched_setaffinity",)
        allowed = next(
            (t.mems if policy else t.allowed for t in threads if t.mems or t.allowed), None
        )
        lacking = (call.cpus or CpuSet()) - (allowed or CpuSet()) if allowed else None
        what = "nodes" if policy else "CPUs"
        yield fail(
            call.name,
            f"{call.name} failed with {call.error}"
            + (f": {what} {lacking} are not allowed here ({allowed})" if lacking else ""),
            saw(call.source, f"{call.name}({call.arguments}) = -1 {call.error}"),
            remedy="--cap-add SYS_NICE (seccomp refuses memory policies without it)"
            if call.error == "EPERM"
            else "name what is allowed: grep allowed_list /proc/self/status",
        )
    nodes = CpuSet.of(n.id for n in s.snapshot.topology.nodes if n.memory_bytes)
    for t in threads:
        if t.mems and nodes and (shut := nodes - t.mems):
            yield info(
                f"node {shut}",
                f"memory of node {shut} is not allowed to {t.comm or 'the process'} "
                f"(Mems_allowed_list {t.mems})",
                saw(t.source, f"Mems_allowed_list: {t.mems}"),
            )
            break
    if not bad:
        yield ok("processes", f"{len(threads)} allowed lists, {len(calls)} calls, none failed")


@check(
    "pinning.ranks",
    "each rank runs on its GPU's node",
    means="FAIL when a rank's CPUs are all on another node than its GPU; WARN when they span nodes "
    "although each rank has its own GPU.",
    why="A rank that feeds its GPU across the socket link loses copy bandwidth and adds latency to "
    "every launch; all ranks on node 0 also share half of the machine's cores.",
    prove="for p in PIDS; do taskset -pc $p; done; cat /sys/bus/pci/devices/BDF/numa_node",
    mend="Bind each rank by its GPU's physical address: numactl --cpunodebind=N --membind=N; "
    "CUDA_VISIBLE_DEVICES renumbers, so count by bus id.",
    source="NVML nvmlDeviceGetCpuAffinity; Linux Documentation/ABI/stable/sysfs-devices-node",
)
def ranks(s: Seen) -> Iterator[Judged]:
    """CPUs of each rank against its GPU's node."""
    rows = _joined(s)
    judged = [r for r in rows if r.allowed and r.gpu_node is not None]
    nodes = {n.id: n.cpus for n in s.cpu_nodes}
    if not judged or not nodes:
        raise NotApplicable("no rank's CPUs and GPU node were pasted, with the nodes' CPUs")
    far = [
        r for r in judged
        if r.allowed and r.gpu_node in nodes and not r.allowed & nodes[r.gpu_node or 0]
    ]  # fmt: skip
    wide = [
        r for r in judged
        if r not in far and r.allowed and r.gpu_node in nodes
        and r.allowed - nodes[r.gpu_node or 0]
    ]  # fmt: skip
    if far:
        r = far[0]
        yield fail(
            f"rank {some(x.rank for x in far)}",
            f"ranks {some(x.rank for x in far)} run on CPUs {r.allowed}, but their GPUs are on "
            f"node "
            f"{some(sorted({x.gpu_node for x in far if x.gpu_node is not None}))}",
            *(
                saw(x.source, f"rank {x.rank}: GPU node {x.gpu_node}, CPUs {x.allowed}")
                for x in far[:3]
            ),
            remedy=f"numactl --cpunodebind={r.gpu_node} --membind={r.gpu_node} PROGRAM  # for "
            f"rank {r.rank}; each by its GPU's bus id",
        )
    elif wide:
        yield warn(
            f"rank {some(x.rank for x in wide)}",
            f"{len(wide)} ranks may run on other nodes than their GPU's",
            *(
                saw(x.source, f"rank {x.rank}: GPU node {x.gpu_node}, CPUs {x.allowed}")
                for x in wide[:3]
            ),
            remedy="numactl --cpunodebind=N --membind=N PROGRAM  # for each rank, N the GPU's node",
        )
    else:
        yield ok("ranks", f"{len(judged)} ranks run on their GPU's node")


def _joined(s: Seen) -> list[RankPlace]:
    """Rows of several tables about the same rank, as one."""
    import dataclasses

    found: dict[str, RankPlace] = {}
    for row in given(s).of(RankPlace):
        old = found.get(row.rank)
        if old is None:
            found[row.rank] = row
            continue
        found[row.rank] = dataclasses.replace(
            old,
            bdf=old.bdf or row.bdf,
            gpu_node=old.gpu_node if old.gpu_node is not None else row.gpu_node,
            allowed=old.allowed or row.allowed,
            bytes_by_node=old.bytes_by_node or row.bytes_by_node,
        )
    rows = []
    for row in found.values():
        function = s.snapshot.topology.function(row.bdf) if row.bdf else None
        if row.gpu_node is None and function is not None and function.numa_node is not None:
            row = dataclasses.replace(row, gpu_node=function.numa_node)
        rows.append(row)
    return rows


@check(
    "pinning.remote-memory",
    "memory of a rank is on its node",
    means="WARN when less than `percent` % of a rank's memory is on its GPU's (or its CPUs') node, "
    "or, with neither known, on any one node.",
    why="Staging buffers on the far node halve the copy bandwidth to the GPU. What it costs "
    "depends on the model: measure; a few percent is usual.",
    prove="numastat -p PID; grep -o 'N[0-9]*=[0-9]*' /proc/PID/numa_maps",
    mend="Start it under numactl --cpunodebind=N --membind=N; pages that are there already: "
    "migratepages PID OLD NEW (needs CAP_SYS_NICE).",
    source="numastat(8), numa(7)",
    bounds={"percent": 80},
)
def remote_memory(s: Seen) -> Iterator[Judged]:
    """Bytes by node against the node they should be on."""
    rows = [r for r in _joined(s) if sum(r.bytes_by_node.values()) > 0 and len(r.bytes_by_node) > 1]
    if not rows:
        raise NotApplicable("no process's memory by node was pasted")
    nodes = {n.id: n.cpus for n in s.cpu_nodes}
    pids = {t.pid: t for t in given(s).of(ThreadState) if t.allowed and t.pid is not None}
    bad, near, total = [], 0, 0
    unknown: list[ThreadState] = []
    for row in rows:
        size = sum(row.bytes_by_node.values())
        home = row.gpu_node
        allowed = row.allowed
        if m := re.match(r"(\d+) ", row.rank):
            seen = pids.get(int(m[1]))
            allowed = allowed or (seen.allowed if seen else None)
            unknown += [seen] if seen and not nodes and home is None else []
        if home is None and allowed:
            on = [n for n, c in nodes.items() if allowed <= c]
            home = on[0] if len(on) == 1 else None
        best = (
            home if home is not None else max(row.bytes_by_node, key=lambda n: row.bytes_by_node[n])
        )
        local = row.bytes_by_node.get(best, 0)
        near, total = near + local, total + size
        if share(local, size) < s.bounds["percent"]:
            bad.append((row, home, local, size))
    if not bad and unknown:
        raise Missing(
            "sys/devices/system/node",
            f"needed to know whose CPUs {unknown[0].allowed} of process {unknown[0].pid} are",
            "paste lscpu (its NUMA node lines) or numactl -H beside it",
        )
    if not bad:
        yield ok("memory", f"{share(near, total):.1f} % is local")
        return
    for row, home, local, size in bad[:8]:
        split = some(f"node {n}: {b >> 20} MiB" for n, b in sorted(row.bytes_by_node.items()))
        where = f"on node {home}, where it belongs" if home is not None else "on any one node"
        yield warn(
            row.rank,
            f"{row.rank}: {share(local, size):.1f} % of its memory is {where} ({split}); all "
            f"together {share(near, total):.1f} %",
            saw(row.source, f"{row.rank}: {split}"),
            remedy=_bound(row.rank, home, row.bytes_by_node)
            + "; expect little where the GPU does the work",
        )


def _bound(rank: str, home: int | None, by_node: Mapping[int, int]) -> str:
    """Commands that bind a process to a node: the one it belongs to, else where most of it is."""
    node = home if home is not None else max(by_node, key=lambda n: by_node[n])
    start = f"numactl --cpunodebind={node} --membind={node} at its start"
    far = [n for n, size in sorted(by_node.items()) if size and n != node]
    pid = re.match(r"\d+", rank)
    if home is None or pid is None or not far:
        return start
    return f"{start}; what is there now: migratepages {pid[0]} {','.join(map(str, far))} {node}"


@check(
    "pinning.oversubscribed",
    "no more busy threads than CPUs",
    means="WARN when more threads are asked for (OMP_NUM_THREADS, a count) than the group's CPUs "
    "or "
    "quota allow.",
    why="Spinning threads that share a CPU wait for one another: a barrier takes a time slice. A "
    "runtime counts the host's CPUs and does not see the container's quota.",
    prove="nproc; cat /sys/fs/cgroup/cpu.max; ls /proc/PID/task | wc -l",
    mend="OMP_NUM_THREADS=CPUs of the group; one core for each busy worker, and one or two more.",
    source="sched_getaffinity(2); OpenMP API specification, OMP_NUM_THREADS",
)
def oversubscribed(s: Seen) -> Iterator[Judged]:
    """Wanted threads against CPUs; waiting against running."""
    p = given(s)
    env = variables(s)
    asked = [
        (int(env[k][0]), f"{k}={env[k][0]}", env[k][1])
        for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        if k in env and env[k][0].isdigit()
    ]
    asked += [(c.value, f"{c.value} threads", c.source) for c in p.of(Count) if c.what == "threads"]
    room = _room(s)
    judged = False
    if asked and room is not None:
        judged = True
        count, text, source = max(asked)
        if count > room[0] + 0.5:
            yield warn(
                "threads",
                f"{text}, but only {room[0]:g} CPUs are there ({room[1]})",
                saw(source, text),
                saw(room[2], room[1]),
                remedy=f"OMP_NUM_THREADS={max(1, int(room[0]))}",
            )
        else:
            yield ok("threads", f"{text} on {room[0]:g} CPUs")
    if not judged:
        raise NotApplicable("no count of threads with their CPUs was pasted")


def _room(s: Seen) -> tuple[float, str, str] | None:
    """CPUs that there are: by quota, group, allowed list, nproc, options; (number, text, "
    "source)."""
    found: list[tuple[float, str, str]] = []
    for path, text in s.matching("sys/fs/cgroup", "cpu.max"):
        m = re.fullmatch(r"(\d+) (\d+)", text)
        if m and int(m[2]):
            found.append((int(m[1]) / int(m[2]), f"cpu.max {text}", path))
    if group := group_cpus(s):
        found.append((len(group[0]), f"cpuset {group[0]}", group[1]))
    p = given(s)
    found += [
        (len(t.allowed), f"allowed {t.allowed}", t.source) for t in p.of(ThreadState) if t.allowed
    ][:1]
    found += [(c.value, f"nproc {c.value}", c.source) for c in p.of(Count) if c.what == "cpus"]
    for c in p.of(ContainerOptions):
        if c.quota:
            found.append((c.quota, f"limit of {c.quota:g} CPUs", c.source))
        if c.cpus:
            found.append((len(c.cpus), f"cpuset {c.cpus}", c.source))
    if not found and (online := s.snapshot.topology.online):
        found.append((len(online), f"online {online}", "sys/devices/system/cpu/online"))
    return min(found) if found else None


@check(
    "pinning.spread",
    "more CPUs make the job faster",
    means="WARN when a benchmark over CPU sets gets worse with the larger set.",
    why="Threads on SMT siblings share a core's units, and those on the second socket read memory "
    "of the first: beyond one node's cores a memory-bound job slows down.",
    prove="for c in 0-7 0-15 0-31; do taskset -c $c BENCH; done",
    mend="One process a node with its physical cores: numactl --cpunodebind=0 --membind=0; "
    "OMP_WAIT_POLICY=PASSIVE where CPUs are shared.",
    source="Linux Documentation/admin-guide/cputopology.rst; OpenMP API specification",
    bounds={"percent": 10},
)
def spread(s: Seen) -> Iterator[Judged]:
    """Best set against the largest."""
    rows = given(s).of(CpuSetTiming)
    worse = []
    for unit in dict.fromkeys(r.unit for r in rows):
        mine = sorted((r for r in rows if r.unit == unit), key=lambda r: len(r.cpus))
        if len(mine) < 2:
            continue
        best = (max if mine[0].higher_is_better else min)(mine, key=lambda r: r.value)
        big = mine[-1]
        lost = abs(share(big.value - best.value, best.value))
        if big is not best and len(big.cpus) > len(best.cpus) and lost > s.bounds["percent"]:
            worse.append((best, big))
    if len(rows) < 2:
        raise NotApplicable("no timing over several CPU sets was pasted")
    if not worse:
        yield ok("timings", "the larger sets are no slower")
        return
    best, big = worse[-1]
    yield warn(
        f"cpu {big.cpus}",
        f"CPUs {big.cpus} are slower than {best.cpus} ({big.unit}: {big.value:g} against "
        f"{best.value:g}): SMT siblings or a second socket",
        *(saw(r.source, f"{r.cpus}: {r.unit} {r.value:g}") for r in (best, big)),
        remedy=f"taskset -c {best.cpus} PROGRAM  # or one process a node with numactl "
        "--cpunodebind; OMP_WAIT_POLICY=PASSIVE where CPUs are shared",
    )


MAX_RATE = 1e18
"""No tool counts more in a second: what is larger is damage."""


@check(
    "pinning.slower",
    "pinning did not make it slower",
    means="WARN when a figure after the change is worse by more than `percent` %.",
    why="Too few CPUs for threads that spin, or a core shared with another one, cost more than "
    "locality brings.",
    prove="taskset -pc PID",
    mend="Take the binding back, or give each spinning thread a core of its own; then measure.",
    source="nodeagent design, placement: before and after",
    bounds={"percent": 5},
)
def slower(s: Seen) -> Iterator[Judged]:
    """Before against after."""
    rows = [r for r in given(s).of(Rates) if 0 < r.before < MAX_RATE and abs(r.after) < MAX_RATE]
    if not rows:
        raise NotApplicable("no figures of before and after were pasted")
    change = {
        r.label: share(r.after - r.before, r.before) * (1 if r.higher_is_better else -1)
        for r in rows
    }
    worse = [r for r in rows if change[r.label] < -s.bounds["percent"]]
    for r in worse:
        yield warn(
            r.label,
            f"{r.label} got worse by {-change[r.label]:.0f} % ({r.before:g} to {r.after:g} "
            f"{r.unit})",
            saw(r.source, f"{r.label}: {r.before:g}, {r.after:g}"),
            remedy="take the binding back, read the masks (grep allowed_list /proc/PID/status), "
            "and compare again at the same load",
        )
    if not worse:
        yield ok("before and after", some(f"{k}: {v:+.1f} %" for k, v in change.items()))


@check(
    "pinning.tools",
    "the binding tools are there",
    means="WARN when numactl or taskset was looked for and is not installed.",
    why="Launchers go on without it: the requested binding is not applied, and nobody says so.",
    prove="command -v numactl",
    mend="apt-get install numactl, in the container's image too.",
    source="numactl(8)",
)
def tools(s: Seen) -> Iterator[Judged]:
    """`which` of binding tools."""
    rows = [t for t in given(s).of(ToolPresence) if t.tool in ("numactl", "taskset", "hwloc-bind")]
    if not rows:
        raise NotApplicable("nobody looked for a binding tool")
    for row in rows:
        if row.path is None:
            yield warn(
                row.tool,
                f"{row.tool} is not installed: a requested binding was NOT applied",
                saw(row.source, "(nothing)"),
                remedy=f"apt-get install {'util-linux' if row.tool == 'taskset' else row.tool}",
            )
        else:
            yield ok(row.tool, row.path)
