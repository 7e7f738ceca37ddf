"""RDMA ports: `ibstat`, `ibstatus`, `ibdev2netdev`, `rdma link`, `ibv_devinfo`.

Source: rdma-core infiniband-diags; iproute2 rdma(8).
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import RdmaPort
from nodeagent.model.pasted import Report

_CA = re.compile(r"^\s*CA '([\w-]+)'\s*$")
_HCA = re.compile(r"^\s*hca_id:\s*([\w-]+)\s*$")
_STATUS = re.compile(r"^Infiniband device '([\w-]+)' port (\d+) status:")
_PORT = re.compile(r"^\s*[Pp]ort:?\s+(\d+):?\s*$")
_FIELD = re.compile(r"^\s*([A-Za-z_ ]{2,30}?)\s*:\s+(.+?)\s*$")
_NETDEV = re.compile(r"^\s*([\w-]+) port (\d+) ==> (\S+) \((Up|Down)\)")
_LINK = re.compile(
    r"^\s*(?:\d+/\d+: |link )([\w-]+)/(\d+):?\s.*?\bstate (\w+)(?:\s+physical_state (\w+))?"
)


def read_rdma(text: str, name: str) -> Part | None:
    """The ports in a text; None when there are none."""
    ports: list[_Port] = []
    device = ""
    for number, line in enumerate(text.split("\n"), 1):
        if m := _CA.match(line) or _HCA.match(line):
            device = m[1]
        elif m := _STATUS.match(line):
            device = m[1]
            ports.append(_Port(number, device, int(m[2])))
        elif m := _NETDEV.match(line):
            ports.append(_Port(number, m[1], int(m[2]), {"state": m[4], "netdev": m[3]}))
        elif m := _LINK.match(line):
            netdev = re.search(r"\bnetdev (\S+)", line)
            ports.append(
                _Port(
                    number,
                    m[1],
                    int(m[2]),
                    {
                        "state": m[3],
                        "physical state": m[4] or "",
                        "netdev": netdev[1] if netdev else "",
                    },
                )
            )
            device = ""
        elif device and (m := _PORT.match(line)):
            ports.append(_Port(number, device, int(m[1])))
        elif device and ports and ports[-1].device == device and (m := _FIELD.match(line)):
            ports[-1].values.setdefault(m[1].strip().lower().replace("_", " "), m[2])
    found: list[Report] = [r for p in ports if (r := p.report(name)) is not None]
    return Part(kind="RDMA ports", reports=tuple(found)) if found else None


class _Port:
    def __init__(
        self, line: int, device: str, port: int, values: dict[str, str] | None = None
    ) -> None:
        self.line, self.device, self.port = line, device, port
        self.values = dict(values or {})

    def report(self, source: str) -> RdmaPort | None:
        state = self.values.get("state")
        if state is None:
            return None
        state = re.sub(r"^\d+:\s*|^PORT_|\s*\(\d+\)$", "", state)
        physical = self.values.get("physical state") or self.values.get("phys state") or ""
        rate = re.match(r"\d+(?:\.\d+)?", self.values.get("rate", ""))
        return RdmaPort(
            source=source,
            line=self.line,
            device=self.device,
            port=self.port,
            state=state,
            physical=re.sub(r"^\d+:\s*|\s*\(\d+\)$", "", physical) or None,
            rate_gbps=float(rate[0]) if rate else None,
            link_layer=self.values.get("link layer"),
            netdev=self.values.get("netdev") or None,
        )
