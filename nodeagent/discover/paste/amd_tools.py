"""`rocm-smi` (its table) and `amd-smi static|metric|monitor` as typed GPUs.

Source: ROCm/rocm_smi_lib python_smi_tools/rocm_smi.py showAllConcise(); ROCm/amdsmi
amdsmi_cli, human-readable output.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste import gpu_fields as v
from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import GpuState
from nodeagent.model.pasted import Report

_HEAD = re.compile(r"^\s*(?:GPU|Device)\s.*\bVRAM%\s+GPU%")
_ROW = re.compile(r"^\s*(\d{1,3})\s.*?\s(\d{1,3})%\s+(\d{1,3})%\s*$")
_TEMP = re.compile(r"(\d{1,3}(?:\.\d)?)\s?°?[cC]\b")
_POWER = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)\s?W\b")
_AMD_GPU = re.compile(r"^GPU: (\d{1,3})\s*$")
_KEY = re.compile(r"^\s*([A-Z][A-Z0-9_]{1,60}): ?(.*?)\s*$")
MAX_GPUS = 1024


def read_amd_tools(text: str, name: str) -> Part | None:
    """The GPUs of either tool; None for other text."""
    reports: list[Report] = [*_table(text, name), *_blocks(text, name)]
    if not reports:
        return None
    return Part(kind="AMD GPU tools", reports=tuple(reports[:MAX_GPUS]))


def _table(text: str, source: str) -> list[GpuState]:
    """`rocm-smi` without options: use and VRAM stand last, temperature and power have units."""
    found: list[GpuState] = []
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if _HEAD.match(line):
            inside = True
        elif inside and (m := _ROW.match(line)):
            watts = _POWER.findall(line)
            temp = _TEMP.search(line)
            found.append(
                GpuState(
                    source=source,
                    line=number,
                    tool="rocm-smi",
                    vendor="amd",
                    index=int(m[1]),
                    util_percent=int(m[3]),
                    used_percent=int(m[2]),
                    temp_c=float(temp[1]) if temp else None,
                    power_w=float(watts[0]) if watts else None,
                    power_limit_w=float(watts[-1]) if len(watts) > 1 else None,
                    errors=(f"line {number}: {line.strip()}",) if v.broken(line) else (),
                )
            )
        elif inside and line.startswith("=") and found:
            inside = False
    return found


def _blocks(text: str, source: str) -> list[GpuState]:
    """`amd-smi`: `GPU: N`, then sections in capitals; the section counts for few keys only."""
    found: list[GpuState] = []
    values: dict[str, str] = {}
    index: int | None = None
    start = 0
    section = ""
    for number, line in enumerate([*text.split("\n"), "GPU: 0"], 1):
        if m := _AMD_GPU.match(line):
            if index is not None and len(values) > 1:
                found.append(_state(values, index, start, source))
            values, index, start, section = {}, int(m[1]), number, ""
        elif index is not None and (m := _KEY.match(line)):
            if m[2]:
                values.setdefault(f"{section}.{m[1]}", m[2])
                values.setdefault(m[1], m[2])
            else:
                section = m[1]
    return found


def _state(values: dict[str, str], index: int, line: int, source: str) -> GpuState:
    def first(*keys: str) -> str:
        return next((values[k] for k in keys if k in values), "")

    used = v.mib(first("USED_VRAM"), "MB")
    speed = v.number(first("PCIE.SPEED", "PCIE.PCIE_SPEED"))
    top = v.number(first("BUS.MAX_PCIE_SPEED", "MAX_PCIE_SPEED"))
    hot = [key for key in values if re.search(r"THERMAL_VIOLATION_STATUS$", key)]
    reasons = {"HW Thermal Slowdown"} if any(v.yes(values[k]) for k in hot) else set()
    return GpuState(
        source=source,
        line=line,
        tool="amd-smi",
        vendor="amd",
        index=index,
        name=v.word(first("MARKET_NAME")),
        bdf=v.bdf(first("BDF")) if "BDF" in values else None,
        util_percent=v.whole(first("GFX_ACTIVITY")),
        gen=_generation(speed),
        gen_max=_generation(top),
        width=v.whole(first("PCIE.WIDTH")),
        width_max=v.whole(first("BUS.MAX_PCIE_WIDTH", "MAX_PCIE_WIDTH")),
        used_mib=used,
        total_mib=v.mib(first("TOTAL_VRAM"), "MB"),
        power_w=v.number(first("SOCKET_POWER")),
        temp_c=v.number(first("HOTSPOT_TEMPERATURE", "HOTSPOT")),
        slowdown_c=v.number(first("SLOWDOWN_HOTSPOT_TEMPERATURE")),
        memory_temp_c=v.number(first("TEMPERATURE.MEM", "MEM_TEMPERATURE")),
        ecc_uncorrected=v.whole(first("TOTAL_UNCORRECTABLE_COUNT")),
        ecc_corrected=v.whole(first("TOTAL_CORRECTABLE_COUNT")),
        replays=v.whole(first("REPLAY_COUNT")),
        reasons=frozenset(reasons),
    )


_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def _generation(speed: float | None) -> int | None:
    """The PCIe generation of a rate in GT/s."""
    return None if speed is None else _SPEEDS.get(speed)
