"""Tables of GPUs: `nvidia-smi --query-gpu=... --format=csv`, its process query, holders of device
files, and tables with such columns. The header row decides; columns may stand in any order.

Source: nvidia-smi --help-query-gpu, --help-query-compute-apps, --help-query-remapped-rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping

from nodeagent.discover.paste import gpu_fields as v
from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import DeviceHolder, GpuProcess, GpuState, Version
from nodeagent.model.pasted import Report

MAX_ROWS = 20_000
_UNIT = re.compile(r"\s*[\[(]([^\])]*)[\])]\s*$")

_NAMES = {
    "index": "index", "gpu": "index", "gpu_id": "index", "gpu_index": "index", "idx": "index",
    "minor_number": "minor", "name": "name", "gpu_name": "name", "product": "name",
    "product_name": "name", "model": "name",
    "pci.bus_id": "bdf", "gpu_bus_id": "bdf", "bus_id": "bdf", "bdf": "bdf", "pci_bus_id": "bdf",
    "uuid": "uuid", "gpu_uuid": "uuid",
    "driver_version": "driver", "pstate": "pstate", "performance_state": "pstate",
    "state": "load", "load": "load", "sample": "load",
    "utilization.gpu": "util", "util": "util", "gpu_util": "util", "util_pct": "util",
    "util_gpu": "util", "utilization": "util", "gpu_utilization": "util", "gpu_use": "util",
    "memory.used": "used", "mem_used": "used", "mem_used_mib": "used", "memory_used": "used",
    "used_mib": "used", "memory_used_mib": "used", "fb_used": "used",
    "memory.total": "total", "mem_total": "total", "mem_total_mib": "total",
    "memory_total": "total", "total_mib": "total", "fb_total": "total",
    "procs": "procs", "processes": "procs", "n_procs": "procs", "process_count": "procs",
    "power.draw": "power", "power.draw.instant": "power", "power.draw.average": "power",
    "power_w": "power", "power": "power", "pwr": "power", "power_draw": "power",
    "power.limit": "limit", "enforced.power.limit": "limit", "power_limit": "limit",
    "power_limit_w": "limit", "power.default_limit": "default",
    "temperature.gpu": "temp", "temp": "temp", "temp_c": "temp", "temperature": "temp",
    "gpu_temp": "temp", "gtemp": "temp", "temperature_gpu": "temp",
    "temperature.gpu.tlimit": "margin", "tlimit": "margin", "margin_c": "margin",
    "temperature.memory": "mtemp", "mem_temp": "mtemp", "memory_temp": "mtemp",
    "slowdown_c": "slowdown", "slowdown": "slowdown", "slowdown_temp": "slowdown",
    "pcie.link.gen.current": "gen", "pcie.link.gen.gpucurrent": "gen", "gen_cur": "gen",
    "gen_current": "gen", "pcie_gen": "gen", "gen": "gen", "pcie_gen_cur": "gen",
    "pcie.link.gen.max": "gen_max", "gen_max": "gen_max", "pcie_gen_max": "gen_max",
    "pcie.link.gen.gpumax": "gen_device", "pcie.link.gen.hostmax": "gen_host",
    "pcie.link.width.current": "width", "width_cur": "width", "width": "width",
    "width_current": "width", "pcie_width": "width", "pcie_width_cur": "width",
    "pcie.link.width.max": "width_max", "width_max": "width_max", "pcie_width_max": "width_max",
    "persistence_mode": "persistence", "compute_mode": "compute",
    "ecc.mode.current": "ecc", "ecc.mode.pending": "ecc_pending",
    "ecc.errors.uncorrected.volatile.total": "due",
    "ecc.errors.uncorrected.aggregate.total": "due_total",
    "ecc.errors.corrected.volatile.total": "ce",
    "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded": "sram",
    "ecc_uncorrected": "due", "ecc_dbe": "due", "dbe": "due", "volatile_dbe": "due",
    "ecc_uncorrectable": "due", "uncorrectable_volatile": "due", "ecc_volatile_uncorrected": "due",
    "ecc_uncorrected_volatile": "due", "ecc_uncorrected_aggregate": "due_total",
    "retired_pages.double_bit.count": "retired", "retired_pages.dbe": "retired",
    "retired_pages.pending": "retired_pending",
    "remapped_rows.uncorrectable": "remap_due", "remapped_rows.correctable": "remap_ce",
    "remapped_rows.pending": "remap_pending", "remapped_rows.failure": "remap_failure",
    "remap_pending": "remap_pending", "remap_failure": "remap_failure",
    "remapped_pending": "remap_pending", "remapped_failure": "remap_failure",
    "remapping_failure": "remap_failure", "remap_uncorrectable": "remap_due",
    "remapped_uncorrectable": "remap_due", "row_remap_pending": "remap_pending",
    "row_remap_failure": "remap_failure",
    "mig.mode.current": "mig", "mig.mode.pending": "mig_pending", "mig_mode": "mig",
    "fabric.state": "fabric", "fabric.status": "fabric_status", "fabric_state": "fabric",
    "fabric_status": "fabric_status", "gpu_recovery_action": "recovery",
    "recovery_action": "recovery", "reset_status.reset_required": "reset",
    "reset_status.drain_and_reset_recommended": "drain",
    "clocks_throttle_reasons.active": "mask", "clocks_event_reasons.active": "mask",
    "throttle": "mask", "throttle_reason": "mask", "clocks_event_reasons": "mask",
    "remapped_rows_pending": "remap_pending", "remapped_rows_failure": "remap_failure",
    "row_remap_failed": "remap_failure", "fabric_state_now": "fabric", "ecc_errors": "due",
    "throttle_reasons": "mask", "clocks_throttle": "mask",
    "pcie_replays": "replays", "replays": "replays", "replay_counter": "replays",
    "pid": "pid", "process_name": "process", "comm": "process", "process": "process",
    "command": "process", "used_memory": "process_used", "used_gpu_memory": "process_used",
    "path": "path", "device": "path", "file": "path",
}  # fmt: skip
"""Column -> what it holds: nvidia-smi's names first, then those of exporters and people."""
_STRONG = re.compile(r"pcie\.link|temperature\.|utilization\.|memory\.|ecc\.|clocks|power\.|mig\.")
_IDS = {"index", "bdf", "uuid", "minor"}


def read_gpu_csv(text: str, name: str) -> Part | None:
    """All tables of GPUs, processes on GPUs and holders of GPU files; None when there is none."""
    reports: list[Report] = []
    lines = text.split("\n")
    columns: list[tuple[str, str, str]] = []
    apps: list[tuple[dict[str, str], int]] = []
    for line_number, line in enumerate(lines, 1):
        if line.count(",") < 1 and not columns:
            continue
        cells = _cells(line)
        if found := _header(cells):
            columns = found
            continue
        if not columns:
            continue
        if len(cells) != len(columns):
            columns = []
            continue
        if len(reports) + len(apps) >= MAX_ROWS:
            break
        row, units, flags = _row(columns, cells)
        if "path" in row:
            if holder := _holder(row, name, line_number):
                reports.append(holder)
        elif "pid" in row and row.keys() & (_IDS | {"process_used"}):
            apps.append((row, line_number))
        else:
            reports += _gpu(row, units, flags, name, line_number)
    if not reports and not apps and len(lines) <= MAX_LOOSE:
        reports += _loose(lines, name)
    states = [r for r in reports if isinstance(r, GpuState)]
    if apps and not states:
        reports += _alone(apps, name)
    if not reports:
        return None
    return Part(kind="GPU table", reports=tuple(reports))


def _cells(line: str) -> list[str]:
    if len(line) > 20_000:
        return []
    try:
        return [c.strip() for c in next(csv.reader([line.strip()], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _header(cells: list[str]) -> list[tuple[str, str, str]]:
    """(column, what it holds, unit) of a header row; () for another line."""
    found = []
    for cell in cells:
        unit = _UNIT.search(cell)
        bare = _UNIT.sub("", cell).strip().strip('"').lower().replace(" ", "_")
        found.append((bare, _meaning(bare), unit[1] if unit else ""))
    known = {k for _, k, _ in found if k}
    if any(c and (c[0].isdigit() or c.startswith("/")) for c in cells) or len(known) < 2:
        return []
    strong = any(_STRONG.search(column) for column, _, _ in found)
    if "path" in known and not {"pid"} <= known:
        return []
    if not (known & _IDS or {"path", "pid"} <= known or {"load", "pstate"} <= known or strong):
        return []
    if not known - _IDS - {"load", "name", "process", "pid", "path"} and "pid" not in known:
        # Ids and names alone are no state: a table of something else.
        return [] if not strong and known <= {"index", "name", "load"} else found
    return found


def _meaning(column: str) -> str:
    if column in _NAMES:
        return _NAMES[column]
    if re.match(r"clocks_(?:throttle|event)_reasons\.", column):
        return "flag:" + column.partition(".")[2]
    if v.reason(column):
        return "flag:" + column
    return ""


def _row(
    columns: list[tuple[str, str, str]], cells: list[str]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    row: dict[str, str] = {}
    units: dict[str, str] = {}
    flags: dict[str, str] = {}
    for (column, what, unit), cell in zip(columns, cells, strict=True):
        if what.startswith("flag:"):
            flags[what[5:]] = cell
        elif what and what not in row:
            row[what] = cell
            units[what] = unit or ("MiB" if column.endswith("_mib") else "")
    return row, units, flags


def _holder(row: Mapping[str, str], source: str, line: int) -> DeviceHolder | None:
    pid = v.whole(row.get("pid", ""))
    path = row["path"]
    if pid is None or not path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
        return None
    return DeviceHolder(
        source=source, line=line, path=path, pid=pid, process=row.get("process", "")
    )


MAX_LOOSE = 400
"""Lines of a text in which single `GPU 0: key value, key value` lines are looked for."""
_OF_GPU = re.compile(r"^\s*(?:GPU|gpu)[ _]?(\d{1,4})\b\s*[:,-]?\s*(\S.{0,400}?)\s*$")
_VALUE = r"(\S{1,40}(?: [\w%/]{1,12}){0,2})\s*$"
_SAID = re.compile(rf"^\s*([A-Za-z][\w. /%()-]{{1,60}}?)\s*[:=]\s*{_VALUE}")
_SAID_BARE = re.compile(rf"^\s*([A-Za-z][\w. /%()-]{{1,60}}?)\s+{_VALUE}")


def _loose(lines: list[str], source: str) -> list[Report]:
    """What people write down of a GPU on one line. Only words that are columns elsewhere count."""
    found: list[Report] = []
    for number, line in enumerate(lines, 1):
        m = _OF_GPU.match(line)
        if m is None:
            continue
        row: dict[str, str] = {}
        for piece in re.split(r"[,;|]|: (?=[a-z ]+ \w+(?:,|$))", m[2]):
            said = _SAID.match(piece) or _SAID_BARE.match(piece)
            if said is None:
                continue
            words = said[1].lower().split()
            # The longest end of the words that is a column: "rows remap pending".
            what = next(
                (w for i in range(len(words)) if (w := _meaning("_".join(words[i:])))), ""
            ) or _PLAIN.get(words[-1], "")
            if what and not what.startswith("flag:") and what not in _IDS:
                row.setdefault(what, said[2])
        if row.keys() - {"name", "load", "process"}:
            row["index"] = m[1]
            found += _gpu(row, {}, {}, source, number)
    return found


_PLAIN = {"pending": "remap_pending", "failure": "remap_failure", "uncorrectable": "remap_due",
          "correctable": "remap_ce"}  # fmt: skip
_LOAD = {"load": True, "loaded": True, "busy": True, "under load": True, "idle": False}


def _gpu(
    row: Mapping[str, str],
    units: Mapping[str, str],
    flags: Mapping[str, str],
    source: str,
    line: int,
) -> list[Report]:
    found: list[Report] = []
    if driver := v.word(row.get("driver", "")):
        found.append(Version(source=source, line=line, component="driver", version=driver))

    def one(key: str, read: Callable[[str], object]) -> object:
        return read(row[key]) if key in row else None

    def sized(key: str) -> float | None:
        return v.mib(row[key], units.get(key, "")) if key in row else None

    reasons = {r for name, value in flags.items() if v.yes(value) and (r := v.reason(name))}
    mask = row.get("mask", "")
    reasons |= v.bits(mask) or {r for w in re.split(r"[;|+/]", mask) if (r := v.reason(w))}
    errors = tuple(f"line {line}: {k}: {x}" for k, x in row.items() if v.broken(x))
    index = row.get("index", "")
    values: dict[str, object] = {
        "index": v.whole(re.sub(r"(?i)^gpu\s*", "", index)) if index else None,
        "name": one("name", v.word),
        "bdf": one("bdf", v.bdf),
        "uuid": one("uuid", v.word),
        "loaded": _LOAD.get(row.get("load", "").strip().lower()),
        "pstate": one("pstate", v.pstate),
        "util_percent": one("util", v.whole),
        "gen": one("gen", v.whole),
        "gen_max": one("gen_max", v.whole),
        "gen_device_max": one("gen_device", v.whole),
        "gen_host_max": one("gen_host", v.whole),
        "width": one("width", v.whole),
        "width_max": one("width_max", v.whole),
        "replays": one("replays", v.whole),
        "used_mib": sized("used"),
        "total_mib": sized("total"),
        "power_w": one("power", v.number),
        "power_limit_w": one("limit", v.number),
        "power_default_w": one("default", v.number),
        "temp_c": one("temp", v.number),
        "slowdown_c": one("slowdown", v.number),
        "margin_c": one("margin", v.number),
        "memory_temp_c": one("mtemp", v.number),
        "reasons": frozenset(reasons),
        "ecc_uncorrected": one("due", v.whole),
        "ecc_uncorrected_total": one("due_total", v.whole),
        "ecc_corrected": one("ce", v.whole),
        "ecc_threshold": one("sram", v.yes),
        "ecc_mode": one("ecc", v.word),
        "ecc_pending": one("ecc_pending", v.word),
        "retired_pages": one("retired", v.whole),
        "retired_pending": one("retired_pending", v.yes),
        "remap_uncorrectable": one("remap_due", v.whole),
        "remap_correctable": one("remap_ce", v.whole),
        "remap_pending": one("remap_pending", v.yes),
        "remap_failure": one("remap_failure", v.yes),
        "mig": one("mig", v.word),
        "mig_pending": one("mig_pending", v.word),
        "fabric_state": one("fabric", v.word),
        "fabric_status": one("fabric_status", v.word),
        "persistence": one("persistence", v.yes),
        "compute_mode": one("compute", v.word),
        "reset_required": one("reset", v.yes),
        "drain": one("drain", v.yes),
        "recovery": row.get("recovery") or None,
        "process_count": one("procs", v.whole),
        "errors": errors,
    }
    state = GpuState(source=source, line=line, tool="GPU table", **values)  # type: ignore[arg-type]
    found.append(state)
    return found


def _alone(apps: list[tuple[dict[str, str], int]], source: str) -> list[Report]:
    """Processes without a table of GPUs: a state for each GPU that they name."""
    by: dict[tuple[str, str], list[GpuProcess]] = {}
    first: dict[tuple[str, str], int] = {}
    for row, line in apps:
        key = (row.get("bdf", "") or row.get("index", ""), row.get("uuid", ""))
        first.setdefault(key, line)
        by.setdefault(key, []).append(
            GpuProcess(
                pid=v.whole(row.get("pid", "")),
                name=row.get("process", ""),
                used_mib=v.whole(row.get("process_used", "")),
            )
        )
    return [
        GpuState(
            source=source,
            line=first[key],
            tool="GPU table",
            index=v.whole(key[0]) if key[0].isdigit() else None,
            bdf=v.bdf(key[0]) if ":" in key[0] else None,
            uuid=v.word(key[1]),
            processes=tuple(found),
        )
        for key, found in by.items()
    ]
