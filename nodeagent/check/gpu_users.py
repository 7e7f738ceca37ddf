"""gpu: who sees and holds GPUs: visible devices, NCCL's settings, open device files, cpusets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.gpu_state import once
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.finding import Evidence
from nodeagent.model.gpu_report import (
    Allowed,
    DeviceHolder,
    Environ,
    GpuListed,
    GpuState,
    MigDevice,
    RdmaPort,
)
from nodeagent.model.pasted import Pasted


def _pasted(s: Seen) -> Pasted:
    if s.snapshot.pasted is None:
        raise NotApplicable("nothing was pasted")
    return s.snapshot.pasted


def _environ(s: Seen) -> tuple[Environ, ...]:
    found = _pasted(s).of(Environ)
    if not found:
        raise NotApplicable("no environment variables were pasted")
    return found


def _set(e: Environ, key: str) -> Evidence:
    return saw(e.source, f"line {e.lines[key]}: {key}={e.values[key]}")


def _gpu_count(s: Seen) -> int | None:
    """How many GPUs the paste shows; None: no list was whole."""
    p = _pasted(s)
    listed = {g.index for g in p.of(GpuListed)}
    states = {g.index for g in p.of(GpuState) if g.index is not None and "table" not in g.tool}
    matrix = s.snapshot.matrix
    counts = [len(listed), len(states), len(matrix.gpus) if matrix is not None else 0]
    return max(counts) or None


VISIBLE = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
)  # fmt: skip


@check(
    "gpu.visible-devices",
    "visible-device variables name GPUs that are there, each once",
    means="FAIL for an index, UUID or MIG device that the pasted list does not have, for "
    "duplicates and for lists that CUDA does not understand; WARN for MIG devices (ids are "
    "strings; memory is the slice's; PCIe address and NUMA node are the parent GPU's), for values "
    "that hide all GPUs, and for indices on a machine of several models without "
    "CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    why="CUDA stops at the first entry it does not know and says nothing: the job then runs on "
    "fewer GPUs, or none.",
    prove="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES",
    mend="Take indices or UUIDs from nvidia-smi -L; export CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    source="NVIDIA CUDA C++ programming guide, CUDA_VISIBLE_DEVICES; NVIDIA MIG user guide, CUDA "
    "device enumeration; ROCm documentation, GPU isolation",
)
def visible_devices(s: Seen) -> Iterator[Judged]:
    """Each variable against what is listed."""
    environs = _environ(s)
    found: list[Judged] = []
    seen = False
    for e in environs:
        for key in VISIBLE:
            if key in e.values:
                seen = True
                found += _visible(s, e, key)
        both = [k for k in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") if k in e.values]
        if len(both) == 2:
            found.append(
                warn(
                    "environment",
                    "HIP_VISIBLE_DEVICES counts within what ROCR_VISIBLE_DEVICES leaves",
                    *(_set(e, k) for k in both),
                    remedy="unset ROCR_VISIBLE_DEVICES",
                )
            )
    if not seen:
        raise NotApplicable("no visible-device variable was pasted")
    yield from once(found)
    if not any(f.verdict.value in ("WARN", "FAIL") for f in found):
        yield ok("environment", "visible devices name GPUs that can be there")


def _visible(s: Seen, e: Environ, key: str) -> Iterator[Judged]:
    value = e.values[key].strip()
    evidence = _set(e, key)
    nvidia = key == "NVIDIA_VISIBLE_DEVICES"
    if value.lower() in ("all",) and nvidia:
        return
    if value.lower() in ("", "-1", "void", "none", "nodevfiles"):
        if nvidia and value == "":
            return
        yield warn(
            key,
            f"{key}={value or '(empty)'} hides every GPU",
            evidence,
            remedy=f"unset {key}, or name GPUs: export {key}=0",
        )
        return
    if value.startswith(("$", "<", "{")):
        yield info(key, f"{key} names no device yet: {value}", evidence)
        return
    items = [i.strip() for i in value.split(",")]
    twice = sorted({i for i in items if items.count(i) > 1})
    if twice:
        yield fail(
            key,
            f"{key} names {some(twice)} more than once: CUDA then shows no GPU at all",
            evidence,
            remedy=f"export {key}={','.join(dict.fromkeys(items))}",
        )
    mig = [i for i in items if i.upper().startswith("MIG")]
    if mig:
        yield from _mig(s, e, key, items, mig)
        return
    yield from _ids(s, e, key, items)


def _ids(s: Seen, e: Environ, key: str, items: list[str]) -> Iterator[Judged]:
    evidence = _set(e, key)
    count = _gpu_count(s)
    p = _pasted(s)
    uuids = {g.uuid for g in p.of(GpuListed)} | {g.uuid for g in p.of(GpuState)}
    for position, item in enumerate(items):
        before = f"only the {position} before it are seen" if position else "no GPU is seen"
        if re.fullmatch(r"\d{1,6}", item):
            if count is not None and int(item) >= count:
                last = f"0 to {count - 1}" if count > 1 else "0 only"
                yield fail(
                    key,
                    f"{key} names GPU {item}; there are {count} ({last}): {before}",
                    evidence,
                    remedy=f"nvidia-smi -L; export {key}="
                    + (",".join(i for i in items if not i.isdigit() or int(i) < count) or "0"),
                )
                return
        elif item.upper().startswith("GPU-"):
            if uuids - {None} and not any(u and u.lower().startswith(item.lower()) for u in uuids):
                yield fail(
                    key,
                    f"{key} names {item}, which no listed GPU has: {before}",
                    evidence,
                    remedy="nvidia-smi -L shows the UUIDs; they change when a card is exchanged",
                )
                return
        elif key in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") and item != "-1":
            yield fail(
                key,
                f"{key}: {item!r} is neither an index nor a UUID: {before}",
                evidence,
                remedy=f"export {key}=0,1  # commas, no ranges",
            )
            return
    names = {g.name for g in p.of(GpuListed)} | {g.name for g in p.of(GpuState) if g.name}
    order = e.values.get("CUDA_DEVICE_ORDER", "")
    by_index = key == "CUDA_VISIBLE_DEVICES" and any(i.isdigit() for i in items)
    if by_index and len(names) > 1 and order != "PCI_BUS_ID":
        yield warn(
            key,
            "the GPUs are of several models, and CUDA counts the fastest first: its indices "
            "are not those of nvidia-smi",
            evidence,
            saw("nvidia-smi", some(sorted(str(n) for n in names))),
            remedy="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )


def _mig(s: Seen, e: Environ, key: str, items: list[str], mig: list[str]) -> Iterator[Judged]:
    evidence = _set(e, key)
    listed = _pasted(s).of(GpuListed)
    known: dict[str, tuple[GpuListed, MigDevice]] = {
        d.uuid.lower(): (g, d) for g in listed for d in g.mig if d.uuid
    }
    missing = [i for i in mig if listed and not i.upper().startswith("MIG-GPU-")
               and i.lower() not in known]  # fmt: skip
    if missing:
        yield fail(
            key,
            f"{key} names {some(missing, 2)}, which nvidia-smi -L does not list: no GPU is seen",
            evidence,
            remedy="nvidia-smi -L; MIG UUIDs change whenever the instances are made anew",
        )
    if len(items) > 1 and key == "CUDA_VISIBLE_DEVICES":
        yield warn(
            key,
            f"{key} names {len(items)} devices with MIG: CUDA gives a process one MIG device only",
            evidence,
            remedy=f"one process for each MIG device: export {key}={mig[0]}",
        )
    good = [i for i in mig if i not in missing]
    for item in good:
        g, d = known.get(item.lower(), (None, None))
        where = (
            f"MIG {d.profile} of GPU {g.index}" + (f", {d.memory_gb} GB" if d.memory_gb else "")
            if g is not None and d is not None
            else "a MIG device"
        )
        parent = f"GPU {g.index}" if g is not None else "the parent GPU"
        yield warn(
            key,
            f"the process uses {where}: its memory is the slice's, PCIe address and NUMA node are "
            f"those of {parent}, and its id is a string (int() of it fails in frameworks)",
            evidence,
            *([saw(g.source, f"line {g.line}: GPU {g.index}: {g.name}")] if g is not None else []),
            remedy=f"size the job for the slice, and bind its threads to {parent}'s NUMA node: "
            f"nvidia-smi topo -m{f' -i {g.index}' if g is not None else ''}",
        )


@check(
    "gpu.environment",
    "NCCL, CUDA and OpenMP are not held back by a variable",
    means="FAIL when NCCL_IB_HCA matches none of the RDMA devices in the paste, when P2P and "
    "shared memory are both switched off; WARN for settings that cost throughput on the pasted "
    "machine: P2P off with NVLink or a PCIe switch between GPUs, InfiniBand off with ports there, "
    "sockets on lo or docker0, serialised launches, tracing, more OpenMP threads than CPUs. INFO "
    "for settings that are only worth knowing.",
    why="Such a variable is set once to get round a hang and then stays for years; NCCL says "
    "nothing.",
    prove="env | grep -E 'NCCL|CUDA|OMP|VLLM'; NCCL_DEBUG=INFO shows the transports in use",
    mend="unset the variable, and mend what it was set for (ACS, IOMMU, /dev/shm, a dead port).",
    source="NCCL user guide, environment variables; CUDA C++ programming guide, environment "
    "variables; vllm/envs.py",
)
def environment(s: Seen) -> Iterator[Judged]:
    """Each variable against what is pasted with it."""
    environs = _environ(s)
    found = [answer for e in environs for rule in _RULES for answer in rule(s, e)]
    yield from once(found)
    if not any(f.verdict.value in ("WARN", "FAIL") for f in found):
        known = sum(len(e.values) for e in environs)
        yield ok("environment", f"{known} variables: none costs throughput on what is pasted")


def _on(e: Environ, key: str) -> bool:
    return e.values.get(key, "").strip().lower() in ("1", "true", "yes", "y", "on")


def _p2p(s: Seen, e: Environ) -> Iterator[Judged]:
    level = e.values.get("NCCL_P2P_LEVEL", "").upper()
    key = "NCCL_P2P_DISABLE" if _on(e, "NCCL_P2P_DISABLE") else "NCCL_P2P_LEVEL"
    if key == "NCCL_P2P_LEVEL" and level not in ("LOC", "0"):
        if level and level not in ("NVL", "PIX", "PXB", "PHB", "SYS") and not level.isdigit():
            yield warn(
                key,
                f"{key}={level} is no level that NCCL knows",
                _set(e, key),
                remedy="export NCCL_P2P_LEVEL=NVL (or PIX, PXB, PHB, SYS), or unset it",
            )
        return
    m = s.snapshot.matrix
    classes = {c for (a, b), c in m.links.items() if a in m.gpus and b in m.gpus} if m else set()
    nvlink = sorted(c for c in classes if c.startswith("NV"))
    near = sorted(classes & {"PIX", "PXB"})
    if _on(e, "NCCL_SHM_DISABLE") and len(m.gpus if m else ()) != 1:
        yield fail(
            key,
            f"{key} and NCCL_SHM_DISABLE together leave GPUs of one machine only the network",
            _set(e, key),
            _set(e, "NCCL_SHM_DISABLE"),
            remedy=f"unset {key} NCCL_SHM_DISABLE",
        )
    elif nvlink or near:
        what = f"NVLink ({some(nvlink)})" if nvlink else f"a PCIe switch ({some(near)})"
        yield warn(
            key,
            f"{key}={e.values[key]} switches off {what} between the GPUs: NCCL goes through host "
            "memory",
            _set(e, key),
            remedy=f"unset {key}; where it hangs without it, look at ACS and the IOMMU: "
            "lspci -vvv | grep ACSCtl",
        )
    else:
        yield info(
            key,
            f"{key}={e.values[key]}: NCCL copies through host memory; right for cards that cannot "
            "reach each other",
            _set(e, key),
            remedy="nvidia-smi topo -p2p r tells whether they can",
        )


def _shm(s: Seen, e: Environ) -> Iterator[Judged]:
    if _on(e, "NCCL_SHM_DISABLE") and not _on(e, "NCCL_P2P_DISABLE"):
        yield warn(
            "NCCL_SHM_DISABLE",
            "NCCL_SHM_DISABLE=1: GPUs without peer access talk over the network instead of memory",
            _set(e, "NCCL_SHM_DISABLE"),
            remedy="unset NCCL_SHM_DISABLE; in a container: --ipc=host or --shm-size=16g",
        )


def _ib(s: Seen, e: Environ) -> Iterator[Judged]:
    p = _pasted(s)
    ports = p.of(RdmaPort)
    m = s.snapshot.matrix
    names = {r.device for r in ports}
    if m is not None:
        names |= set(m.nic_names.values()) | {n for n in m.nics if not n.startswith("NIC")}
    if _on(e, "NCCL_IB_DISABLE") and names:
        yield warn(
            "NCCL_IB_DISABLE",
            f"NCCL_IB_DISABLE=1 although {len(names)} RDMA devices are here "
            f"({some(sorted(names), 4)}): NCCL uses TCP",
            _set(e, "NCCL_IB_DISABLE"),
            remedy="unset NCCL_IB_DISABLE",
        )
    value = e.values.get("NCCL_IB_HCA", "").strip()
    if not value or not names:
        return
    negative = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    asked = [x.partition(":")[0].strip() for x in value.lstrip("^=").split(",") if x.strip()]

    def matches(name: str, wanted: str) -> bool:
        return name == wanted if exact else name.startswith(wanted)

    unknown = [a for a in asked if not any(matches(n, a) for n in names)]
    chosen = {n for n in names if any(matches(n, a) for a in asked) != negative}
    if not chosen:
        yield fail(
            "NCCL_IB_HCA",
            f"NCCL_IB_HCA={value} leaves none of the {len(names)} RDMA devices "
            f"({some(sorted(names), 6)}): NCCL falls back to TCP",
            _set(e, "NCCL_IB_HCA"),
            remedy=f"export NCCL_IB_HCA={','.join(sorted(names)[:8])}",
        )
    elif unknown and not negative:
        yield warn(
            "NCCL_IB_HCA",
            f"NCCL_IB_HCA names {some(unknown)}, which is not among the RDMA devices",
            _set(e, "NCCL_IB_HCA"),
            remedy="ibdev2netdev; then name the ones that are there",
        )
    down = sorted({r.device for r in ports if r.device in chosen
                   and r.state.lower() not in ("active", "up")})  # fmt: skip
    if down:
        yield warn(
            "NCCL_IB_HCA",
            f"NCCL_IB_HCA names {some(down)}, whose port is down",
            _set(e, "NCCL_IB_HCA"),
            remedy=f"mend the port, or leave it out: NCCL_IB_HCA=^{','.join(down)}",
        )


def _sockets(s: Seen, e: Environ) -> Iterator[Judged]:
    for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = e.values.get(key, "").strip()
        first = value.lstrip("=").split(",")[0]
        if first in ("lo",) or (first.startswith(("docker", "veth", "br-", "virbr", "cni"))):
            several = e.values.get("WORLD_SIZE", "") not in ("", "1")
            make = warn if first != "lo" or several else info
            yield make(
                key,
                f"{key}={value}: other machines cannot be reached by {first}",
                _set(e, key),
                remedy=f"ip -br addr; export {key}=<the interface of the cluster network>",
            )


_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "each kernel waits for the one before: for debugging only",
    "VLLM_TRACE_FUNCTION": "every Python call is written to a file: for debugging only",
    "TORCH_SHOW_CPP_STACKTRACES": "",
    "NCCL_BLOCKING_WAIT": "",
    "TORCH_USE_CUDA_DSA": "device-side assertions slow every kernel: for debugging only",
    "HIP_LAUNCH_BLOCKING": "each kernel waits for the one before: for debugging only",
    "AMD_SERIALIZE_KERNEL": "each kernel waits for the one before: for debugging only",
}


_OVERRIDES = (
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_TOPO_FILE", "NCCL_NET_GDR_LEVEL", "NCCL_MAX_NCHANNELS",
    "NCCL_NVLS_ENABLE", "NCCL_CROSS_NIC",
)  # fmt: skip


def _slow(s: Seen, e: Environ) -> Iterator[Judged]:
    for key, why in _SLOW.items():
        if why and e.values.get(key, "0").strip() not in ("", "0", "false", "False"):
            yield warn(key, f"{key}={e.values[key]}: {why}", _set(e, key), remedy=f"unset {key}")
    if e.values.get("NCCL_DEBUG", "").upper() == "TRACE":
        yield info("NCCL_DEBUG", "NCCL_DEBUG=TRACE writes a line for each call",
                   _set(e, "NCCL_DEBUG"), remedy="export NCCL_DEBUG=WARN")  # fmt: skip
    for key in _OVERRIDES:
        if key in e.values:
            yield info(
                key,
                f"{key}={e.values[key]} overrides what NCCL finds out itself",
                _set(e, key),
                remedy=f"unset {key} and compare with all_reduce_perf",
            )


def _threads(s: Seen, e: Environ) -> Iterator[Judged]:
    for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        value = e.values.get(key, "").partition(",")[0]
        if not value.isascii() or not value.isdigit():
            continue
        cpus = len(s.snapshot.topology.online)
        allowed = [a.cpus for a in _pasted(s).of(Allowed) if a.cpus]
        cpus = (
            min([cpus, *(len(c) for c in allowed)]) if cpus else min(map(len, allowed), default=0)
        )
        if cpus and int(value) > cpus:
            yield warn(
                key,
                f"{key}={value} on {cpus} CPUs: the threads wait for one another",
                _set(e, key),
                remedy=f"export {key}={max(1, cpus // max(1, _ranks(s)))}",
            )


def _ranks(s: Seen) -> int:
    return _gpu_count(s) or 1


_RULES = (_p2p, _shm, _ib, _sockets, _slow, _threads)

MONITORS = re.compile(
    r"dcgm|hostengine|exporter|nvidia-smi|nvtop|gpustat|gpud|telegraf|datadog|zabbix|netdata"
    r"|collectd|prometheus|nvml|nvidia-device-p|monitor|agent|smi$|nvitop|k8s-device|gpu-feature",
    re.IGNORECASE,
)


@check(
    "gpu.holders",
    "nothing holds the GPUs' device files that would block a reset",
    means="FAIL when a monitor or exporter has /dev/nvidia* (or /dev/kfd, /dev/dri) open: a reset "
    "or an unbind then waits for ever; WARN for other processes and for the persistence daemon.",
    why="Once an unbind has begun, closing the file no longer helps: the driver has taken the GPU "
    "off its list before it waits for the count.",
    prove="fuser -v /dev/nvidia*; lsof /dev/nvidia*",
    mend="Stop the monitor first (systemctl stop nvidia-dcgm dcgm-exporter nvidia-persistenced), "
    "then reset or unbind; start it again afterwards. This agent opens "
    "them for each reading only.",
    source="nvidia-smi(1), --gpu-reset; fuser(1)",
)
def holders(s: Seen) -> Iterator[Judged]:
    """Who has them open."""
    found = _pasted(s).of(DeviceHolder)
    if not found:
        raise NotApplicable("no list of who holds device files was pasted")
    by: dict[tuple[int, str], list[DeviceHolder]] = {}
    for h in found:
        by.setdefault((h.pid, h.process), []).append(h)
    for (pid, process), files in by.items():
        paths = list(dict.fromkeys(h.path for h in files))
        who = f"{process or 'a process'} (pid {pid})"
        evidence = saw(files[0].source, f"line {files[0].line}: {some(paths, 4)}: {who}")
        sentence = f"{who} holds {some(paths, 4)}"
        if "persistenced" in process or process.startswith("nvidia-pe"):
            yield warn(
                who,
                f"{sentence}: it blocks an unbind",
                evidence,
                remedy="before an unbind or unload: systemctl stop nvidia-persistenced",
            )
        elif MONITORS.search(process):
            yield fail(
                who,
                f"{sentence}: a reset or unbind of the GPU waits for it",
                evidence,
                remedy=f"ps -fp {pid}  # stop it before the reset (systemctl stop its unit, or "
                f"kill {pid}) and start it again after",
            )
        else:
            yield warn(
                who,
                f"{sentence}: end it before a reset or unbind",
                evidence,
                remedy=f"drain the job; then kill {pid}",
            )


@check(
    "gpu.cpuset",
    "the CPUs next to each GPU may be used here",
    means="FAIL when the matrix shows no CPU affinity for a GPU while others have one, and the "
    "pasted cpuset leaves out that GPU's NUMA node; FAIL when a GPU's CPUs or memory node lie "
    "outside the cpuset; WARN when a GPU's affinity alone is blank and no cpuset was pasted.",
    why="NVML cuts a GPU's CPUs with the caller's cpuset. Blank then means none is allowed here, "
    "not all and not that there is no NUMA node; sched_setaffinity of it fails.",
    prove="grep -E 'Cpus_allowed_list|Mems_allowed_list' /proc/self/status; nvidia-smi topo -m; on "
    "the host: cat /sys/bus/pci/devices/*/local_cpulist",
    mend="Ask for CPUs on both sockets (srun --cpus-per-gpu, --gres-flags; cpuset.cpus), or take "
    "GPUs of the node whose CPUs the job has.",
    source="NVML API reference, nvmlDeviceGetCpuAffinity; Linux cgroup-v2.rst, cpuset.cpus",
)
def cpuset(s: Seen) -> Iterator[Judged]:
    """Blank affinities, and affinities outside what is allowed."""
    m = s.snapshot.matrix
    if m is None or "CPU Affinity" not in m.columns:
        raise NotApplicable("no matrix with CPU affinities was pasted")
    allowed = next((a for a in _pasted(s).of(Allowed) if a.cpus or a.mems), None)
    blank = [g for g in m.rows if g in m.cpu_affinity and m.cpu_affinity[g] is None]
    have = [g for g in m.rows if m.cpu_affinity.get(g)]
    remedy = (
        "ask for CPUs on both sockets (srun --cpus-per-gpu=N --gres-flags=disable-binding; "
        "cpuset.cpus), or give this job GPUs of the node whose CPUs it has"
    )
    bad = False
    if blank and have:
        bad = True
        nodes = some(sorted({str(n) for g in blank if (n := m.numa_affinity.get(g))}))
        where = f" (node {nodes})" if nodes else ""
        evidence = saw(m.source, f"{some(blank)}: CPU Affinity blank, NUMA Affinity {nodes or '?'}")
        sentence = f"none of the CPUs next to {some(blank)}{where} may be used here"
        if allowed is not None:
            said = f"Cpus_allowed_list: {allowed.cpus}" + (
                "" if allowed.mems is None else f", Mems_allowed_list: {allowed.mems}"
            )
            yield fail(
                some(blank),
                f"{sentence}: the cpuset allows CPUs {allowed.cpus}",
                evidence,
                saw(allowed.source, f"line {allowed.line}: {said}"),
                remedy=remedy,
            )
        else:
            yield warn(some(blank), f"{sentence}, by the blank affinity", evidence, remedy=remedy)
    if allowed is not None:
        cut = [
            g
            for g in have
            if allowed.cpus and (c := m.cpu_affinity.get(g)) and not c & allowed.cpus
        ]
        away = [
            g
            for g in m.rows
            if g not in blank + cut
            and allowed.mems
            and (n := m.numa_affinity.get(g))
            and not n & allowed.mems
        ]
        for who, what, got in ((cut, "CPUs", allowed.cpus), (away, "memory node", allowed.mems)):
            if who:
                bad = True
                yield fail(
                    some(who),
                    f"the {what} next to {some(who)} may not be used here: allowed is {got}",
                    saw(m.source, some(f"{g}: {m.cpu_affinity.get(g)}, node "
                                       f"{m.numa_affinity.get(g)}" for g in who)),
                    saw(allowed.source, f"line {allowed.line}: allowed {got}"),
                    remedy=remedy,
                )  # fmt: skip
    if not bad:
        if not have:
            raise NotApplicable("the matrix tells no CPU affinity")
        yield ok("gpu", f"the CPUs next to {len(have)} GPUs may be used")
