"""nodeagent-feeder: one feed from its source into its ring, in one process (feed/process.py)."""

from __future__ import annotations

import os

# Before numpy comes in: its BLAS would start a thread for each CPU, to multiply nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys

import click

from nodeagent.errors import NodeagentError, ParseError, UsageError, sentence
from nodeagent.feed.plan import (
    DEFAULT_SOCKET,
    FeederPlan,
    Source,
    choose,
    from_config,
    lines_of,
    refuse_unbuilt,
)
from nodeagent.feed.process import Feeder
from nodeagent.feed.replay import line_pair
from nodeagent.feed.say import Say
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.settings import FeedSettings
from nodeagent.native.feed import Format, Line, Options
from nodeagent.streams import stand_in

_SOURCES = click.Choice(["auto", "socket", "capture", "packet", "xdp", "dpdk"])
_FORMATS = click.Choice([f.name.lower() for f in Format])


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExamples:\n"
    "  nodeagent-feeder --config /etc/nodeagent/nodeagent.toml --name itch\n"
    "  nodeagent-feeder --name itch --group 239.192.0.1 --port 26400 --interface eth1\n"
    "  gunzip -c day.gz | nodeagent-feeder --name day --source capture --file -",
)
@click.option("--config", metavar="FILE", help="Configuration file; --name chooses its [[feed]].")
@click.option("--name", metavar="NAME", help="Name of feed and ring.")
@click.option("--source", type=_SOURCES, help="auto: a socket, or the capture.  [default: auto]")
@click.option("--group", metavar="ADDRESS", help="Multicast group (or own address) of line A.")
@click.option("--port", type=click.IntRange(0, 65535), help="UDP port of line A; 0: any, said.")
@click.option("--interface", metavar="NAME", help="Interface the groups are joined on.")
@click.option("--group-b", metavar="ADDRESS", help="Line B.")
@click.option("--port-b", type=click.IntRange(0, 65535), help="UDP port of line B.")
@click.option("--file", metavar="FILE", help='Capture; "-": stdin.')
@click.option("--format", "format_", type=_FORMATS, default="auto", show_default=True)
@click.option("--socket", metavar="PATH", help=f"ring.sock.  [default: {DEFAULT_SOCKET}]")
@click.option("--ring-capacity", type=click.IntRange(1), help="Ticks, of 64 bytes.  [1048576]")
@click.option("--frames-bytes", type=click.IntRange(0), help="Frames ring; 0: none.  [4194304]")
@click.option("--node", type=click.IntRange(0), help="NUMA node of the rings' memory.")
@click.option("--hugetlb", is_flag=True, help="Take the rings from the hugetlb pool.")
@click.option("--first-seq", type=click.IntRange(0),
              help="Number a session begins with: what is missing at its head counts.")  # fmt: skip
@click.option("--line-wait-ms", type=click.FloatRange(0, 10_000),
              help="Lines A and B: how long a silent line is waited for.  [20]")  # fmt: skip
@click.option("--busy", is_flag=True, help="Spin: only on a CPU that is this thread's alone.")
@click.option("--cpu", metavar="CPUS", help="CPUs of the data thread.")
@click.option("--housekeeping", metavar="CPUS", help="CPUs of all other threads.")
@click.option("--receive-bytes", type=click.IntRange(4096),
              help="Receive buffer of a socket.  [67108864]")  # fmt: skip
@click.option("--kernel-stamps/--no-kernel-stamps", default=True, show_default=True,
              help="Stamp packets when the kernel got them.")  # fmt: skip
@click.option("--verify-checksums", is_flag=True, help="Capture: IP and UDP checksums.")
@click.option("--rate", type=click.IntRange(0), default=0, help="Capture: messages a second.")
@click.option("--wait-readers", type=click.IntRange(0), default=0,
              help="Capture: begin when so many have attached.")  # fmt: skip
@click.option("--linger", is_flag=True, help="Capture: stay after its end, until SIGTERM.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text",
              help="json: one object a line: ready, offered, alone, end.")  # fmt: skip
def command(
    config: str | None,
    name: str | None,
    source: str | None,
    group: str | None,
    port: int | None,
    interface: str | None,
    group_b: str | None,
    port_b: int | None,
    file: str | None,
    format_: str,
    socket: str | None,
    ring_capacity: int | None,
    frames_bytes: int | None,
    node: int | None,
    hugetlb: bool,
    first_seq: int | None,
    line_wait_ms: float | None,
    busy: bool,
    cpu: str | None,
    housekeeping: str | None,
    receive_bytes: int | None,
    kernel_stamps: bool,
    verify_checksums: bool,
    rate: int,
    wait_readers: int,
    linger: bool,
    output: str,
) -> None:
    """One feed: receive, decode, publish into a shared-memory ring."""
    refuse_unbuilt(source or "")
    settings = FeedSettings(name=name or "")
    if config:
        settings, configured = from_config(config, name)
        name, socket = settings.name, socket or configured
        source = source or settings.source.value
        file = file or settings.path or None
    lines: tuple[Line, ...] = lines_of(settings)
    if group:
        if port is None:
            raise UsageError(f"group {group} without --port", "--port 26400")
        lines = tuple(line_pair(group, port, interface, group_b, port_b))
    if not name:
        raise UsageError("no name given", "--name NAME, or --config FILE")
    chosen = choose(Source(source or "auto"), lines, file)
    wait_ms = settings.line_wait_ms if line_wait_ms is None else line_wait_ms
    plan = FeederPlan(
        name=name,
        lines=lines,
        file=file if chosen is Source.CAPTURE else None,
        format=Format[format_.upper()],
        options=Options(
            kernel_stamps=kernel_stamps,
            busy=busy or settings.busy,
            verify_checksums=verify_checksums,
            linger=linger,
            first_seq=settings.first_seq if first_seq is None else first_seq,
            wait_ns=int(wait_ms * 1e6),
            rate=rate,
            receive_bytes=receive_bytes or settings.receive_bytes,
        ),
        socket=socket or DEFAULT_SOCKET,
        ring_capacity=ring_capacity or settings.ring_capacity,
        frames_bytes=settings.frames_bytes if frames_bytes is None else frames_bytes,
        node=node,
        hugetlb=hugetlb,
        housekeeping=_cpus("--housekeeping", housekeeping or settings.housekeeping),
        cpu=_cpus("--cpu", cpu or settings.cpu),
        wait_readers=wait_readers,
    )
    Feeder(plan, Say(output == "json")).run()


def _cpus(option: str, text: str | None) -> CpuSet | None:
    """A CPU list that this process may run on. Raises UsageError."""
    if not text:
        return None
    try:
        cpus = CpuSet.parse(text)
    except ParseError as error:
        raise UsageError(f"{option}: {error}") from error
    allowed = CpuSet.of(os.sched_getaffinity(0))
    if not cpus or not cpus <= allowed:
        raise UsageError(
            f"{option} {text}: this process may run on {allowed}", f"name CPUs of {allowed}"
        )
    return cpus


def main() -> None:
    """Entry point of `nodeagent-feeder`."""
    stand_in()
    try:
        command.main(prog_name="nodeagent-feeder", standalone_mode=False)
    except NodeagentError as error:
        click.echo(f"error: {sentence(str(error))}", err=True)
        if error.remedy:
            click.echo(f"remedy: {sentence(error.remedy)}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {sentence(error.format_message())}", err=True)
        click.echo("remedy: nodeagent-feeder --help", err=True)
        sys.exit(64)
    except click.exceptions.Abort:
        sys.exit(130)


if __name__ == "__main__":
    main()
