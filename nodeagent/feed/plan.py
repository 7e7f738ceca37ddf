"""What a feeder is told to do: options and configuration file to one value, and back to words."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from nodeagent.errors import ConfigError, UnavailableError, UsageError
from nodeagent.given import read_given
from nodeagent.model.configfile import MAX_BYTES, REMEDY, parse
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.settings import FeedSettings
from nodeagent.native.feed import Format, Line, Options

RING_CAPACITY = 1 << 20
"""Ticks: 64 MiB, two seconds of 500,000 messages a second."""
FRAMES_BYTES = 4 << 20
DEFAULT_SOCKET = "/run/nodeagent/ring.sock"


class Source(enum.StrEnum):
    """Where packets come from. `auto` takes an ordinary socket, or the capture that is named."""

    AUTO = "auto"
    SOCKET = "socket"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederPlan:
    """Everything a feeder needs to know."""

    name: str
    lines: tuple[Line, ...] = ()
    file: str | None = None
    format: Format = Format.AUTO
    options: Options = field(default_factory=Options)
    socket: str = DEFAULT_SOCKET
    ring_capacity: int = RING_CAPACITY
    frames_bytes: int = FRAMES_BYTES
    """0: frames are not kept."""
    node: int | None = None
    hugetlb: bool = False
    housekeeping: CpuSet | None = None
    """CPUs of the main thread; None: where it is."""
    cpu: CpuSet | None = None
    """CPUs of the data thread; None: where it is."""
    wait_readers: int = 0
    """Capture: begin when that many readers are attached."""

    @property
    def source(self) -> Source:
        """What was chosen."""
        return Source.CAPTURE if self.file else Source.SOCKET


def choose(source: Source, lines: tuple[Line, ...], file: str | None) -> Source:
    """`auto` becomes socket or capture. Raises UsageError for what does not go together."""
    if source is Source.AUTO:
        source = Source.CAPTURE if file else Source.SOCKET
    if source is Source.SOCKET and not lines:
        raise UsageError(
            "source socket without a group and port",
            "--group 239.192.0.1 --port 26400 --interface eth1",
        )
    if source is Source.SOCKET and file:
        raise UsageError(f"source socket with the file {file}", "leave out --file or --source")
    if source is Source.CAPTURE and not file:
        raise UsageError("source capture without a file", "--file day.pcap, or - for stdin")
    return source


def lines_of(settings: FeedSettings) -> tuple[Line, ...]:
    """Line A, and B when it has a group or port of its own."""
    if not settings.group:
        return ()
    interface = settings.interface or None
    a = Line(group=settings.group, port=settings.port, interface=interface)
    if not (settings.group_b or settings.port_b):
        return (a,)
    return (
        a,
        Line(
            group=settings.group_b or settings.group,
            port=settings.port_b or settings.port,
            interface=interface,
        ),
    )


def from_config(path: str, name: str | None) -> tuple[FeedSettings, str]:
    """The section [[feed]] of that name (or the only one), and the daemon's ring.sock.

    Raises ConfigError.
    """
    try:
        data = read_given(path, MAX_BYTES)
        text = data.decode()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "name a configuration file that is there"
        ) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", "save it as UTF-8") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: over {MAX_BYTES} bytes, expected a configuration file", REMEDY)
    config = parse(text, path).config
    socket = f"{config.daemon.run_dir}/ring.sock"
    known = [feed.name for feed in config.feed]
    if name is None and len(known) == 1:
        return config.feed[0], socket
    for feed in config.feed:
        if feed.name == name:
            return feed, socket
    raise ConfigError(
        f"{path}: has no [[feed]] named {name}, it has {', '.join(known) or 'none'}"
        if name
        else f"{path}: has {len(known)} feeds, expected --name to choose one",
        f"nodeagent-feeder --config {path} --name {known[0] if known else 'NAME'}",
    )


def refuse_unbuilt(source: str) -> None:
    """Sources that a later release brings. Raises UnavailableError."""
    if source in ("dpdk", "xdp", "packet"):
        raise UnavailableError(
            f"source {source} is not in this build, expected socket or capture",
            "--source socket receives the same groups; see docs/feeds.md for what it costs",
        )
