"""A function's configuration space, said in the words of `lspci -vv`.

Only what a check needs is kept, as text: the bytes hold serial numbers and never leave. The one
reader of such text, live, recorded or pasted, is `lspci_text`.
Source: PCI Express Base Specification 6.0, chapter 7; Linux include/uapi/linux/pci_regs.h; the
words: pciutils ls-caps.c, ls-ecaps.c.
"""

from __future__ import annotations

DENIED = "Capabilities: <access denied>"
"""What lspci prints of who may read the first 64 bytes only (no root)."""
NO_EXTENDED = "Capabilities: [100] <not reachable: 256 bytes>"
"""The kernel reaches no extended capabilities of this one (no MMCONFIG)."""
HEADER, PLAIN, WHOLE = 64, 256, 4096
_MAX_CAPABILITIES = 64
_EXPRESS = 0x10
_AER, _ACS, _SRIOV, _REBAR = 0x0001, 0x000D, 0x0010, 0x0015
_SPEEDS = {1: "2.5", 2: "5", 3: "8", 4: "16", 5: "32", 6: "64"}
_PORTS = {
    0: "Endpoint", 1: "Legacy Endpoint", 4: "Root Port", 5: "Upstream Port",
    6: "Downstream Port", 7: "PCI-Express to PCI/PCI-X Bridge",
    8: "PCI/PCI-X to PCI-Express Bridge", 9: "Root Complex Integrated Endpoint",
    10: "Root Complex Event Collector",
}  # fmt: skip
_ACS_FLAGS = (
    "SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans",
)  # fmt: skip
_UNCORRECTABLE = {
    4: "DLP", 5: "SDES", 12: "TLP", 13: "FCP", 14: "CmpltTO", 15: "CmpltAbrt", 16: "UnxCmplt",
    17: "RxOF", 18: "MalfTLP", 19: "ECRC", 20: "UnsupReq", 21: "ACSViol", 22: "UncorrIntErr",
    23: "BlockedTLP", 24: "AtomicOpBlocked", 25: "TLPBlockedErr", 26: "PoisonTLPBlocked",
}  # fmt: skip
_CORRECTABLE = {
    0: "RxErr", 6: "BadTLP", 7: "BadDLLP", 8: "Rollover", 12: "Timeout", 13: "AdvNonFatalErr",
}  # fmt: skip
_DEVICE = {0: "CorrErr", 1: "NonFatalErr", 2: "FatalErr", 3: "UnsupReq"}
_TIMEOUTS = {
    0: "50us to 50ms", 1: "50us to 100us", 2: "1ms to 10ms", 5: "16ms to 55ms",
    6: "65ms to 210ms", 9: "260ms to 900ms", 10: "1s to 3.5s", 13: "4s to 13s", 14: "17s to 64s",
}  # fmt: skip


def describe(config: bytes) -> str | None:
    """Lines as lspci prints them; None when this is no configuration space (all ones: the device
    does not answer)."""
    if len(config) < HEADER or config[:4] == b"\xff\xff\xff\xff":
        return None
    if len(config) < PLAIN:
        return DENIED
    lines = []
    express = _express_at(config)
    if express is not None:
        lines += _express(config, express)
    if len(config) <= PLAIN:
        return "\n".join([*lines, NO_EXTENDED] if express is not None else lines)
    for at, kind in _extended(config):
        match kind:
            case 0x0001:
                lines.append(f"Capabilities: [{at:x}] Advanced Error Reporting")
                lines.append("UESta: " + _flags(_word(config, at + 4, 4), _UNCORRECTABLE))
                lines.append("CESta: " + _flags(_word(config, at + 0x10, 4), _CORRECTABLE))
            case 0x000D:
                named = dict(enumerate(_ACS_FLAGS))
                lines.append(f"Capabilities: [{at:x}] Access Control Services")
                lines.append("ACSCap: " + _flags(_word(config, at + 4, 2), named))
                lines.append("ACSCtl: " + _flags(_word(config, at + 6, 2), named))
            case 0x0010:
                lines.append(f"Capabilities: [{at:x}] Single Root I/O Virtualization (SR-IOV)")
                lines.append(
                    f"Initial VFs: {_word(config, at + 0xC, 2)}, "
                    f"Total VFs: {_word(config, at + 0xE, 2)}, "
                    f"Number of VFs: {_word(config, at + 0x10, 2)}"
                )
            case 0x0015:
                lines.append(f"Capabilities: [{at:x}] Physical Resizable BAR")
                lines += _rebar(config, at)
            case _:
                pass
    if express is not None:
        lines.append("Capabilities: [100] end of list")
    return "\n".join(lines)


def _word(config: bytes, at: int, size: int) -> int:
    return int.from_bytes(config[at : at + size], "little")


def _flags(value: int, named: dict[int, str]) -> str:
    return " ".join(f"{name}{'+' if value >> bit & 1 else '-'}" for bit, name in named.items())


def _express_at(config: bytes) -> int | None:
    """Where the PCI Express capability stands."""
    if not _word(config, 6, 2) & 0x10:
        return None
    at = config[0x34] & 0xFC
    for _ in range(_MAX_CAPABILITIES):
        if at < 0x40 or at + 2 > PLAIN:
            return None
        if config[at] == _EXPRESS:
            return at if at + 0x3C <= len(config) else None
        at = config[at + 1] & 0xFC
    return None


def _extended(config: bytes) -> list[tuple[int, int]]:
    """(offset, id) of each extended capability; a list that loops ends."""
    found = []
    at = PLAIN
    for _ in range(_MAX_CAPABILITIES):
        header = _word(config, at, 4)
        if at + 4 > len(config) or header in (0, 0xFFFFFFFF):
            break
        found.append((at, header & 0xFFFF))
        at = header >> 20 & 0xFFC
        if at < PLAIN or any(at == seen for seen, _ in found):
            break
    return found


def _express(config: bytes, at: int) -> list[str]:
    flags, able = _word(config, at + 2, 2), _word(config, at + 4, 4)
    control, status = _word(config, at + 8, 2), _word(config, at + 0xA, 2)
    link_able, link = _word(config, at + 0xC, 4), _word(config, at + 0x12, 2)
    port = _PORTS.get(flags >> 4 & 15, "Unknown type")
    lines = [f"Capabilities: [{at:x}] Express (v{flags & 15}) {port}"]
    # Every device since version 1.1 has a bit in DevCap (role-based error reporting), and relaxed
    # ordering on after reset: where all is zero, a tool or a hypervisor left these registers out.
    if able or control:
        lines += _control(able, control, status)
    # A device inside the root complex has no link.
    if flags >> 4 & 15 not in (9, 10):
        lines += [
            f"LnkCap: Speed {_speed(link_able & 15)}, Width x{link_able >> 4 & 63}",
            f"LnkSta: Speed {_speed(link & 15)}, Width x{link >> 4 & 63}",
        ]
    if flags & 15 >= 2 and (able or control):
        second = _word(config, at + 0x28, 2)
        lines.append(
            f"DevCtl2: Completion Timeout: {_TIMEOUTS.get(second & 15, 'Unknown')}, "
            f"TimeoutDis{'+' if second & 16 else '-'}"
        )
    return lines


def _control(able: int, control: int, status: int) -> list[str]:
    return [
        f"DevCap: MaxPayload {128 << (able & 7)} bytes",
        f"DevCtl: {_flags(control, {4: 'RlxdOrd', 8: 'ExtTag', 11: 'NoSnoop'})} "
        f"MaxPayload {128 << (control >> 5 & 7)} bytes, "
        f"MaxReadReq {128 << (control >> 12 & 7)} bytes",
        f"DevSta: {_flags(status, _DEVICE)}",
    ]


def _speed(code: int) -> str:
    return f"{_SPEEDS[code]}GT/s" if code in _SPEEDS else "unknown"


def _rebar(config: bytes, at: int) -> list[str]:
    count = _word(config, at + 8, 4) >> 5 & 7
    lines = []
    for i in range(min(count, 6)):
        able = _word(config, at + 4 + 8 * i, 4) >> 4
        control = _word(config, at + 8 + 8 * i, 4)
        able |= (control >> 16 & 0xFFFF) << 28
        sizes = [_size(20 + bit) for bit in range(44) if able >> bit & 1]
        lines.append(
            f"BAR {control & 7}: current size: {_size(20 + (control >> 8 & 63))}, "
            f"supported: {' '.join(sizes)}"
        )
    return lines


def _size(power: int) -> str:
    for name, base in (("TB", 40), ("GB", 30), ("MB", 20)):
        if power >= base:
            return f"{1 << (power - base)}{name}"
    raise AssertionError(power)
