"""locality: GPUDirect Storage, between a GPU and the drives that it is to read from."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import Judged, NotApplicable, Seen, check, fail, info, ok, some, warn
from nodeagent.model.finding import Evidence
from nodeagent.model.pcie_said import DevicePaths, GdsReport
from nodeagent.model.topology import Path

_UNSAID = "neither NVMe nor NVMe P2PDMA is listed as supported"
BOUNCE = (
    "keep the data on a drive under the GPU's own switch or root port (lspci -tv shows it); else "
    "GPUDirect Storage copies through host memory"
)


@check(
    "locality.gpu-direct-storage",
    "GPUs and NVMe drives share a root complex, and GPUDirect Storage is on",
    means="WARN when gdscheck says that NVMe is unsupported, or a drive and a GPU of the input are "
    "under different root complexes; FAIL when gdscheck reports that the platform is not fit; OK "
    "when it is supported. On a machine with the nvidia-fs module: INFO for GPUs without a drive "
    "under their root complex. NA else.",
    why="Peer-to-peer DMA needs a bridge that both are below (or root ports that the kernel "
    "knows to forward): without one every read goes through a bounce buffer in host memory.",
    prove="gdscheck -p; ls -l /sys/block/nvme*n1/device; lspci -tv",
    mend="Move drive or data to the GPU's switch; iommu=pt; ACS off between them.",
    source="NVIDIA GPUDirect Storage best practices guide, PCIe topology; Linux "
    "Documentation/driver-api/pci/p2pdma.rst",
)
def gpu_direct_storage(s: Seen) -> Iterator[Judged]:
    """gdscheck, device paths, and on a machine the tree."""
    pasted = s.snapshot.pasted
    if pasted is None:
        yield from _machine(s)
        return
    reports = pasted.of(GdsReport)
    apart = _apart(pasted.of(DevicePaths)) if reports else ()
    if not reports:
        raise NotApplicable("the input says nothing of GPUDirect Storage")
    for report in reports:
        table = dict(report.drivers)
        nvme, p2p = table.get("NVMe"), table.get("NVMe P2PDMA")
        shown = [
            Evidence(path=report.source, text=f"{name}: {table[name]}")
            for name in ("NVMe", "NVMe P2PDMA")
            if name in table
        ]
        if report.troubles:
            yield fail(
                "gds",
                f"gdscheck says that this platform is not fit: {some(report.troubles, 2)}",
                *(Evidence(path=report.source, text=t) for t in report.troubles[:3]),
                remedy="gdscheck -p after mending what it names; driver and nvidia-fs must match",
            )
        if "Supported" not in (nvme, p2p):
            why = f": {apart[0][0]}" if apart else ""
            yield warn(
                "nvme",
                "GPUDirect Storage does not reach local NVMe drives (reads go through a bounce "
                f"buffer in host memory){why}",
                *shown,
                *(e for _, evidence in apart[:1] for e in evidence),
                *([] if shown or apart else [Evidence(path=report.source, text=_UNSAID)]),
                remedy=BOUNCE
                if apart
                else "load nvidia-fs (modprobe nvidia-fs), use ext4 or XFS "
                "on a local NVMe drive, iommu=pt; gdscheck -p tells",
            )
        elif apart:
            yield warn(
                "nvme",
                f"GPUDirect Storage is on, but not every way is short: {apart[0][0]}",
                *shown,
                *apart[0][1],
                remedy=BOUNCE,
            )
        else:
            yield ok("nvme", "GPUDirect Storage reaches NVMe drives", *shown)
        if report.compat and "Supported" in (nvme, p2p):
            yield info("gds", "cuFile may fall back to copies through host memory (compat mode)")


def _apart(
    reports: tuple[DevicePaths, ...],
) -> tuple[tuple[str, tuple[Evidence, Evidence]], ...]:
    """Pairs of a drive and another device without a bridge above both."""
    rows = [(r.source, *path) for r in reports for path in r.paths]
    drives = [r for r in rows if r[1].startswith("nvme")]
    others = [r for r in rows if not r[1].startswith(("nvme", "sd", "dm-", "md"))]
    found = []
    for source, name, root, chain in drives:
        for _, other, root2, chain2 in others:
            if root == root2 or set(chain[:-1]) & set(chain2[:-1]):
                continue
            sentence = (
                f"{name} ({chain[-1]}, root {root}) and {other} (root {root2}) share no bridge"
            )
            evidence = (
                Evidence(path=source, text=f"{name}: pci{root}/{'/'.join(chain)}"),
                Evidence(path=source, text=f"{other}: pci{root2}/{'/'.join(chain2)}"),
            )
            found.append((sentence, evidence))
    return tuple(found)


def _machine(s: Seen) -> Iterator[Judged]:
    """GPUs without a drive under their root complex, where GPUDirect Storage is installed."""
    topology = s.snapshot.topology
    gpus = [p for p in topology.gpus if p.computes and p.physfn is None]
    if s.snapshot.texts.get("sys/module/nvidia_fs/version") is None or not gpus:
        raise NotApplicable("GPUDirect Storage (nvidia-fs) is not loaded")
    drives = {p.bdf for p in topology.nvmes}
    near = {
        bdf
        for r in topology.relations
        if r.path in (Path.PIX, Path.PXB, Path.PHB)
        for bdf, other in ((r.a, r.b), (r.b, r.a))
        if other in drives
    }
    bare = [p.bdf for p in gpus if p.bdf not in near]
    if drives and bare:
        yield info(
            f"gpu {some(bare)}",
            f"{len(bare)} GPUs have no NVMe drive under their root complex: GPUDirect Storage "
            "copies through host memory there",
        )
    elif drives:
        yield ok("gds", f"each of {len(gpus)} GPUs has an NVMe drive under its root complex")
    else:
        raise NotApplicable("no NVMe drive is here")
