"""Every setting of the daemon: type, default, unit, bounds and meaning, once.

The parser, `nodeagentctl config` and docs/configuration.md are made from these classes
(model/configfile.py); a setting that is not here does not exist.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from nodeagent.model.placement import Consent

DEFAULT_PATH = "/etc/nodeagent/nodeagent.toml"
"""Where every program of ours looks for its settings when it was told no other file."""


@dataclass(frozen=True, slots=True)
class About:
    """What a setting means and may be; `example` is the TOML shown when the default is empty."""

    text: str
    unit: str = ""
    ge: float | None = None
    le: float | None = None
    pattern: str | None = None
    example: str | None = None


def setting(
    text: str,
    unit: str = "",
    *,
    ge: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    example: str | None = None,
) -> About:
    """The note beside a setting's type."""
    return About(text, unit, ge, le, pattern, example)


class OnStop(enum.StrEnum):
    """What happens to pins when the daemon stops."""

    KEEP = "keep"
    RELEASE = "release"


class IsolatedProbe(enum.StrEnum):
    """What eBPF may do while any CPU is isolated (docs/adr/0005)."""

    OFF = "off"
    GATE = "gate"
    FULL = "full"


class Isolation(enum.StrEnum):
    """Who takes CPUs out of the load balancer's hands: one owner a node (docs/adr/0021)."""

    BOOT = "boot"
    PARTITION = "partition"


class Runtime(enum.StrEnum):
    """Container runtimes whose update call is known."""

    PODMAN = "podman"
    DOCKER = "docker"
    CONTAINERD = "containerd"
    RUNC = "runc"
    CRUN = "crun"


class FeedSource(enum.StrEnum):
    """Where a feed's packets come from."""

    SOCKET = "socket"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """The process itself."""

    run_dir: Annotated[
        str, setting("Folder of the sockets, locks and the freeze file.", "absolute path")
    ] = "/run/nodeagent"
    state_dir: Annotated[
        str,
        setting(
            "Folder of the undo journal, the audit record and the event spool.", "absolute path"
        ),
    ] = "/var/lib/nodeagent"
    interval_s: Annotated[
        float,
        setting("Pause between two turns; events start earlier ones.", "s", ge=0.2, le=60.0),
    ] = 2.0
    snapshot_s: Annotated[
        float,
        setting(
            "Pause between two full readings of the machine; SIGHUP starts one at once.",
            "s",
            ge=10.0,
            le=86400.0,
        ),
    ] = 600.0
    group: Annotated[
        str,
        setting("Group that may open api.sock; left alone when it does not exist.", "group name"),
    ] = "nodeagent"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinSettings:
    """Consent to change the host; without it the daemon only observes."""

    allow: Annotated[
        tuple[Consent, ...],
        setting(
            "Classes of changes that may be made at all: by `nodeagentctl place apply --yes`, or "
            "by the daemon itself where `auto` names them too.",
            example='["threads"]',
        ),
    ] = ()
    auto: Annotated[
        tuple[Consent, ...],
        setting(
            "Classes the daemon may act in by itself; each must stand in `allow` too.",
            example='["threads"]',
        ),
    ] = ()
    freeze: Annotated[
        tuple[str, ...],
        setting(
            "Windows in which nothing is changed, the guard's corrections included.",
            "DAYS HH:MM-HH:MM ZONE",
            example='["Mon-Fri 08:00-17:30 America/New_York"]',
        ),
    ] = ()
    isolation: Annotated[
        Isolation,
        setting(
            "What isolates CPUs on this node: boot arguments (isolcpus= and friends), or isolated "
            "partitions of cgroup v2. Never both: partitions are refused where isolcpus= has its "
            "domain flag."
        ),
    ] = Isolation.BOOT
    runtimes: Annotated[
        tuple[Runtime, ...],
        setting(
            "Container runtimes whose update call may be made for their containers, with class "
            "`cgroup`; a container of any other is pinned thread by thread.",
            example='["podman"]',
        ),
    ] = ()
    on_stop: Annotated[
        OnStop,
        setting("Pins when the daemon is stopped: left in force, or put back as they were."),
    ] = OnStop.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSettings:
    """What to place, and where not."""

    workloads: Annotated[
        str,
        setting(
            "Workload file; a relative path starts at this file's folder; empty: none.",
            "path",
            example='"/etc/nodeagent/workloads.toml"',
        ),
    ] = ""
    housekeeping: Annotated[
        str,
        setting(
            "CPUs kept for the system; empty: chosen by the planner.", "CPU list", example='"0-1"'
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Measuring run-queue latency with eBPF."""

    enabled: Annotated[
        bool,
        setting(
            "Attach the eBPF program. Attaching patches kernel text and interrupts every CPU once, "
            "so it is asked for.",
        ),
    ] = False
    isolated: Annotated[
        IsolatedProbe,
        setting(
            "While any CPU is isolated: attach nothing; attach but gate isolated CPUs out; or "
            "watch them too."
        ),
    ] = IsolatedProbe.OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSettings:
    """Who may use ring.sock; root and the daemon's own user always may."""

    reader_groups: Annotated[
        tuple[str, ...],
        setting(
            "Groups whose members may read rings; a group that does not exist is left out.",
            "group names",
        ),
    ] = ("nodeagent",)
    feeder_users: Annotated[
        tuple[str, ...],
        setting("Further users that may offer a feed.", "user names", example='["feeds"]'),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Where reports go."""

    address: Annotated[
        str,
        setting(
            "Controller to report to; empty: none. The daemon dials out and opens no TCP port.",
            "HOST:PORT",
            example='"controller.example:7440"',
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """How the machine is judged."""

    policy: Annotated[
        str,
        setting(
            "Policy file: switches, grades, bounds, waivers; relative to this file's folder; "
            "empty: the built-in policy.",
            "path",
            example='"/etc/nodeagent/policy.toml"',
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """One feed; the section is `[[feed]]`, once for each. Its process is started by systemd as
    `nodeagent-feeder@NAME.service`, not by the daemon, and outlives it."""

    name: Annotated[
        str,
        setting("Name of feed and ring.", pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", example='"itch"'),
    ]
    source: Annotated[FeedSource, setting("Where its packets come from.")] = FeedSource.SOCKET
    group: Annotated[
        str, setting("Multicast group (line A).", "IP address", example='"239.192.1.1"')
    ] = ""
    port: Annotated[int, setting("UDP port of line A.", ge=0, le=65535)] = 0
    group_b: Annotated[
        str, setting("Multicast group of line B; empty: one line.", "IP address")
    ] = ""
    port_b: Annotated[int, setting("UDP port of line B.", ge=0, le=65535)] = 0
    interface: Annotated[
        str, setting("Network interface the groups are joined on.", example='"eth1"')
    ] = ""
    path: Annotated[
        str, setting("Recorded file, for source `capture`.", "path", example='"day.pcap"')
    ] = ""
    first_seq: Annotated[
        int,
        setting(
            "Number a session begins with: what is missing at its head counts; 0: the first one "
            "seen.",
            ge=0,
            le=2**62,
        ),
    ] = 0
    line_wait_ms: Annotated[
        float,
        setting("Lines A and B: how long a silent line is waited for.", "ms", ge=0, le=10_000),
    ] = 20.0
    ring_capacity: Annotated[
        int, setting("Ticks of 64 bytes in the ring.", ge=32_768, le=2**32)
    ] = 1 << 20
    frames_bytes: Annotated[
        int, setting("Size of the frames ring; 0: none.", "bytes", ge=0, le=2**40)
    ] = 4 << 20
    receive_bytes: Annotated[
        int, setting("Receive buffer of each socket.", "bytes", ge=4096, le=2**30)
    ] = 64 << 20
    busy: Annotated[
        bool, setting("Spin instead of sleeping: only on a CPU that is the data thread's alone.")
    ] = False
    cpu: Annotated[str, setting("CPUs of the data thread; empty: any.", "CPU list")] = ""
    housekeeping: Annotated[
        str, setting("CPUs of the feeder's other threads; empty: any.", "CPU list")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration."""

    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    pin: PinSettings = field(default_factory=PinSettings)
    place: PlaceSettings = field(default_factory=PlaceSettings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    ring: RingSettings = field(default_factory=RingSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    check: CheckSettings = field(default_factory=CheckSettings)
    feed: tuple[FeedSettings, ...] = ()
