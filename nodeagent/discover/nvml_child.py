"""The device child: all that talks to NVML, one JSON line for each `N read`.

A hung driver hangs this process only. It ends when its input does, and at once after saying that
NVML is not to be had here. Source: NVML API reference; nvidia-ml-py is its binding.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
MAX_GPUS = 256
MAX_NVLINKS = 36
"""NVML_NVLINK_MAX_LINKS."""
MAX_MIG = 16
"""Slots of MIG devices asked for; a GPU has seven."""
CPU_WORDS = 64
"""64-bit words of a CPU mask: 4,096 CPUs."""
SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""


def main() -> None:
    """Answers until the input ends."""
    lib, reason = load()
    for line in sys.stdin:
        number = line.split()[0]
        answer = {"available": False, "reason": reason} if lib is None else read(lib)
        sys.stdout.write(f"{json.dumps(answer)}\n= {number}\n")
        sys.stdout.flush()
        if not answer["available"]:
            return


def load() -> tuple[Any, str]:
    """The initialised binding, or why there is none."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return None, f"NVML is not installed: {error}"
    try:
        import pynvml
    except ImportError as error:
        return None, f"the Python package nvidia-ml-py is missing: {error}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"nvmlInit: {error}"
    return pynvml, ""


def read(lib: Any) -> dict[str, Any]:
    """Facts of all GPUs. A call that fails leaves its fact null; a lost GPU says so."""
    try:
        count = lib.nvmlDeviceGetCount()
    except lib.NVMLError as error:
        return {"available": False, "reason": f"nvmlDeviceGetCount: {error}"}
    return {
        "available": True,
        "driver": _maybe(lib, lib.nvmlSystemGetDriverVersion),
        "gpus": [gpu(lib, i) for i in range(min(count, MAX_GPUS))],
    }


def gpu(lib: Any, index: int) -> dict[str, Any]:
    """Facts of one GPU."""
    found: dict[str, Any] = {"index": index}
    try:
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        found["bdf"] = _text(lib.nvmlDeviceGetPciInfo(handle).busId)
        # A cheap call that reaches the device: a GPU that fell off the bus fails here.
        found["memory"] = lib.nvmlDeviceGetMemoryInfo(handle).total
    except lib.NVMLError as error:
        if error.value != lib.NVML_ERROR_NOT_SUPPORTED:
            found["error"] = f"{error} (NVML error {error.value})"
            return found
    found["name"] = _maybe(lib, lib.nvmlDeviceGetName, handle)
    found["uuid"] = _maybe(lib, lib.nvmlDeviceGetUUID, handle)
    found["numa_node"] = _maybe(lib, lib.nvmlDeviceGetNumaNodeId, handle)
    words = _maybe(lib, lib.nvmlDeviceGetCpuAffinityWithinScope, handle, CPU_WORDS, 0)
    if words is not None:
        found["cpus"] = [64 * i + b for i, w in enumerate(words) for b in range(64) if w >> b & 1]
    mig = _maybe(lib, lib.nvmlDeviceGetMigMode, handle)
    found["mig"] = None if mig is None else bool(mig[0])
    if found["mig"]:
        found["mig_instances"] = mig_instances(lib, handle)
    found["links"] = links(lib, handle)
    return found


def mig_instances(lib: Any, handle: Any) -> list[dict[str, Any]]:
    """The MIG devices of a GPU: slots that are empty answer "not found"."""
    found = []
    for slot in range(min(_maybe(lib, lib.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, MAX_MIG)):
        device = _maybe(lib, lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if device is None:
            continue
        shape = _maybe(lib, lib.nvmlDeviceGetAttributes_v2, device)
        found.append(
            {
                "index": slot,
                "uuid": _maybe(lib, lib.nvmlDeviceGetUUID, device),
                "gpu_instance": _maybe(lib, lib.nvmlDeviceGetGpuInstanceId, device),
                "compute_instance": _maybe(lib, lib.nvmlDeviceGetComputeInstanceId, device),
                "memory": None if shape is None else shape.memorySizeMB << 20,
                "slices": None if shape is None else shape.gpuInstanceSliceCount,
            }
        )
    return found


def links(lib: Any, handle: Any) -> list[dict[str, Any]]:
    """Active NVLinks with what is at their other end."""
    found = []
    for link in range(MAX_NVLINKS):
        state = _maybe(lib, lib.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        if state:
            remote = _maybe(lib, lib.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            kind = _maybe(lib, lib.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            found.append(
                {"bdf": None if remote is None else _text(remote.busId), "switch": kind == SWITCH}
            )
    return found


def _maybe(lib: Any, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except lib.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    main()
