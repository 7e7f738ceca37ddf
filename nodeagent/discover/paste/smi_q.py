"""`nvidia-smi -q`, whole or by sections (`-d ECC`), of any driver.

Indentation is not needed: a heading is a line without a value, and the few headings that stand
below another are known by name. Source: nvidia-smi(1), the output of drivers 390 to 580.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.discover.paste import gpu_fields as v
from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import GpuProcess, GpuState, Version
from nodeagent.model.pasted import Report

_GPU = re.compile(r"^\s*GPU\s+((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*$")
_HEADING = re.compile(r"^\s*([A-Z][\w ./()-]{1,60}?)\s*:?\s*$")
_INNER = frozenset(
    {
        "volatile", "aggregate", "pcie generation", "link width", "health", "single bit",
        "double bit", "mig device", "bank remap availability histogram",
        "aggregate uncorrectable sram sources", "sparse operation mode",
        "channel repair pending", "tpc repair pending",
    }
)  # fmt: skip
_PIECE = re.compile(
    r"^[ \t]*(?:Fabric|Remapped Rows|Retired Pages|ECC (?:Mode|Errors)|GPU Link Info"
    r"|Clocks (?:Throttle|Event) Reasons|MIG Mode|BAR1 Memory Usage)[ \t]*\n(?:[ \t]*--\n)?[ \t]*"
    r"(?:State|Correctable Error|Single Bit ECC|Current|Volatile|PCIe Generation|Idle|GPU Idle"
    r"|Uncorrectable Error|Pending|Total)\b",
    re.MULTILINE,
)
"""What `nvidia-smi -q | grep -A` leaves: a heading of this tool and its first line."""
_LOG = re.compile(r"NVSMI LOG|^[ \t]*Attached GPUs[ \t]*:", re.MULTILINE)
MAX_GPUS = 1024


def read_smi_q(text: str, name: str) -> Part | None:
    """The GPUs of a log; None when the text holds none."""
    whole = _LOG.search(text) or re.search(
        r"^[ \t]*GPU [0-9a-fA-F]{8}:[0-9a-fA-F]{2}:", text, re.MULTILINE
    )
    piece = None if whole else _PIECE.search(text)
    if not whole and piece is None:
        return None
    first = text[piece.start() :].split("\n", 1)[0].strip() if piece else None
    reports: list[Report] = []
    gpus: list[GpuLog] = []
    started = False
    for line_number, line in enumerate(text.split("\n"), 1):
        if m := _GPU.match(line):
            if len(gpus) < MAX_GPUS:
                gpus.append(GpuLog(m[1], line_number))
            started = True
            continue
        if first is not None and line.strip() == first and len(gpus) < MAX_GPUS:
            # Each GPU has the heading once, in nvidia-smi's own order.
            gpus.append(GpuLog("", line_number))
            started = True
        if first is not None and line.strip() == "--":
            continue
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if not started:
            component = {"Driver Version": "driver", "CUDA Version": "cuda"}.get(key)
            if component and colon and v.word(value):
                reports.append(
                    Version(source=name, line=line_number, component=component, version=value)
                )
            continue
        if colon and value:
            gpus[-1].value(key, value, line_number)
        elif line.startswith(("=", "+")):
            started = False
        elif line.strip() and (m := _HEADING.match(line)):
            gpus[-1].heading(m[1])
    states = [
        state
        for i, g in enumerate(gpus)
        if (state := g.state(name, i, alone=len(gpus) == 1, piece=first is not None)) is not None
    ]
    if not states:
        return None
    return Part(kind="nvidia-smi -q", reports=tuple(reports + list(states)))


class GpuLog:
    """The values of one GPU: (heading, inner heading, key) -> value, in lower case."""

    def __init__(self, bdf: str, line: int) -> None:
        self.bdf, self.line = bdf, line
        self.at = ("", "", "")
        self.values: dict[tuple[str, str, str], str] = {}
        self.processes: list[dict[str, str]] = []
        self.no_processes = False
        self.errors: list[str] = []

    def heading(self, text: str) -> None:
        name = text.lower()
        section, inner, _ = self.at
        if name in ("single bit", "double bit"):
            self.at = (section, inner, name)
        elif name in _INNER:
            self.at = (section, name, "")
        else:
            self.at = (name, "", "")

    def value(self, key: str, value: str, line: int) -> None:
        low = key.lower()
        if v.broken(value):
            self.errors.append(f"line {line}: {key}: {value}")
        if low == "processes":
            self.at = ("processes", "", "")
            self.no_processes = value.lower() == "none"
        elif low == "process id":
            self.processes.append({"pid": value})
        elif self.at[0] == "processes" and self.processes and low in ("name", "used gpu memory"):
            self.processes[-1][low] = value
        else:
            section, inner, third = self.at
            self.values.setdefault((section, f"{inner} {third}".strip(), low), value)

    def get(self, section: str, key: str, inner: str = "") -> str:
        """A value; section "" means any section, and inner "" then any inner one: for keys of one
        meaning, since what follows an inner heading at the level above stands under it here."""
        if section:
            return self.values.get((section, inner, key), "")
        return next(
            (x for (_, i, k), x in self.values.items() if k == key and inner in ("", i)), ""
        )

    def any(self, *keys: str) -> str:
        """The first of several names that one value had over the years."""
        return next((x for k in keys if (x := self.get("", k)) and not v.absent(x)), "")

    def reasons(self) -> Iterator[str]:
        for (section, _, key), value in self.values.items():
            active = section in ("clocks throttle reasons", "clocks event reasons") and v.yes(value)
            if active and (name := v.reason(key)):
                yield name

    def total(self, when: str, *words: str) -> int | None:
        """Uncorrectable or correctable errors, however the driver splits them."""
        old = {"uncorrectable": "double bit", "correctable": "single bit"}[words[0]]
        outright = v.whole(self.get("ecc errors", "total", f"{when} {old}"))
        if outright is not None:
            return outright
        found = [
            v.whole(value)
            for (section, inner, key), value in self.values.items()
            if section == "ecc errors"
            and inner == when
            and re.search(rf"\b{words[0]}\b", key)
            and "threshold" not in key
        ]
        told = [n for n in found if n is not None]
        return sum(told) if told else None

    def state(
        self, source: str, index: int, *, alone: bool, piece: bool = False
    ) -> GpuState | None:
        get, any_ = self.get, self.any
        if not self.values and not self.errors:
            return None
        power = next(
            (s for s in ("gpu power readings", "power readings")
             if any(k[0] == s for k in self.values)), "power readings",
        )  # fmt: skip
        ill = tuple(
            f"{key}: {value}"
            for (section, inner, key), value in self.values.items()
            if section == "fabric"
            and inner == "health"
            and (v.yes(value) is True or value.lower() in ("degraded", "unhealthy"))
        )
        listed = tuple(
            GpuProcess(
                pid=v.whole(p["pid"]),
                name=p.get("name", ""),
                used_mib=v.whole(p.get("used gpu memory", "")),
            )
            for p in self.processes
        )
        minor = v.whole(any_("minor number"))
        gen_host = v.whole(get("", "host max", "pcie generation"))
        gen_device = v.whole(get("", "device max", "pcie generation"))
        tell = any_("gpu t.limit temp")
        return GpuState(
            source=source,
            line=self.line,
            tool="nvidia-smi -q",
            # The log lists GPUs in nvidia-smi's own order, by bus; a log of one GPU need not
            # begin with the first.
            index=None if alone and (piece or minor not in (0, None)) else index,
            name=v.word(any_("product name")),
            bdf=v.bdf(self.bdf),
            uuid=v.word(any_("gpu uuid")),
            pstate=v.pstate(any_("performance state")),
            util_percent=v.whole(get("utilization", "gpu")),
            gen=v.whole(get("", "current", "pcie generation")),
            gen_max=v.whole(get("", "max", "pcie generation")),
            gen_device_max=gen_device,
            gen_host_max=gen_host,
            width=v.whole(get("", "current", "link width")),
            width_max=v.whole(get("", "max", "link width")),
            replays=v.whole(any_("replays since reset")),
            used_mib=v.mib(get("fb memory usage", "used")),
            total_mib=v.mib(get("fb memory usage", "total")),
            bar1_total_mib=v.mib(get("bar1 memory usage", "total")),
            power_w=next(
                (
                    w
                    for k in ("power draw", "instantaneous power draw", "average power draw")
                    if (w := v.number(get(power, k))) is not None
                ),
                None,
            ),
            power_limit_w=v.number(get(power, "current power limit") or get(power, "power limit")),
            power_default_w=v.number(get(power, "default power limit")),
            temp_c=v.number(any_("gpu current temp")),
            slowdown_c=v.number(any_("gpu slowdown temp")),
            max_c=v.number(any_("gpu max operating temp")),
            margin_c=v.number(tell),
            memory_temp_c=v.number(any_("memory current temp")),
            memory_max_c=v.number(any_("memory max operating temp")),
            reasons=frozenset(self.reasons()),
            ecc_uncorrected=self.total("volatile", "uncorrectable"),
            ecc_uncorrected_total=self.total("aggregate", "uncorrectable"),
            ecc_corrected=self.total("volatile", "correctable"),
            ecc_threshold=v.yes(
                next((x for (_, _, k), x in self.values.items() if k == "sram threshold exceeded"),
                     "")
            ),
            ecc_mode=v.word(get("ecc mode", "current")),
            ecc_pending=v.word(get("ecc mode", "pending")),
            retired_pages=v.whole(get("retired pages", "double bit ecc")),
            retired_pending=v.yes(
                get("retired pages", "pending page blacklist") or get("retired pages", "pending")
            ),
            remap_uncorrectable=v.whole(get("remapped rows", "uncorrectable error")),
            remap_correctable=v.whole(get("remapped rows", "correctable error")),
            remap_pending=v.yes(get("remapped rows", "pending")),
            remap_failure=v.yes(get("remapped rows", "remapping failure occurred")),
            mig=v.word(get("mig mode", "current")),
            mig_pending=v.word(get("mig mode", "pending")),
            fabric_state=v.word(get("fabric", "state")),
            fabric_status=v.word(get("fabric", "status")),
            fabric_ill=ill,
            persistence=v.yes(any_("persistence mode")),
            compute_mode=v.word(any_("compute mode")),
            virtualization=v.word(any_("virtualization mode")),
            reset_required=v.yes(any_("reset required")),
            drain=v.yes(any_("drain and reset recommended")),
            recovery=any_("gpu recovery action") or None,
            c2c=v.word(any_("gpu c2c mode")),
            processes=listed or (() if self.no_processes else None),
            errors=tuple(self.errors),
        )  # fmt: skip
