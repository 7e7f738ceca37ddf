"""What each interface's driver can do with XDP, as the kernel's own table says.

The netdev family of generic netlink answers for all interfaces of our network namespace; kernels
before Linux 6.3 have no such family. Source: Documentation/netlink/specs/netdev.yaml,
include/uapi/linux/netdev.h, Documentation/userspace-api/netlink/intro.rst.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

KEY = "derived/xdp_features"
"""Where a capture keeps the answer: `NAME 0xBITS` lines."""
FEATURES = (
    *("basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"),
)
"""Names of the bits, lowest first (enum netdev_xdp_act)."""
DEADLINE_S = 1.0
MAX_MESSAGES = 256

_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_DEV_GET, _IFINDEX, _XDP_FEATURES = 1, 1, 3
_REQUEST, _DUMP = 1, 0x300
_DONE, _ERROR = 3, 2


def read_live() -> str | None:
    """`NAME 0xBITS` a line, by name; None: this kernel (or this platform) does not tell."""
    # Here: a recorded machine is read where there is no netlink, and perhaps no socket.
    import socket

    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return None
    with suppress(OSError, struct.error):
        with socket.socket(family, socket.SOCK_RAW, 16) as link:
            link.settimeout(DEADLINE_S)
            number = _family(link)
            if number is None:
                return None
            names = dict(socket.if_nameindex())
            rows = {names[index]: bits for index, bits in _devices(link, number) if index in names}
            return "\n".join(f"{name} {rows[name]:#x}" for name in sorted(rows)) or None
    return None


def parse(text: str | None) -> dict[str, tuple[str, ...]]:
    """Feature names by interface."""
    found = {}
    for line in (text or "").splitlines():
        name, _, bits = line.partition(" ")
        with suppress(ValueError):
            value = int(bits, 16)
            found[name] = tuple(f for i, f in enumerate(FEATURES) if value >> i & 1)
    return found


def _family(link: socket.socket) -> int | None:
    name = b"netdev\0"
    attribute = struct.pack("=HH", 4 + len(name), _FAMILY_NAME) + name + b"\0"
    for body in _ask(link, _CONTROL, _REQUEST, _GET_FAMILY, attribute):
        for kind, value in _attributes(body[4:]):
            if kind == _FAMILY_ID:
                return int(struct.unpack("=H", value[:2])[0])
    return None


def _devices(link: socket.socket, family: int) -> Iterator[tuple[int, int]]:
    for body in _ask(link, family, _REQUEST | _DUMP, _DEV_GET, b""):
        found = dict(_attributes(body[4:]))
        if _IFINDEX in found and _XDP_FEATURES in found:
            yield (
                struct.unpack("=I", found[_IFINDEX][:4])[0],
                struct.unpack("=Q", found[_XDP_FEATURES][:8])[0],
            )


def _ask(
    link: socket.socket, kind: int, flags: int, command: int, attributes: bytes
) -> Iterator[bytes]:
    """Bodies of the answers, each from its generic header on."""
    body = struct.pack("=BBH", command, 1, 0) + attributes
    link.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    for _ in range(MAX_MESSAGES):
        data = link.recv(1 << 16)
        while len(data) >= 16:
            length, found = struct.unpack("=IH", data[:6])
            if found in (_DONE, _ERROR) or not 16 <= length <= len(data):
                return
            yield data[16:length]
            data = data[(length + 3) & ~3 :]
        if not flags & _DUMP:
            return


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack("=HH", data[:4])
        if not 4 <= length <= len(data):
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]
