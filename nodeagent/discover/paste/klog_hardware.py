"""Lines of hardware that reports errors: PCIe, machine checks, memory controllers, firmware, IOMMU.

Source: Linux drivers/pci/pcie/{aer,dpc,err}.c, arch/x86/kernel/cpu/mce, drivers/edac,
drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c, mm/memory-failure.c, drivers/iommu.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.klog_rule import BDF, Details, Topic, benign, groups, rule


def _correctable(m: re.Match[str]) -> Details:
    return {"correctable": m["how"].lower().startswith("correct")}


def _bank(m: re.Match[str]) -> Details:
    """Bit 61 of a bank's status says that it was not corrected. Source: Intel SDM 3B,
    IA32_MCi_STATUS."""
    found: dict[str, str | int | bool | None] = {"cpu": int(m["cpu"])}
    if m["status"]:
        found["correctable"] = not int(m["status"], 16) >> 61 & 1
    return found


def _severity(m: re.Match[str]) -> Details:
    return {"correctable": m["how"] == "corrected"} if m["how"] in ("corrected", "fatal") else {}


def _amd(m: re.Match[str]) -> Details:
    return {"cpu": int(m["cpu"])} | (
        {"correctable": m["how"] == "CE"} if m["how"] in ("CE", "UE") else {}
    )


PCIE = Topic(
    re.compile(
        r"AER|aer_|PCIe|error status/mask|TLP Header|DPC|EDR: |can't find device of ID|pciehp"
        r"|device has no |broadcast |link has been reset|[Dd]evice recovery"
        r"|[0-7]:\s+(?:AER:\s+)?\[ ?\d"
    ),
    (
        benign(
            r"AER: enabled|DPC: (?:enabled|error containment capabilities)"
            r"|service driver (?:aer|dpc)"
            r"|pciehp: .*Link Down/Up ignored|_OSC:|aerdrv|AER: (?:Corrected|Multiple).*\bcleared\b"
        ),
        rule(
            "aer",
            r"AER: (?:Multiple )?(?P<how>Correct(?:able|ed)|Uncorrect(?:able|ed))\b.*\b(?:received|"
            r"message)",
            details=_correctable,
        ),
        rule(
            "aer",
            r"PCIe Bus Error: severity=(?P<how>Correct\w+|Uncorrect\w+)",
            details=_correctable,
        ),
        rule("aer", rf"{BDF}:\s+(?:AER:\s+)?device \[\w{{4}}:\w{{4}}\] error status/mask="),
        rule("aer", rf"{BDF}:\s+(?:AER:\s+)?\[ ?\d{{1,2}}\] \w+"),
        rule(
            "aer",
            rf"{BDF}: (?:AER:\s+)?(?:device has no (?:AER-aware driver|error handler|driver\b)"
            r"|can't recover|[Dd]evice recovery failed|subordinate device reset failed"
            r"|Unable to recover)",
            details=lambda _: {"recovered": False},
        ),
        rule(
            "aer",
            rf"{BDF}: (?:AER:\s+)?[Dd]evice recovery successful",
            details=lambda _: {"recovered": True},
        ),
        rule("aer", rf"{BDF}:\s+(?:AER:\s+)?(?:TLP Header:|Error of this Agent)"),
        rule(
            "aer",
            rf"{BDF}: (?:AER:\s+)?(?:Error of this Agent|TLP Header|subordinate device"
            r"|[\w ]*Port link has been reset|can't find device of ID|found no error details"
            r"|broadcast \w+ message|no details|error_detected)",
        ),
        rule("aer", rf"{BDF}:\s+(?:AER:\s+)?aer_(?:status|layer|uncor_severity|mask|agent)\b"),
        rule(
            "aer",
            rf"{BDF}: (?:DPC: (?:containment event|unmasked uncorrectable|software trigger"
            r"|ERR_\w+ (?:detected|received)|RP PIO|rp_pio|TLP (?:Header|Prefix)|ImpSpec"
            r"|Data Link Layer|.*(?:failed|timed out))|EDR: (?!notify))",
            details=lambda _: {"correctable": False},
        ),
        rule(
            "pcie_link",
            rf"{BDF}: pciehp: Slot\(\S+\): (?:Link Down|Card not present|Power fault)",
        ),
    ),
)

MEMORY = Topic(
    re.compile(
        r"Hardware Error|Machine Check|MCE MEMORY|EDAC|emory failure|oft.offlin"
        r"|MCE |mce: |rasdaemon|BERT|temperature",
        re.IGNORECASE,
    ),
    (
        rule(
            "ghes",
            r"\{\d+\}\[Hardware Error\]:\s*(?:event severity: (?P<how>\w+))?",
            details=_severity,
        ),
        rule(
            "ghes",
            r"(?<!mce: )\[Hardware Error\]:\s*(?:event severity: (?P<how>\w+)|BERT|Hardware error "
            r"from APEI|section_?\s?type:|fru_text:|Error \d+, type:|It has been corrected by h/w)",
            details=lambda m: _severity(m) if m["how"] else {},
        ),
        rule("ghes", r"BERT: Error records from previous boot"),
        rule(
            "mce",
            r"\[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check.*?Bank \d+: "
            r"(?P<status>[0-9a-f]{16})?",
            details=_bank,
        ),
        rule(
            "mce",
            r"\[Hardware Error\]: CPU:(?P<cpu>\d+) \([^)]*\) MC\d+_STATUS\["
            r"(?=[^\]]*\b(?P<how>CE|UE|Deferred)\b)?",
            details=_amd,
        ),
        rule(
            "mce",
            r"\[Hardware Error\]: (?:Error Status: )?(?P<how>Corrected|Uncorrected|Deferred"
            r"|System Fatal)\b.*error",
            details=lambda m: {"correctable": m["how"] == "Corrected"},
        ),
        rule(
            "mce",
            r"\[Hardware Error\]: (?:CPU (?P<cpu>\d+): )?",
            details=groups,
        ),
        rule(
            "mce",
            r"mce: (?:Uncorrected hardware memory error|Memory error not recovered"
            r"|CMCI storm detected|.*Fatal)",
        ),
        rule("mce", r"mce: CMCI storm subsided", fault=False),
        rule(
            "cpu_thermal",
            r"CPU(?P<cpu>\d+): (?:Core|Package) temperature(?:/speed)? (?:is )?above",
            details=groups,
        ),
        rule(
            "cpu_thermal",
            r"CPU(?P<cpu>\d+): (?:Core|Package) temperature/speed normal",
            fault=False,
            details=groups,
        ),
        rule("cpu_thermal", r"thermal \S+: (?:[\w-]+: )?(?:critical|hot) temperature reached"),
        rule("cpu_thermal", r"Critical temperature reached"),
        rule(
            "edac",
            r"EDAC (?:(?:\w+ )?(?:MC|DEVICE)\d+: (?:\d+ |\S+: )?|\w+: (?=[CU]E ERROR_ADDRESS))"
            r"(?P<how>CE|UE)\b",
            details=lambda m: {"correctable": m["how"] == "CE"},
        ),
        rule(
            "edac",
            r"EDAC \w+ MC\d+: (?:HANDLING MCE|CPU \d+: Machine Check|TSC |ADDR |MISC |STATUS |"
            r"PROCESSOR |TIME )",
        ),
        rule("edac", r"EDAC PCI\d*: .*(?:[Pp]arity|[Ss]ystem) [Ee]rror"),
        rule(
            "edac",
            r"EDAC .*\b(?P<how>Corrected|Uncorrected) error(?:s|\(s\))?",
            details=_correctable,
        ),
        rule(
            "edac",
            r"rasdaemon.*mc_event: .*\b(?P<how>Corrected|Uncorrected|Fatal) error",
            details=_correctable,
        ),
        rule("edac", r"\b\w+bridge: HANDLING MCE MEMORY ERROR"),
        rule("mce", r"\bCPU (?P<cpu>\d+): Machine Check Exception: ", details=groups),
        rule("mce", r"rasdaemon.*mce_record:"),
        rule("aer", r"rasdaemon.*aer_event:"),
        rule(
            "memory_failure",
            r"Memory failure: 0x[0-9a-f]+: (?:Killing|Sending SIGBUS to) (?P<process>.+?):"
            r"(?P<pid>\d+) ",
            details=groups,
        ),
        rule("memory_failure", r"Memory failure: "),
        rule("memory_failure", r"\bMCE 0x[0-9a-f]+: "),
        rule("memory_failure", r"[Ss]oft[ _-]?offlin(?:e|ing)\b.*0x[0-9a-f]+"),
    ),
)

IOMMU = Topic(
    re.compile(r"DMAR|AMD-Vi|IO_PAGE_FAULT|arm-smmu"),
    (
        rule(
            "iommu_fault",
            r"DMAR: \[[^\]]*\] Request device \["
            r"(?:0x)?(?P<bdf>[0-9a-f]{2}:(?:0x)?[0-9a-f]{2}\.[0-7])\]",
            bdf="bdf",
        ),
        rule("iommu_fault", r"DMAR: (?:DRHD: handling fault status|VT-d detected|.*fault reason)"),
        rule(
            "iommu_fault",
            rf"AMD-Vi: Event logged \[\w+ device=(?P<bdf>{BDF})",
            bdf="bdf",
        ),
        rule(
            "iommu_fault", r"AMD-Vi: (?:Event logged \[|Completion-Wait loop timed out|.*TIMEOUT)"
        ),
        rule("iommu_fault", r"arm-smmu\S* \S+: (?:event 0x|Unhandled context fault)"),
    ),
)
