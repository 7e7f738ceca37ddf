"""gpu: NVLink, NVSwitch and its fabric manager, peer access, RDMA ports, versions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nodeagent.check.gpu_state import at, once
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
from nodeagent.model.gpu_report import (
    FabricParts,
    GpuListed,
    GpuState,
    NvlinkState,
    PeerMatrix,
    RdmaPort,
    ServiceState,
    Version,
)
from nodeagent.model.pasted import Pasted

BRIDGED = re.compile(
    r"PCIe|\bL4\b|\bL40S?\b|\bT4\b|\bA10G?\b|\bA2\b|\bA16\b|RTX|GTX|GeForce|Quadro",
    re.IGNORECASE,
)
"""Cards that have NVLink by a bridge at most, or none at all."""
SWITCHED = re.compile(
    r"SXM|HGX|\bGB\d{3}\b|\bB\d00\b|\bH\d00 80GB HBM3|\bH200$|H800$", re.IGNORECASE
)
"""Cards whose NVLink is soldered: all links are expected."""


def _pasted(s: Seen) -> Pasted:
    if s.snapshot.pasted is None:
        raise NotApplicable("nothing was pasted")
    return s.snapshot.pasted


@check(
    "gpu.fabric",
    "the NVLink fabric is set up",
    means="FAIL when the fabric of a GPU did not start or ended with an error, when the fabric "
    "manager does not run although NVSwitches are there, and when its version is not the driver's; "
    "WARN while it is in progress, and when the service is down and nothing tells whether there "
    "are NVSwitches. NA on machines without NVSwitch.",
    why="Without the fabric CUDA ends with error 802 on every GPU; nvidia-smi still shows them.",
    prove="systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A4 Fabric; "
    "nv-fabricmanager --version; cat /proc/driver/nvidia/version",
    mend="Install the fabric manager of the driver's own version; drain the node, then systemctl "
    "restart nvidia-fabricmanager: its exit aborts every CUDA job (ABORT_CUDA_JOBS_ON_FM_EXIT=1).",
    source="NVIDIA fabric manager user guide; NVML nvmlDeviceGetGpuFabricInfoV",
)
def fabric(s: Seen) -> Iterator[Judged]:
    """Fabric state, service, versions."""
    p = _pasted(s)
    gpus = [g for g in p.of(GpuState) if g.fabric_state]
    services = [x for x in p.of(ServiceState) if "fabricmanager" in x.unit]
    versions = p.of(Version)
    managers = [x for x in versions if x.component == "fabricmanager"]
    switches = [x for x in p.of(FabricParts) if x.what == "NVSwitch"]
    if not gpus and not services and not managers and not switches:
        raise NotApplicable("nothing pasted speaks of the NVLink fabric")
    found = [answer for g in gpus for answer in _state(g)]
    have = any(x.count for x in switches) or any(_soldered(x) for x in _names(p))
    none = (bool(switches) and not have) or (
        not have and bool(names := list(_names(p))) and all(BRIDGED.search(n) for n in names)
    )
    for x in services:
        if x.state in ("active", "enabled"):
            continue
        if none:
            found.append(info(x.unit, f"{x.unit} is {x.state}: not needed without NVSwitches",
                              saw(x.source, f"line {x.line}: {x.text}")))  # fmt: skip
            continue
        make = fail if have or x.state == "failed" else warn
        why = "NVSwitches are there" if have else "needed where there are NVSwitches"
        found.append(
            make(
                x.unit,
                f"{x.unit} is {x.state}: {why}, CUDA ends with error 802",
                saw(x.source, f"line {x.line}: {x.text}"),
                *(saw(y.source, f"line {y.line}: {y.text}") for y in switches[:1]),
                remedy="systemctl enable --now nvidia-fabricmanager; journalctl -u "
                "nvidia-fabricmanager -n 50",
            )
        )
    drivers = [x for x in versions if x.component in ("driver", "kernel-module", "library")]
    for m in managers:
        other = next((d for d in drivers if not _same(d.version, m.version)), None)
        if other is not None:
            found.append(
                fail(
                    "nvidia-fabricmanager",
                    f"the fabric manager is {m.version}, the driver {other.version}: they must be "
                    "the same",
                    saw(m.source, f"line {m.line}: fabric manager {m.version}"),
                    saw(other.source, f"line {other.line}: {other.component} {other.version}"),
                    remedy=f"install nvidia-fabricmanager {other.version} and hold both packages; "
                    "drain the node, then: systemctl restart nvidia-fabricmanager",
                )
            )
    yield from once(found)
    if not any(f.verdict.value in ("WARN", "FAIL") for f in found):
        if none and not gpus:
            yield ok("fabric", "no NVSwitch is here: no fabric to set up")
        else:
            yield ok("fabric", "the fabric is set up, as far as the paste tells")


def _state(g: GpuState) -> Iterator[Judged]:
    state, status = (g.fabric_state or "").lower(), (g.fabric_status or "").lower()
    evidence = at(g, f"Fabric, State: {g.fabric_state}, Status: {g.fabric_status or 'N/A'}")
    mend = (
        "journalctl -u nvidia-fabricmanager -n 50; drain the node, then: systemctl restart "
        "nvidia-fabricmanager  # its exit aborts every CUDA job"
    )
    if "progress" in state or state == "2":
        yield warn(
            g.label,
            f"the fabric of {g.label} is not ready yet: {g.fabric_state}",
            evidence,
            remedy=f"wait a minute and look again; then: {mend}",
        )
    elif "not started" in state or state == "1":
        yield fail(g.label, f"the fabric of {g.label} was not started", evidence, remedy=mend)
    elif status and status not in ("success", "0", "nvml_success"):
        yield fail(
            g.label,
            f"the fabric of {g.label} ended with: {g.fabric_status}",
            evidence,
            remedy=mend,
        )
    if g.fabric_ill:
        yield fail(
            g.label,
            f"the fabric of {g.label} is not healthy: {some(g.fabric_ill)}",
            at(g, f"Fabric, Health: {some(g.fabric_ill)}"),
            remedy="nvidia-smi nvlink -s; nvidia-smi nvlink -e; drain the node and reset its GPUs",
        )


def _names(p: Pasted) -> Iterator[str]:
    yield from (g.name for g in p.of(GpuState) if g.name)
    yield from (g.name for g in p.of(GpuListed))
    yield from (g.name for g in p.of(NvlinkState))


def _soldered(name: str) -> bool:
    # HGX boards of 8 carry switches; boards of 4 do not. SXM alone does not tell.
    return "HGX" in name or "GB200" in name or "GB300" in name


def _same(a: str, b: str) -> bool:
    """Whether two versions agree as far as both are printed (580.95 and 580.95.05)."""
    x, y = a.split("."), b.split(".")
    n = min(len(x), len(y))
    return x[:n] == y[:n]


@check(
    "gpu.nvlink",
    "all NVLinks that should be there are up",
    means="FAIL when some links of a GPU are up and others are not, when GPUs of one model have "
    "different numbers of links, when a card with soldered NVLink has none up, and for replay or "
    "recovery errors, and when XGMI joins all GPUs but one; WARN for CRC errors. PCIe cards "
    "without a bridge have no links: OK. With MIG on, links are off by design: INFO.",
    why="A ring runs at the pace of its weakest link; a link that was never there is no fault.",
    prove="nvidia-smi nvlink -s; nvidia-smi nvlink -e; nvidia-smi topo -m",
    mend="Drain and reset all GPUs of the board; look for SXids and Xid 74 in dmesg; reseat the "
    "bridge or the board.",
    source="nvidia-smi nvlink -h; DCGM health, NVLink",
)
def nvlink(s: Seen) -> Iterator[Judged]:
    """Links and their error counters, and the matrix' link counts."""
    p = _pasted(s)
    blocks = p.of(NvlinkState)
    uneven = _uneven(s)
    xgmi = _apart(s)
    if not blocks and uneven is None and xgmi is None:
        raise NotApplicable("nothing pasted tells of single NVLinks")
    mig = {g.index for g in p.of(GpuState) if (g.mig or "").lower() == "enabled"}
    mig |= {g.index for g in p.of(GpuListed) if g.mig}
    bridged = any(x.what == "bridge" and x.count for x in p.of(FabricParts))
    found = [answer for b in blocks for answer in _links(b, b.index in mig, bridged)]
    listed = [b for b in blocks if b.links]
    usual = Counter((b.name, len(b.links)) for b in listed).most_common(1)
    for b in listed:
        if b.name == usual[0][0][0] and len(b.links) < usual[0][0][1]:
            found.append(
                fail(
                    f"GPU {b.index}",
                    f"GPU {b.index} lists {len(b.links)} NVLinks, others of its model "
                    f"{usual[0][0][1]}",
                    saw(b.source, f"line {b.line}: GPU {b.index}: {len(b.links)} links"),
                    remedy=_RESET,
                )
            )
    rates = Counter(r for b in blocks for r in b.links.values() if r)
    if len(rates) > 1:
        slow = min(rates)
        who = sorted({b.index for b in blocks if slow in b.links.values()})
        if rates[slow] < sum(rates.values()) / 2:
            found.append(
                warn(
                    f"GPU {some(who)}",
                    f"{rates[slow]} NVLinks run at {slow:g} GB/s, others at {max(rates):g} GB/s",
                    saw(blocks[0].source, f"GPU {some(who)}: {slow:g} GB/s"),
                    remedy=_RESET,
                )
            )
    found += (uneven or []) + (xgmi or [])
    yield from once(found)
    if not any(f.verdict.value in ("WARN", "FAIL") for f in found):
        up = sum(_up(b) for b in blocks)
        bare = [b for b in blocks if not _up(b)]
        if blocks and len(bare) == len(blocks):
            yield ok("nvlink", f"{len(bare)} GPUs have no NVLink bridge: nothing to be up")
        else:
            yield ok("nvlink", f"{up} NVLinks are up" if up else "link counts are even")


def _up(b: NvlinkState) -> int:
    return sum(rate is not None for rate in b.links.values())


_RESET = (
    "dmesg | grep -iE 'nvlink|sxid|xid.* 74'  # then drain the node and reset its GPUs: "
    "nvidia-smi --gpu-reset; reseat bridge or board when it stays"
)


def _links(b: NvlinkState, mig: bool, bridged: bool) -> Iterator[Judged]:
    label = f"GPU {b.index}"
    down = sorted(i for i, rate in b.links.items() if rate is None)
    up = len(b.links) - len(down)
    where = saw(b.source, f"line {b.line}: {label}: {b.name}: {up} links up, {len(down)} inactive")
    none = b.all_inactive or (bool(b.links) and not up)
    if (down or b.all_inactive) and mig:
        yield info(label, f"NVLinks of {label} are off: MIG mode is on", where)
    elif none and SWITCHED.search(b.name):
        yield fail(
            label,
            f"no NVLink of {label} ({b.name}) is up: on this board all should be",
            where,
            remedy="systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A4 Fabric; "
            + _RESET,
        )
    elif none and bridged:
        yield fail(
            label, f"no NVLink of {label} is up although a bridge is fitted", where, remedy=_RESET
        )
    elif down and up:
        if BRIDGED.search(b.name) or _pairs(b.name):
            # A bridge connects some of the card's links; the rest end nowhere.
            yield info(label, f"{up} of {len(b.links)} NVLinks of {label} are connected", where)
        else:
            yield fail(
                label,
                f"{len(down)} of {len(b.links)} NVLinks of {label} are down: {some(down)}",
                where,
                remedy=_RESET,
            )
    for (link, kind), count in b.errors.items():
        if count and kind.lower() in ("replay", "recovery", "link recovery"):
            yield fail(
                f"{label} link {link}",
                f"link {link} of {label} had {count} {kind.lower()} errors",
                saw(b.source, f"line {b.line}: {label}: Link {link}: {kind} Errors: {count}"),
                remedy=_RESET,
            )
    crc = {i: n for (i, kind), n in b.errors.items() if n and kind.lower().startswith("crc")}
    if crc:
        counts = some(f"link {i}: {n}" for i, n in crc.items())
        yield warn(
            label,
            f"{len(crc)} NVLinks of {label} count CRC errors: {some(sorted(crc))}",
            saw(b.source, f"line {b.line}: {label}: {counts}"),
            remedy="nvidia-smi nvlink -e twice, a minute apart: a rising count needs a reset, 100 "
            "a second an exchange",
        )


def _pairs(name: str) -> bool:
    return re.search(r"NVL\b|\bH100 NVL", name) is not None


def _apart(s: Seen) -> list[Judged] | None:
    """GPUs that no XGMI link reaches, where all others have one to each other; None: no matrix
    with XGMI."""
    m = s.snapshot.matrix
    if m is None or len(m.gpus) < 3 or "XGMI" not in m.links.values():
        return None
    joined = {pair for pair, kind in m.links.items() if kind == "XGMI"}
    alone = [g for g in m.gpus if not any(g in pair for pair in joined)]
    rest = [g for g in m.gpus if g not in alone]
    apart = [(a, b) for a in rest for b in rest if a != b and m.links.get((a, b)) == "PCIE"]
    if alone and not apart:
        return [
            fail(
                some(alone),
                f"no XGMI link reaches {some(alone)}, all other GPUs are joined by XGMI",
                saw(m.source, some((f"{a}-{b} {c}" for (a, b), c in m.links.items()
                                    if a in alone), 4)),
                remedy="amd-smi xgmi; dmesg | grep -iE 'xgmi|amdgpu'; drain the node and reset or "
                "reseat the board",
            )
        ]  # fmt: skip
    if not alone and apart and 2 * len(apart) < len(m.gpus):
        return [
            warn(
                some({g for pair in apart for g in pair}),
                f"{some(f'{a}-{b}' for a, b in apart)} go over PCIe, all other pairs over XGMI",
                saw(m.source, some(f"{a}-{b} PCIE" for a, b in apart)),
                remedy="amd-smi xgmi; dmesg | grep -iE 'xgmi|amdgpu'",
            )
        ]
    return []


def _uneven(s: Seen) -> list[Judged] | None:
    """GPUs of a full matrix with fewer NVLinks than the others; None: no such matrix."""
    m = s.snapshot.matrix
    if m is None or m.truncated or len(m.gpus) < 3:
        return None
    links: dict[tuple[str, str], int] = {}
    for pair in ((a, b) for a in m.gpus for b in m.gpus if a != b):
        said = m.links.get(pair, "")
        if not said.startswith("NV") or not said[2:].isdigit():
            return None
        links[pair] = int(said[2:])
    peak = {g: max(n for (a, _), n in links.items() if a == g) for g in m.gpus}
    most = max(links.values())
    low = {frozenset(pair) for pair, n in links.items() if n < most}
    if not low:
        return []
    if all(n == min(peak[a], peak[b]) for (a, b), n in links.items()):
        # Behind switches a pair has as many links as the poorer of the two.
        weak = [g for g in m.gpus if peak[g] < most]
    elif len(low) == 1:
        weak = [g for g in m.gpus if g in next(iter(low))]
    else:
        # Soldered pair by pair, some by one link and some by two: no count is the right one.
        return None
    fewest = min(min(n for (a, _), n in links.items() if a == g) for g in weak)
    return [
        warn(
            some(weak),
            f"{some(weak)} {'has' if len(weak) == 1 else 'have'} fewer NVLinks than the other "
            f"GPUs: {fewest} of {most}",
            saw(m.source, some(f"{a}-{b}: NV{n}" for (a, b), n in links.items() if n < most)),
            remedy=_RESET,
        )
    ]


PEER = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "it is switched off by a registry key",
    "U": "the driver does not know",
}


@check(
    "gpu.peer-access",
    "GPUs reach each other's memory",
    means="WARN when `nvidia-smi topo -p2p r` (or w) denies pairs because of chipset, topology or "
    "a driver setting; INFO where the cards themselves cannot (GeForce), and for NVLink on cards "
    "without it.",
    why="Without peer access every exchange goes through host memory.",
    prove="nvidia-smi topo -p2p r; nvidia-smi topo -p2p n",
    mend="ACS and IOMMU off, or GPUs below one root complex; in a virtual machine ask the host.",
    source="nvidia-smi topo -h",
)
def peer_access(s: Seen) -> Iterator[Judged]:
    """Each peer matrix."""
    matrices = _pasted(s).of(PeerMatrix)
    if not matrices:
        raise NotApplicable("no peer-to-peer matrix was pasted")
    bad = False
    for m in matrices:
        by: dict[str, list[str]] = {}
        for (a, b), cell in m.cells.items():
            if cell != "OK":
                by.setdefault(cell, []).append(f"{a}-{b}")
        for cell, pairs in by.items():
            sentence = f"{len(pairs)} directions without peer access: {PEER.get(cell, cell)}"
            evidence = saw(m.source, f"line {m.line}: {cell}: {some(pairs, 6)}")
            if cell in ("GNS", "NS") or m.capability in ("n", "a", "p"):
                yield info(some(pairs, 4), sentence, evidence)
            else:
                bad = True
                yield warn(
                    some(pairs, 4),
                    sentence,
                    evidence,
                    remedy="lspci -vvv | grep ACSCtl; dmesg | grep -i iommu; iommu=pt on the "
                    "kernel command line; NCCL then needs NCCL_P2P_LEVEL left alone",
                )
    if not bad:
        yield ok("gpu", "no pair of GPUs is denied peer access by the machine")


@check(
    "gpu.rdma-port",
    "RDMA ports are up",
    means="FAIL when a port that has a cable is not active; WARN when a port is down or its rate "
    "is below that of the others of its kind; OK otherwise.",
    why="NCCL skips a port that is down and shares the others: half the bandwidth, or TCP.",
    prove="ibstat; rdma link; ibdev2netdev",
    mend="Cable and switch port; for InfiniBand the subnet manager (sminfo).",
    source="rdma-core, ibstat(8); InfiniBand architecture specification, port states",
)
def rdma_port(s: Seen) -> Iterator[Judged]:
    """State and rate."""
    ports = _pasted(s).of(RdmaPort)
    if not ports:
        raise NotApplicable("no RDMA port was pasted")
    up = [p for p in ports if p.state.lower() in ("active", "up")]
    best = max((p.rate_gbps or 0 for p in up), default=0)
    bad = False
    for p in ports:
        name = f"{p.device}/{p.port}"
        text = f"state {p.state}" + (f", physical state {p.physical}" if p.physical else "")
        evidence = saw(p.source, f"line {p.line}: {name}: {text}")
        if p.state.lower() in ("init", "initializing", "armed"):
            bad = True
            yield fail(
                name,
                f"port {name} has a link but is {p.state}: no subnet manager set it up",
                evidence,
                remedy="sminfo  # then start opensm on one node, or look at the switch's "
                "subnet manager",
            )
        elif p not in up:
            bad = True
            yield warn(
                name,
                f"port {name} is down ({text})",
                evidence,
                remedy=f"look at the cable and the switch port; ibstat {p.device}; leave it out: "
                f"NCCL_IB_HCA=^{p.device}",
            )
        elif p.rate_gbps and p.rate_gbps < best and _alike(p, up):
            bad = True
            yield warn(
                name,
                f"port {name} runs at {p.rate_gbps:g} Gb/s, others at {best:g} Gb/s",
                evidence,
                remedy=f"look at cable and switch port; mlxlink -d {p.device} -m",
            )
    if not bad:
        yield ok("rdma", f"{len(ports)} RDMA ports are up")


def _alike(p: RdmaPort, up: list[RdmaPort]) -> bool:
    """Whether most ports of its link layer run faster: a slow one alone is a management port."""
    layer = [x for x in up if x.link_layer == p.link_layer and x.rate_gbps]
    faster = [x for x in layer if (x.rate_gbps or 0) > (p.rate_gbps or 0)]
    return p.link_layer == "InfiniBand" and len(faster) > len(layer) / 2


@check(
    "gpu.versions",
    "driver, library and services are of one version and run",
    means="FAIL when the loaded kernel module and the user library differ; WARN when a service of "
    "the GPU stack failed, or when two driver versions stand in one paste.",
    why="After a package update the old module stays loaded until the next reboot; every new "
    "process then fails with a version mismatch.",
    prove="cat /proc/driver/nvidia/version; nvidia-smi --version; systemctl --failed",
    mend="Reboot, or unload and load the modules with no GPU user left.",
    source="NVIDIA driver README, installed components; NVML nvmlSystemGetDriverVersion",
)
def versions(s: Seen) -> Iterator[Judged]:
    """Versions against one another; services other than the fabric manager."""
    p = _pasted(s)
    found = [x for x in p.of(Version) if x.component in ("driver", "kernel-module", "library")]
    services = [x for x in p.of(ServiceState) if "fabricmanager" not in x.unit]
    if not found and not services:
        raise NotApplicable("no version of a GPU driver was pasted")
    bad = False
    different = list({x.version.partition("-")[0]: x for x in reversed(found)}.values())[::-1]
    pairs = [(a, b) for i, a in enumerate(different) for b in different[i + 1 :]
             if not _same(a.version, b.version)]  # fmt: skip
    if pairs:
        bad = True
        a, b = pairs[0]
        make = fail if {a.component, b.component} & {"kernel-module", "library"} else warn
        yield make(
            "driver",
            f"two driver versions are named: {a.component} {a.version} and {b.component} "
            f"{b.version}",
            saw(a.source, f"line {a.line}: {a.component} {a.version}"),
            saw(b.source, f"line {b.line}: {b.component} {b.version}"),
            remedy="reboot after the update; cat /proc/driver/nvidia/version shows what is loaded",
        )
    for x in services:
        if x.state in ("failed", "inactive", "not-found"):
            bad = True
            make = warn if x.state == "failed" or "persistenced" in x.unit else info
            answer = f"{x.unit} is {x.state}"
            remedy = f"journalctl -u {x.unit} -n 50; systemctl restart {x.unit}"
            yield make(x.unit, answer, saw(x.source, f"line {x.line}: {x.text}"), remedy=remedy)
    if not bad:
        yield ok("driver", f"driver {some({x.version for x in found}) or 'services'} as expected")
