"""Lines of GPU drivers: NVIDIA's (NVRM, NVSwitch, fabric manager) and AMD's.

Source: NVIDIA Xid catalogue and GPU deployment guide; NVIDIA open-gpu-kernel-modules (nv.c,
os-interface.c, nvlink); NVIDIA fabric manager user guide; Linux drivers/gpu/drm/amd/amdgpu.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.klog_rule import BDF, Details, Topic, benign, groups, rule

INFORMATION_XIDS = frozenset({154})
"""Xids by which the driver only tells what to do. Source: NVIDIA Xid catalogue, 154."""


def _xid(m: re.Match[str]) -> Details:
    pid = re.search(r"\bpid='?(\d+)", m["rest"])
    name = re.search(r"\bname=([^,]+)", m["rest"])
    process = name[1].strip() if name else None
    cause = re.search(r"\bprevious Xid (\d+)", m["rest"])
    found: dict[str, str | int | bool | None] = {
        "xid": int(m["xid"]),
        "pid": int(pid[1]) if pid else None,
        "process": None if process == "<unknown>" else process,
    }
    return found | ({"cause_xid": int(cause[1])} if cause else {})


def _sxid(m: re.Match[str]) -> Details:
    rest = m["rest"]
    link = re.search(r"\bLink (\d+)", rest)
    fatal = None
    if re.match(r"[\s,]*Non-?fatal", rest, re.IGNORECASE):
        fatal = False
    elif re.match(r"[\s,]*Fatal", rest):
        fatal = True
    return {
        "sxid": int(m["sxid"]),
        "nvswitch": int(m["switch"]) if m["switch"] else None,
        "fatal": fatal,
        "link": int(link[1]) if link else None,
    }


_AMDGPU = rf"amdgpu (?P<bdf>{BDF})"

NVIDIA = Topic(
    re.compile(r"NVRM|SXid|nvidia|fabric|nvswitch|\[tid ", re.IGNORECASE),
    (
        rule(
            "sxid",
            rf"nvidia-nvswitch(?P<switch>\d*): SXid \((?:PCI:)?(?P<bdf>{BDF})\): "
            r"(?P<sxid>\d+)(?P<rest>.*)",
            details=_sxid,
            bdf="bdf",
        ),
        rule(
            "xid",
            # Drivers before 2010 name only a bus of four digits.
            rf"NVRM: Xid \((?:PCI:)?(?P<bdf>{BDF}|[0-9a-fA-F]{{4}}:[0-9a-fA-F]{{2}})"
            r"(?: GPU-I:\w+)?\): (?P<xid>\d+)(?P<rest>.*)",
            details=_xid,
            bdf="bdf",
        ),
        benign(r"SXid \("),
        rule(
            "gpu_off_bus",
            r"\A(?=.*(?:fallen off|lost)).*?NVRM: (?!Xid)"
            rf"(?:(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<bdf>{BDF}))?"
            r".*(?:fallen off the bus|GPU (?:is|has been) lost\b)",
            bdf="bdf",
        ),
        rule(
            "nvrm_reset_required",
            rf"\A(?=.*(?i:reset)).*?NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<bdf>{BDF}))?.*"
            r"(?:NV_ERR_RESET_REQUIRED|[Rr]eset (?:is )?required|requires (?:a )?reset)",
            bdf="bdf",
        ),
        rule(
            "nvlink_init",
            r"NVRM: (?:GPU ?\d+:? )?knvlink\w*:? .*[Ff]ail"
            r"|NVRM: .*NVLink.*(?:training|init\w*).*[Ff]ail",
        ),
        rule(
            "gpu_init",
            rf"\A(?=.*(?:[Ff]ail|Cannot|N(?:o|one of the) NVIDIA|invalid)).*?NVRM: "
            rf"(?:GPU (?:at )?(?:PCI:)?(?P<bdf>{BDF}))?.*(?:RmInitAdapter failed"
            r"|rm_init_adapter failed|Cannot attach gpu|None of the NVIDIA (?:graphics )?"
            r"(?:adapters|devices) were initialized|NVIDIA probe routine failed|No NVIDIA "
            r"(?:graphics adapter|GPU|devices?) (?:found|probed)"
            r"|PCI I/O region assigned to your NVIDIA device is "
            r"invalid|GSP firmware.*[Ff]ail)",
            bdf="bdf",
        ),
        rule("gpu_init", rf"\bnvidia: probe of (?P<bdf>{BDF}) failed", bdf="bdf"),
        rule("gpu_init", rf"\bnvidia (?P<bdf>{BDF}): probe with driver nvidia failed", bdf="bdf"),
        rule("gpu_driver", r"NVRM: API mismatch:"),
        benign(
            r"NVRM: (?:Xid \(|GPU at PCI:\S+: GPU-|GPU Board Serial|NVLink link training completed"
            r"|loading NVIDIA|Persistence mode is|GPU .* has software scheduler)"
        ),
        rule("nvrm_other", rf"NVRM: (?:.*?PCI:(?P<bdf>{BDF}))?", fault=None, bdf="bdf"),
        benign(r"nv-fabricmanager.*\b(?:0 (?:errors|failures)|no (?:error|failure)s?)\b"),
        rule(
            "fabric_manager",
            r"\A(?>.*?nv-fabricmanager(?:\[\d+\])?: ).*?"
            r"(?:error|fail|fatal|abort|unable|timed? ?out|\blost\b"
            r"|not (?:able|supported|found)|(?:don't|do not|doesn't|does not) match|mismatch)",
            flags=re.IGNORECASE,
        ),
        rule(
            "fabric_manager",
            r"nvidia-fabricmanager(?:\.service)?: .*(?:[Ff]ailed|exited|core-dump)"
            r"|Failed to start .*[Ff]abric ?[Mm]anager",
        ),
        rule(
            "fabric_manager",
            r"\[(?:ERROR|FATAL|CRITICAL)\s*\] (?:\[tid \d+\] )?.*(?:NVSwitch|NVLink|GPU"
            r"|[Ff]abric)|detected NVSwitch (?:non-)?fatal error|aborting fabric manager"
            r"|request to query NVSwitch .*failed",
        ),
    ),
)
AMD = Topic(
    re.compile(r"amdgpu|\[drm|kfd"),
    (
        rule(
            "amdgpu_init",
            r"\A(?>.*?(?<!\w)amdgpu).*?(?:\*ERROR\* (?:hw|sw|early|late)_init of IP block"
            r"|Fatal error during GPU init|amdgpu_device_ip_init failed|Unable to locate a BIOS"
            r"|PSP (?:load|create ring|firmware loading|bootloader)[^!]*fail|gpu init failed"
            r"|init of IP block <\w+> failed)",
        ),
        rule("amdgpu_init", rf"amdgpu: probe of (?P<bdf>{BDF}) failed", bdf="bdf"),
        rule("amdgpu_init", rf"{_AMDGPU}: probe with driver amdgpu failed", bdf="bdf"),
        rule(
            "amdgpu_init", r"kfd kfd: .*(?:error getting|skipped device|Failed to (?:resume|init))"
        ),
        rule("amdgpu_hang", r"\A(?>.*?(?<!\w)amdgpu).*?\bring \S+ timeout", fault=True),
        rule(
            "amdgpu_hang",
            r"amdgpu: (?:MES failed to respond|qcm fence wait loop timeout|The cp might be in an "
            r"unrecoverable state|GPU (?:reset begin|reset end with ret = -|recovery failed"
            r"|mode\d reset))",
        ),
        rule("amdgpu_hang", r"amdgpu: GPU reset.*succe", fault=False),
        rule(
            "amdgpu_ras",
            r"\A(?>.*?(?<!\w)amdgpu).*?(?<!\d)(?P<n>\d+) (?:new )?(?P<how>un|de(?=ferred))?"
            r"(?:correctable|ferred) hardware errors "
            r"detected",
            details=lambda m: {"correctable": m["how"] is None, "count": int(m["n"])},
        ),
        rule(
            "amdgpu_ras",
            r"\A(?>.*?(?<!\w)amdgpu).*?(?:uncorrectable hardware error|RAS (?:controller "
            r"interrupt triggered|event)|poison (?:is consumed|consumption|creation))",
            details=lambda _: {"correctable": False},
        ),
        rule(
            "amdgpu_fault",
            r"amdgpu: \[\w+\] (?:no-retry |retry )?page fault",
            fault=None,
            details=groups,
        ),
    ),
)
