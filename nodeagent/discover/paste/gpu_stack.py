"""The software around GPUs: services, versions, who holds device files, tools that fail, what a
process may use. Source: systemctl(1); fuser(1); lsof(8); proc_pid_status(5)."""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.discover.root import is_number
from nodeagent.model.gpu_report import (
    Allowed,
    DeviceHolder,
    FabricParts,
    ServiceState,
    ToolFailure,
    Version,
)
from nodeagent.model.pasted import Report

_UNITS = (
    r"nvidia-fabricmanager|nvidia-persistenced|nvidia-dcgm|dcgm|nvidia-imex|nvlsm"
    r"|nvidia-powerd|nv-hostengine"
)
_SHORT = re.compile(
    rf"^\s*[●○×*]?\s*((?:{_UNITS})(?:\.service)?)\s*[:=]?\s+"
    r"(?:loaded\s+)?(active|inactive|failed|activating|not-found|dead|enabled|disabled|masked)\b(.*)$"
)
_TITLE = re.compile(rf"^\s*[●○×*]?\s*((?:{_UNITS})\.service)\b(?: - .*)?$")
_ACTIVE = re.compile(r"^\s*Active:\s*(\w+)(.*)$")
_SHOW = re.compile(r"^\s*ActiveState=(\w+)\s*$")
_NO_UNIT = re.compile(rf"Unit ((?:{_UNITS})\.service) could not be found")

_NUMBER = r"(\d{3}\.\d{1,3}(?:\.\d{1,3})?)"
_SAYS = r"(?:[ _]version)?(?:\s+version)?(?:\s+is)?\s*[:=]?\s+"
_VERSIONS = tuple(
    (component, re.compile(pattern, re.IGNORECASE))
    for component, pattern in (
        ("driver", rf"^\s*(?:nvidia[ _-])?driver{_SAYS}{_NUMBER}\b"),
        ("kernel-module", rf"NVRM version: NVIDIA UNIX.{{0,80}}?\s{_NUMBER}\s"),
        ("kernel-module", rf"^\s*kernel[ _-]module{_SAYS}{_NUMBER}\b"),
        ("fabricmanager", rf"^\s*(?:nvidia[ _-])?fabric[ _-]?manager{_SAYS}{_NUMBER}\b"),
        ("fabricmanager", rf"^ii\s+nvidia-fabricmanager(?:-\d+)?(?::\w+)?\s+{_NUMBER}"),
        ("fabricmanager", rf"\bnvidia-fabric-?manager-(?:\d+-)?{_NUMBER}"),
        ("fabricmanager", rf"Fabric ?Manager[^\n]{{0,40}}?version[ :]+(?:is )?{_NUMBER}"),
        ("library", rf"NVML library version\s*:\s*{_NUMBER}"),
        ("library", rf"libnvidia-ml\.so\.{_NUMBER}"),
        ("driver", rf"^ii\s+nvidia-driver-\d+\S*\s+{_NUMBER}"),
    )
)
_MISMATCH = re.compile(
    rf"fabric manager .{{0,40}}version {_NUMBER} .{{0,60}}driver version[ :]*{_NUMBER}"
    rf"|(?:client|fabric manager) version[ :]+{_NUMBER}.{{0,80}}"
    rf"(?:kernel )?driver version[ :]+{_NUMBER}",
    re.IGNORECASE,
)

_FAILURES = re.compile(
    r"Failed to initialize NVML: .{3,120}"
    r"|NVIDIA-SMI has failed because .{3,160}"
    r"|Unable to determine the device handle for [Gg][Pp][Uu].{3,160}"
    r"|GPU is lost\..{0,120}"
    r"|No devices were found"
    r"|NVML_ERROR_\w+|nvmlInit\w*\(\) failed.{0,80}"
    r"|NVRM: API mismatch.{0,160}"
    r"|CUDA[_ ]ERROR[_ ](?:SYSTEM_NOT_READY|NO_DEVICE|SYSTEM_DRIVER_MISMATCH|ECC_UNCORRECTABLE"
    r"|UNKNOWN|DEVICE_UNAVAILABLE|MPS_\w+)"
    r"|system not yet initialized.{0,60}"
    r"|(?:Error|error) 80[23]: .{3,100}"
    r"|CUDA driver version is insufficient for CUDA runtime version"
    r"|(?:cudaGetDeviceCount|cuInit)[^\n]{0,40}(?:failed|returned)[^\n]{0,80}"
    r"|uncorrectable (?:ECC|NVLink) error (?:was )?(?:encountered|detected).{0,80}"
    r"|(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7] (?:VGA compatible controller"
    r"|3D controller|Display controller|Processing accelerators)[: ].{1,200}?\(rev ff\)"
    r"|amdgpu .{0,20}driver (?:is )?not loaded"
    r"|ERROR:.{0,40}(?:rsmi|amdsmi|AMDSMI)_\w+.{0,80}"
)

_FUSER_V = re.compile(
    r"^(?:(/dev/(?:nvidia|kfd|dri)[^:\s]*):)?\s+(\S+)\s+(\d{1,8})\s+([Fcefrm.]{4,6})\s+(\S.*?)\s*$"
)
_FUSER = re.compile(r"^(/dev/(?:nvidia|kfd|dri)[^:\s]*):\s+((?:\d{1,8}[cefFrm]*\s*)+)$")
_LSOF = re.compile(
    r"^(\S+)\s+(\d{1,8})\s+(?:\d+\s+(?:\S+\s+)?)?(\S+)\s+(?:mem|DEL|\d+[rwu]?\S*|txt)\s+CHR\s+.*"
    r"(/dev/(?:nvidia|kfd|dri)\S*)"
)

_SWITCH = re.compile(
    r"^\s*(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\s.*(?:NVSwitch"
    r"|\[10de:(?:1af1|1ac0|1ac2|22a3|22a4|2902)\])",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"^\s*(NVSwitch(?:es)?|NVLink bridges?|bridges?)\s*[:=]\s*(\d{1,3}|none|no|yes)\s*$", re.I
)


_ALLOWED = {
    "Cpus_allowed_list": "Cpus_allowed_list",
    "Mems_allowed_list": "Mems_allowed_list",
    "physcpubind": "Cpus_allowed_list",
    "membind": "Mems_allowed_list",
}
"""Keys of /proc/PID/status and of `numactl -s`."""


def read_gpu_stack(text: str, name: str) -> Part | None:
    """Everything of that kind in a text; None when there is nothing."""
    reports: list[Report] = []
    unit: tuple[str, int] | None = None
    holding: str | None = None
    switches: list[tuple[int, str]] = []
    allowed: dict[str, tuple[int, str]] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw:
            continue
        line = raw[:2000]
        if m := _TITLE.match(line):
            unit = (m[1], number)
        elif unit and (m := _ACTIVE.match(line) or _SHOW.match(line)):
            reports.append(_service(unit[0], unit[1], m[1], line.strip(), name))
            unit = None
        elif m := _SHORT.match(line):
            reports.append(_service(m[1], number, m[2], line.strip(), name))
        elif m := _NO_UNIT.search(line):
            reports.append(_service(m[1], number, "not-found", line.strip(), name))
        if m := _FAILURES.search(line):
            reports.append(ToolFailure(source=name, line=number, text=m[0].strip()))
        if m := _MISMATCH.search(line):
            client, driver = (g for g in m.groups() if g)
            reports += _versions(name, number, ("fabricmanager", client), ("driver", driver))
        else:
            for component, pattern in _VERSIONS:
                if (m := pattern.search(line)) and m[1]:
                    reports += _versions(name, number, (component, m[1]))
                    break
        if m := _FUSER_V.match(line):
            holding = m[1] or holding
            if holding:
                reports.append(_holder(name, number, holding, m[3], m[5]))
        elif m := _FUSER.match(line):
            for pid in re.findall(r"\d+", m[2]):
                reports.append(_holder(name, number, m[1], pid, ""))
        elif m := _LSOF.match(line):
            reports.append(_holder(name, number, m[4], m[2], m[1]))
        if _SWITCH.match(line):
            switches.append((number, line.strip()))
        elif m := _COUNTED.match(line):
            count = {"none": 0, "no": 0, "yes": 1}.get(m[2].lower())
            reports.append(
                FabricParts(
                    source=name,
                    line=number,
                    what="bridge" if "bridge" in m[1].lower() else "NVSwitch",
                    count=int(m[2]) if count is None else count,
                    text=line.strip(),
                )
            )
        key, colon, value = line.partition(":")
        if colon and (what := _ALLOWED.get(key.strip())) and re.fullmatch(r"[\d,\s-]+", value):
            separator = "," if key.strip().islower() else ""
            allowed.setdefault(what, (number, separator.join(value.split())))
    if switches:
        reports.append(
            FabricParts(
                source=name,
                line=switches[0][0],
                what="NVSwitch",
                count=len(switches),
                text=switches[0][1],
            )
        )
    if allowed:
        reports.append(
            Allowed(
                source=name,
                line=min(n for n, _ in allowed.values()),
                cpus=cpulist_or_none(allowed.get("Cpus_allowed_list", (0, ""))[1]),
                mems=cpulist_or_none(allowed.get("Mems_allowed_list", (0, ""))[1]),
            )
        )
    return Part(kind="GPU services and versions", reports=tuple(reports)) if reports else None


def _service(unit: str, line: int, state: str, text: str, source: str) -> ServiceState:
    state = {"dead": "inactive"}.get(state, state)
    return ServiceState(
        source=source, line=line, unit=unit.removesuffix(".service"), state=state, text=text
    )


def _versions(source: str, line: int, *found: tuple[str, str]) -> list[Report]:
    return [Version(source=source, line=line, component=c, version=v) for c, v in found]


def _holder(source: str, line: int, path: str, pid: str, process: str) -> DeviceHolder:
    return DeviceHolder(
        source=source, line=line, path=path, pid=int(pid) if is_number(pid) else 0, process=process
    )
