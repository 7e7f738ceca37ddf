"""`nvidia-smi -q -x`: the log of `nvidia-smi -q` as XML, read into the same report.

The elements hold what the lines of the log hold, under other names. Source: the DTD that
`nvidia-smi --dtd` prints, drivers 470 to 580.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nodeagent.discover.paste import gpu_fields as v
from nodeagent.discover.paste.part import Part
from nodeagent.discover.paste.smi_q import MAX_GPUS, GpuLog
from nodeagent.model.gpu_report import Version
from nodeagent.model.pasted import Report

_LABELS = {
    "uuid": "gpu uuid",
    "c2c_mode": "gpu c2c mode",
    "replay_counter": "replays since reset",
    "gpu_util": "gpu",
    "current_mig": "current",
    "pending_mig": "pending",
    "current_ecc": "current",
    "pending_ecc": "pending",
    "instant_power_draw": "instantaneous power draw",
    "gpu_temp": "gpu current temp",
    "gpu_temp_tlimit": "gpu t.limit temp",
    "gpu_temp_slow_threshold": "gpu slowdown temp",
    "gpu_temp_max_gpu_threshold": "gpu max operating temp",
    "memory_temp": "memory current temp",
    "gpu_temp_max_mem_threshold": "memory max operating temp",
    "current_link_gen": "current",
    "max_link_gen": "max",
    "max_device_link_gen": "device max",
    "max_host_link_gen": "host max",
    "current_link_width": "current",
    "max_link_width": "max",
    "pending_retirement": "pending",
    "pending_blacklist": "pending page blacklist",
    "remapped_row_unc": "uncorrectable error",
    "remapped_row_corr": "correctable error",
    "remapped_row_pending": "pending",
    "remapped_row_failure": "remapping failure occurred",
}
"""Elements whose name is not the line's name with underscores."""

_HEADINGS = {"pcie_gen": "pcie generation", "link_widths": "link width"}
_PASSED = ("pci_gpu_link_info", "gpu_reset_status")
"""Elements that the lines of the log have no heading for, or none that is asked for."""
_REASON = re.compile(r"clocks_(?:event|throttle)_reason_")
MAX_DEPTH = 16


def read_smi_xml(text: str, name: str) -> Part | None:
    """The GPUs of a log in XML; None when the text holds none."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        return None
    # An entity is nothing that nvidia-smi writes, and expanding them is how XML eats memory.
    if "<!ENTITY" in text:
        return Part(kind="nvidia-smi -q", refused="the XML of nvidia-smi declares entities")
    body, end, _ = text[start:].partition("</nvidia_smi_log>")
    try:
        log = ElementTree.fromstring(body + end)
    except ElementTree.ParseError as error:
        return Part(
            kind="nvidia-smi -q",
            refused=f"the XML of nvidia-smi is cut or not well-formed: {error}",
        )
    reports: list[Report] = []
    for tag, component in (("driver_version", "driver"), ("cuda_version", "cuda")):
        said = v.word(log.findtext(tag) or "")
        if said:
            line = text.count("\n", 0, max(0, text.find(f"<{tag}>"))) + 1
            reports.append(Version(source=name, line=line, component=component, version=said))
    lines = [
        text.count("\n", 0, m.start()) + 1
        for _, m in zip(range(MAX_GPUS), re.finditer(r"<gpu\b", text), strict=False)
    ]
    gpus = log.findall("gpu")[:MAX_GPUS]
    for index, gpu in enumerate(gpus):
        found = GpuLog(gpu.get("id") or "", lines[index])
        _walk(found, gpu, ("", "", ""), lines[index], 0)
        _processes(found, gpu.find("processes"))
        state = found.state(name, index, alone=len(gpus) == 1, piece=False)
        if state is not None:
            reports.append(state)
    return Part(kind="nvidia-smi -q", reports=tuple(reports)) if gpus else None


def _walk(
    log: GpuLog, element: ElementTree.Element, at: tuple[str, str, str], line: int, depth: int
) -> None:
    """Every value with its headings, as the lines of the log would give them."""
    for child in element:
        tag = child.tag
        if tag == "processes" or depth > MAX_DEPTH:
            continue
        if len(child):
            heading = _HEADINGS.get(tag, tag.replace("_", " "))
            if tag == "double_bit_retirement":
                log.at = at
                log.value("Double Bit ECC", child.findtext("retired_count") or "", line)
            elif tag in _PASSED:
                _walk(log, child, at, line, depth + 1)
            elif not at[0]:
                _walk(log, child, (heading, "", ""), line, depth + 1)
            elif not at[1]:
                _walk(log, child, (at[0], heading, ""), line, depth + 1)
            else:
                _walk(log, child, (at[0], at[1], heading), line, depth + 1)
            continue
        value = (child.text or "").strip()
        if value:
            log.at = at if at[0] or tag not in _HEADINGS else (_HEADINGS[tag], "", "")
            log.value(_LABELS.get(tag) or _REASON.sub("", tag).replace("_", " "), value, line)


def _processes(log: GpuLog, processes: ElementTree.Element | None) -> None:
    """The programs on the GPU: an empty element says that there are none."""
    if processes is None or (not len(processes) and (processes.text or "").strip()):
        return
    listed = processes.findall("process_info")
    log.no_processes = not listed
    for process in listed:
        log.processes.append(
            {
                "pid": process.findtext("pid") or "",
                "name": (process.findtext("process_name") or "").strip(),
                "used gpu memory": process.findtext("used_memory") or "",
            }
        )
