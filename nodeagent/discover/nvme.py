"""NVMe controllers and their namespaces. Source: drivers/nvme/host/sysfs.c."""

from __future__ import annotations

import re

from nodeagent.discover.net import bdf_in
from nodeagent.discover.root import Root
from nodeagent.model.snapshot import NvmeFacts

CLASS = "sys/class/nvme"
_CONTROLLER = re.compile(r"nvme\d{1,5}")
_NAMESPACE = re.compile(r"nvme\d{1,5}(c\d{1,5})?n\d{1,5}")


def read_nvmes(root: Root) -> tuple[NvmeFacts, ...]:
    """Controllers, by number."""
    found = []
    for name in root.names(CLASS, _CONTROLLER):
        at = root.resolve(f"{CLASS}/{name}")
        if at is None:
            continue
        found.append(
            NvmeFacts(
                name=name,
                bdf=bdf_in(at),
                model=root.text(f"{at}/model", 256),
                namespaces=root.names(at, _NAMESPACE),
            )
        )
    return tuple(sorted(found, key=lambda n: int(n.name[4:])))
