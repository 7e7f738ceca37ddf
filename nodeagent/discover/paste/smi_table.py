"""`nvidia-smi`: the table with driver, GPUs and processes, of drivers 390 to 580.

Source: nvidia-smi(1).
"""

from __future__ import annotations

import dataclasses
import re

from nodeagent.discover.paste import gpu_fields as v
from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import GpuProcess, GpuState, Version
from nodeagent.model.pasted import Report

_HEAD = re.compile(
    r"NVIDIA-SMI[ ]+([\d.]+)[ ]+(?:Driver Version|KMD Version):[ ]*([\d.]+)"
    r"(?:[ ]+CUDA (?:UMD )?Version:[ ]*([\d.]+|N/A|ERR!))?"
)
_FIRST = re.compile(
    r"\|[ ]*(\d{1,4})[ ]+(\S.{0,60}?)[ ]+(On|Off|N/A|ERR!)[ ]*\|"
    r"[ ]*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])[ ]*(\S*)[ ]*\|[ ]*([^|]{0,40})\|?"
)
_SECOND = re.compile(
    r"\|[ ]*(\S{1,8}?)[ ]+(\d{1,3}C|N/A|ERR!)[ ]+(P\d{1,2}|N/A|ERR!)[ ]+"
    r"(\S{1,8})[ ]*/[ ]*(\S{1,8})[ ]*\|[ ]*(\S{1,16})[ ]*/[ ]*(\S{1,16})[ ]*\|"
    r"[ ]*(\d{1,3}%|N/A|ERR!)[ ]*(.{0,40}?)[ ]*\|?[ ]*$"
)
_THIRD = re.compile(r"\|[ ]*\|[ ]*\|[ ]*(\S[^|]{0,20}?)[ ]*\|?[ ]*$")
_PROCESS = re.compile(
    r"\|[ ]+(\d{1,4})[ ]+(?:(N/A|\d{1,3})[ ]+(N/A|\d{1,3})[ ]+)?(\d{1,8})[ ]+([CGM+]{1,3})[ ]+"
    r"(\S.*?)[ ]+(\d{1,9}MiB|N/A)[ ]*\|"
)
_NONE = "No running processes found"


def read_smi_table(text: str, name: str) -> Part | None:
    """The tables in a text; None when there is none."""
    reports: list[Report] = []
    states: list[GpuState] = []
    processes: dict[int, list[GpuProcess]] = {}
    none = listed = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        if "|" not in line[:4]:
            # Markdown and chat programs sometimes take the frame's first bar away.
            line = "|" + line
        if m := _HEAD.search(line):
            reports.append(Version(source=name, line=number, component="driver", version=m[2]))
            if m[3] and m[3][0].isdigit():
                reports.append(Version(source=name, line=number, component="cuda", version=m[3]))
        elif m := _FIRST.match(line):
            states.append(_first(m, number, name))
        elif states and (m := _SECOND.match(line)):
            states[-1] = _second(states[-1], m, number)
        elif states and not listed and (m := _THIRD.match(line)):
            if m[1] in ("Enabled", "Disabled", "Enabled*", "Disabled*"):
                mig, pending = m[1].rstrip("*"), m[1].endswith("*")
                other = "Disabled" if mig == "Enabled" else "Enabled"
                states[-1] = dataclasses.replace(
                    states[-1], mig=mig, mig_pending=other if pending else mig
                )
        elif "Processes:" in line:
            listed = True
        elif listed and _NONE in line:
            none = True
        elif listed and (m := _PROCESS.match(line)):
            processes.setdefault(int(m[1]), []).append(
                GpuProcess(pid=int(m[4]), name=m[6], used_mib=v.whole(m[7]))
            )
    if not states:
        return None
    last: dict[int | None, int] = {s.index: i for i, s in enumerate(states)}
    for i, state in enumerate(states):
        # Several tables (nvidia-smi -l): the processes are the last one's.
        if (none or processes) and last[state.index] == i:
            states[i] = dataclasses.replace(
                state, processes=tuple(processes.get(state.index or 0, ()))
            )
    return Part(kind="nvidia-smi", reports=tuple(reports + list(states)))


def _first(m: re.Match[str], number: int, source: str) -> GpuState:
    ecc = m[6].strip()
    mode = None if v.absent(ecc) else "Disabled" if ecc == "Off" else "Enabled"
    errors = [f"line {number}: {t.strip()}" for t in (m[3], m[5], ecc) if v.broken(t)]
    return GpuState(
        source=source,
        line=number,
        tool="nvidia-smi",
        index=int(m[1]),
        # A name too long for its column is cut with dots.
        name=m[2].strip().removesuffix("..."),
        bdf=v.bdf(m[4]),
        persistence=v.yes(m[3]),
        ecc_mode=mode,
        ecc_uncorrected=v.whole(ecc),
        errors=tuple(errors),
    )


def _second(state: GpuState, m: re.Match[str], number: int) -> GpuState:
    errors = tuple(f"line {number}: {g}" for g in m.groups() if g and v.broken(g))
    return dataclasses.replace(
        state,
        temp_c=v.number(m[2]),
        pstate=v.pstate(m[3]),
        power_w=v.number(m[4]),
        power_limit_w=v.number(m[5]),
        used_mib=v.mib(m[6]),
        total_mib=v.mib(m[7]),
        util_percent=v.whole(m[8]),
        compute_mode=v.word(m[9]),
        errors=state.errors + errors,
    )
