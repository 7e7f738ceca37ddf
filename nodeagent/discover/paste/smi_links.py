"""`nvidia-smi -L`, `nvidia-smi nvlink` and `nvidia-smi topo -p2p`.

Source: nvidia-smi(1); nvidia-smi nvlink -h; nvidia-smi topo -h.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import GpuListed, MigDevice, NvlinkState, PeerMatrix
from nodeagent.model.pasted import Report

_LISTED = re.compile(r"^\s*GPU (\d{1,4}): (.{1,120}?)(?:\s*\(UUID: ([^)\s]+)\))?\s*$")
_MIG = re.compile(r"^\s*MIG (\S+(?: \S+)?)\s+Device\s+(\d{1,3}):\s*(?:\(UUID: ([^)\s]+)\))?\s*$")
_LINK = re.compile(
    r"^\s*Link (\d{1,2})\s*[:,]\s*(?:(\d+(?:\.\d+)?) GB/s|<?inactive>?)\s*$", re.IGNORECASE
)
_ERRORS = re.compile(
    r"^\s*Link (\d{1,2}):\s*(Replay|Recovery|CRC|CRC FLIT|CRC Data|Malformed packet|Link recovery"
    r"|Effective|Symbol|Local link integrity|Buffer overrun|Tx discards|Rx|Rx General"
    r"|Rx Remote|Unintentional link down|Link down)\s*(?:Errors?)?(?: counter)?:\s*(\d{1,18})\s*$",
    re.IGNORECASE,
)
_ALL_DOWN = re.compile(r"all links (?:are )?inactive", re.IGNORECASE)
_CAPABILITY = re.compile(r"^\s*Link (\d{1,2}), .*: (?:true|false)\s*$")


def read_smi_list(text: str, name: str) -> Part | None:
    """The GPUs of `nvidia-smi -L` and the blocks of `nvidia-smi nvlink`; None without any."""
    reports: list[Report] = []
    block: _Block | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if m := _LISTED.match(line):
            if block is not None:
                reports.append(block.done(name))
            block = _Block(number, int(m[1]), m[2], m[3])
        elif block is not None and line.strip() and not block.takes(line):
            reports.append(block.done(name))
            block = None
    if block is not None:
        reports.append(block.done(name))
    kinds = {"nvidia-smi nvlink" if isinstance(r, NvlinkState) else "nvidia-smi -L"
             for r in reports}  # fmt: skip
    # "GPU 0: ..." is also how people write prose: one UUID or link makes it the tool's.
    sure = any(isinstance(r, NvlinkState) or (isinstance(r, GpuListed) and r.uuid) for r in reports)
    if not sure:
        return None
    return Part(kind=", ".join(sorted(kinds)), reports=tuple(reports))


class _Block:
    def __init__(self, line: int, index: int, name: str, uuid: str | None) -> None:
        self.line, self.index, self.name, self.uuid = line, index, name, uuid
        self.mig: list[MigDevice] = []
        self.links: dict[int, float | None] = {}
        self.errors: dict[tuple[int, str], int] = {}
        self.all_inactive = False

    def takes(self, line: str) -> bool:
        if m := _MIG.match(line):
            self.mig.append(MigDevice(profile=m[1], device=int(m[2]), uuid=m[3]))
        elif m := _LINK.match(line):
            self.links[int(m[1])] = float(m[2]) if m[2] else None
        elif m := _ERRORS.match(line):
            self.errors[int(m[1]), m[2].capitalize()] = int(m[3])
        elif _ALL_DOWN.search(line):
            self.all_inactive = True
        else:
            return _CAPABILITY.match(line) is not None or line.lstrip().startswith("Link ")
        return True

    def done(self, source: str) -> Report:
        if self.links or self.errors or self.all_inactive:
            return NvlinkState(
                source=source,
                line=self.line,
                index=self.index,
                name=self.name,
                links=self.links,
                all_inactive=self.all_inactive,
                errors=self.errors,
            )
        return GpuListed(
            source=source,
            line=self.line,
            index=self.index,
            name=self.name,
            uuid=self.uuid,
            mig=tuple(self.mig),
        )


_PEER_CELL = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U|True|False")
_ROCM_CELL = {"True": "OK", "False": "not accessible"}
_TESTED = re.compile(
    r"Device ?= ?(\d{1,3}) (CAN|CANNOT) Access Peer Device ?= ?(\d{1,3})"
    r"|Peer access from .{1,80}\(GPU(\d{1,3})\) -> .{1,80}\(GPU(\d{1,3})\)\s*:\s*(Yes|No)"
)
"""CUDA samples: p2pBandwidthLatencyTest, simpleP2P."""
_ASKED = re.compile(r"-p2p\s+(\w)")


def read_peers(text: str, name: str) -> Part | None:
    """The matrices of `nvidia-smi topo -p2p` and `rocm-smi --showtopoaccess`, and what
    CUDA's samples say of pairs; None without any."""
    reports: list[PeerMatrix] = []
    header: list[str] = []
    cells: dict[tuple[str, str], str] = {}
    capability, at = "", 0

    tested: dict[tuple[str, str], str] = {}
    tested_at = 0

    def close() -> None:
        if cells:
            reports.append(
                PeerMatrix(source=name, line=at, capability=capability, cells=dict(cells))
            )
        cells.clear()

    for number, line in enumerate(text.split("\n"), 1):
        if m := _TESTED.search(line):
            a, b = (m[1], m[3]) if m[1] else (m[4], m[5])
            can = m[2] == "CAN" if m[1] else m[6] == "Yes"
            tested_at = tested_at or number
            tested[f"GPU{a}", f"GPU{b}"] = "OK" if can else "not accessible"
        if m := _ASKED.search(line):
            close()
            capability = m[1]
        words = line.split()
        if len(words) > 1 and all(re.fullmatch(r"GPU\d{1,4}", w) for w in words):
            close()
            header, at = words, number
        elif header and len(words) == len(header) + 1 and words[0] in header:
            if all(_PEER_CELL.fullmatch(w) for w in words[1:]):
                for column, cell in zip(header, words[1:], strict=True):
                    if cell != "X" and column != words[0]:
                        cells[words[0], column] = _ROCM_CELL.get(cell, cell)
            else:
                header = []
    close()
    if tested:
        reports.append(PeerMatrix(source=name, line=tested_at, capability="r", cells=tested))
    rocm = any(cell in _ROCM_CELL.values() for r in reports for cell in r.cells.values())
    kind = "rocm-smi --showtopoaccess" if rocm and "True" in text else "nvidia-smi topo -p2p"
    if tested and len(reports) == 1:
        kind = "CUDA peer access test"
    return Part(kind=kind, reports=tuple(reports)) if reports else None
