"""gpu: are the GPUs there, driven, and answering?"""

from __future__ import annotations

from collections.abc import Iterator

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
    unknown,
    warn,
)
from nodeagent.model.pci import AMD, NVIDIA, PciFunction


def _gpus(s: Seen) -> list[PciFunction]:
    s.devices()
    found = [p for p in s.snapshot.topology.gpus if p.computes and p.physfn is None]
    if not found or s.snapshot.pasted:
        raise NotApplicable("no GPU that computes is here")
    return found


@check(
    "gpu.driver",
    "every GPU has a driver",
    means="WARN when a GPU of NVIDIA or AMD has no driver bound; INFO for GPUs handed to guests "
    "(vfio-pci) and for display chips of Intel.",
    why="A GPU without a driver is invisible to every framework; after a failed driver upgrade all "
    "of them are.",
    prove="lspci -nnk -d ::0302; lspci -nnk -d ::0300; dmesg | grep -iE 'nvrm|amdgpu'",
    mend="modprobe nvidia (or amdgpu); dmesg says why it does not load.",
    source="Linux Documentation/driver-api/driver-model/binding.rst",
)
def driver(s: Seen) -> Iterator[Judged]:
    """Driver link of each GPU."""
    gpus = [p for p in _gpus(s) if p.vendor in (NVIDIA, AMD)]
    if not gpus:
        raise NotApplicable("no NVIDIA or AMD GPU is here")
    bare = [p for p in gpus if p.driver is None]
    vfio = [p for p in gpus if (p.driver or "").startswith("vfio")]
    if bare and not any(p.driver for p in s.snapshot.topology.pci):
        s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf="driver")
        raise NotApplicable("no driver links are described")
    if bare:
        module = "amdgpu" if bare[0].vendor == AMD else "nvidia"
        yield warn(
            f"gpu {some(p.bdf for p in bare)}",
            f"{len(bare)} of {len(gpus)} GPUs have no driver",
            *(saw(f"sys/bus/pci/devices/{p.bdf}/driver", "no such link") for p in bare[:3]),
            remedy=f"modprobe {module}; dmesg | tail -n 30  # why it does not load, if it does not",
        )
    elif len(vfio) < len(gpus):
        kinds = sorted({p.driver or "" for p in gpus})
        yield ok("gpu", f"{len(gpus)} GPUs have drivers ({some(kinds)})")
    if vfio:
        yield info(f"gpu {some(p.bdf for p in vfio)}", f"{len(vfio)} GPUs are handed to guests")


@check(
    "gpu.nvml",
    "the NVIDIA library answers and sees every GPU",
    means="UNKNOWN when NVML cannot be asked; FAIL when it sees fewer GPUs than the PCI bus has "
    "with the nvidia driver bound (a GPU is lost); NA without NVIDIA GPUs and in recordings "
    "without NVML.",
    why="A GPU that fell off the bus keeps its PCI address but NVML no longer lists it; jobs then "
    "start with one GPU fewer.",
    prove="nvidia-smi -L; lspci -d 10de:: | grep -cE '3D|VGA'",
    mend="dmesg | grep -i xid for the reason; drain the node and reset the GPU or reboot.",
    source="NVIDIA NVML API reference, nvmlDeviceGetCount_v2; GPUd accelerator-nvidia-gpu-counts",
)
def nvml(s: Seen) -> Iterator[Judged]:
    """NVML's list against the bus."""
    s.whole("nvml/reading")
    gpus = [p for p in _gpus(s) if p.vendor == NVIDIA]
    mine = [p for p in gpus if p.driver == "nvidia"]
    if not gpus:
        raise NotApplicable("no NVIDIA GPU is here")
    if not s.snapshot.nvml.available:
        if not s.snapshot.live:
            raise NotApplicable("the recording holds nothing of NVML")
        if not mine:
            raise NotApplicable("no GPU has the nvidia driver; gpu.driver says so")
        yield unknown(
            "nvml",
            f"NVML cannot be asked: {s.snapshot.nvml.reason or 'no reason was given'}",
            saw("libnvidia-ml.so.1", s.snapshot.nvml.reason or "not available"),
            remedy="install nvidia-ml-py and the driver's libnvidia-ml.so.1; try nvidia-smi -L",
        )
        return
    listed = {g.bdf for g in s.snapshot.gpus}
    lost = [p for p in mine if p.bdf not in listed]
    if lost:
        yield fail(
            f"gpu {some(p.bdf for p in lost)}",
            f"NVML lists {len(listed)} GPUs, the PCI bus has {len(mine)}: "
            f"{some(p.bdf for p in lost)} is lost",
            saw("nvmlDeviceGetCount_v2", str(len(listed))),
            saw(f"sys/bus/pci/devices/{lost[0].bdf}/driver", "nvidia"),
            remedy="dmesg | grep -i xid; drain the node, then reset the GPU or reboot",
        )
    else:
        yield ok("gpu", f"NVML lists all {len(listed)} GPUs", saw("NVML", "nvmlDeviceGetCount_v2"))


@check(
    "gpu.alike",
    "all GPUs are of one model",
    means="INFO when GPUs of several models are in one machine.",
    why="Collectives run at the pace of the slowest; a replacement of another model is easily "
    "overlooked.",
    prove="lspci -nn -d ::0302; nvidia-smi -L",
    mend="Nothing, when intended; else ask who exchanged the card.",
    source="NCCL user guide, 'heterogeneous systems'",
)
def alike(s: Seen) -> Iterator[Judged]:
    """PCI device numbers."""
    s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf="device")
    gpus = _gpus(s)
    if len(gpus) < 2:
        raise NotApplicable("fewer than two GPUs are here")
    models = sorted({f"{p.vendor}:{p.device}" for p in gpus})
    if len(models) > 1:
        yield info("gpu", f"{len(gpus)} GPUs of {len(models)} models: {some(models)}")
    else:
        yield ok("gpu", f"{len(gpus)} GPUs, all {models[0]}")
