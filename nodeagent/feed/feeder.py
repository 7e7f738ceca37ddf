"""nodeagent-feeder: one feed from its source into its ring, in one process.

The main thread keeps the conversation with the daemon, answers signals and says what happens; the
data thread is one C call (core/feeder_run.c). The process needs no daemon: it publishes from its
first packet on, offers its rings whenever a daemon is there, and outlives it.
"""

from __future__ import annotations

import os

# Before numpy comes in: its BLAS would start a thread for each CPU, to multiply nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import contextlib
import json
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import click

from nodeagent.errors import NodeagentError, ParseError, UsageError
from nodeagent.feed.offer import Offer, claim
from nodeagent.feed.plan import (
    BETTER,
    DEFAULT_SOCKET,
    FRAMES_BYTES,
    RING_CAPACITY,
    FeederPlan,
    Source,
    choose,
    from_config,
    lines_of,
    refuse_unbuilt,
)
from nodeagent.feed.replay import line_pair
from nodeagent.feed.stats import StatsPage
from nodeagent.model.cpuset import CpuSet
from nodeagent.native.feed import Counts, Feed, Format, Line, Options
from nodeagent.native.ring import Producer, RingKind, Segment

POLL_S = 0.1


def note_of(plan: FeederPlan, feed: Feed) -> str:
    """Which back-end was got and why, in words; at most 223 bytes."""
    if plan.source is Source.CAPTURE:
        return f"recorded: {plan.file}"
    infos = feed.sockets
    size = min(i.receive_bytes for i in infos) >> 20
    words = f"recvmmsg, {len(infos)} line{'s' * (len(infos) > 1)}, receive buffer {size} MiB"
    if size < plan.options.receive_bytes >> 20:
        words += " (less than asked: CAP_NET_ADMIN or net.core.rmem_max)"
    if not all(i.drops_known for i in infos):
        words += ", kernel drops not known"
    return f"{words}. {BETTER}"


class Feeder:
    """A feed with its rings and its thread. `run()` once, from the main thread."""

    def __init__(self, plan: FeederPlan, say: Say) -> None:
        self.plan = plan
        self._say = say
        self._stop = threading.Event()
        self._error: NodeagentError | None = None
        self.ended = False

    def run(self) -> None:
        """Receives until SIGTERM, Ctrl-C or the end of the capture. Raises NodeagentError."""
        plan = self.plan
        if plan.housekeeping:
            for task in pathlib.Path("/proc/self/task").iterdir():
                os.sched_setaffinity(int(task.name), plan.housekeeping.ids)
        dead = claim(plan.socket, plan.name)
        with contextlib.ExitStack() as stack:
            ticks = stack.enter_context(self._ring(RingKind.TICKS, plan.ring_capacity, dead))
            rings = {RingKind.TICKS: ticks}
            if plan.frames_bytes:
                rings[RingKind.FRAMES] = stack.enter_context(
                    self._ring(RingKind.FRAMES, plan.frames_bytes, dead)
                )
            dead.clear()
            stats = StatsPage.create(plan.name, plan.source.value)
            stack.callback(stats.close)
            # Last: from here on packets queue up in the socket.
            feed = stack.enter_context(self._feed(rings, stats))
            stats.describe(plan.source.value, note_of(plan, feed))
            stats.pointer.kernel_known = all(i.drops_known for i in feed.sockets)
            offer = Offer(plan.socket, plan.name, rings, stats.fd)
            stack.callback(offer.close)
            with self._signals(feed):
                self._serve(feed, offer, rings)
            self._say.ended(plan, feed.counts(), feed.dropped_packets(), ticks.position)
        if self._error is not None:
            raise self._error

    def _ring(self, kind: RingKind, capacity: int, dead: dict[RingKind, Segment]) -> Producer:
        return Producer(
            self.plan.name,
            kind=kind,
            capacity=capacity,
            node=self.plan.node,
            hugetlb=self.plan.hugetlb,
            dead=dead.get(kind),
        )

    def _feed(self, rings: dict[RingKind, Producer], stats: StatsPage) -> Feed:
        return Feed(
            lines=self.plan.lines,
            file=self.plan.file,
            format=self.plan.format,
            options=self.plan.options,
            ticks=rings[RingKind.TICKS],
            frames=rings.get(RingKind.FRAMES),
            stats=stats.pointer,
        )

    @contextlib.contextmanager
    def _signals(self, feed: Feed) -> Iterator[None]:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stop.set()
            feed.stop()

        before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _serve(self, feed: Feed, offer: Offer, rings: dict[RingKind, Producer]) -> None:
        while offer.readers < self.plan.wait_readers and not self._stop.is_set():
            for producer in rings.values():
                producer.beat(time.monotonic_ns())
            offer.poll(POLL_S / 2)
        thread = threading.Thread(target=self._data, args=(feed,), name=f"feed {self.plan.name}")
        thread.start()
        try:
            self._place(thread)
            self._say.ready(self.plan, feed)
            self._attend(thread, feed, offer)
        finally:
            # Whatever happened here: nothing is taken apart under the data thread's hands.
            feed.stop()
            thread.join()
        offer.poll(0)

    def _attend(self, thread: threading.Thread, feed: Feed, offer: Offer) -> None:
        offered: bool | None = None
        while thread.is_alive():
            offer.poll(POLL_S)
            if offer.accepted != offered:
                offered = offer.accepted
                self._say.offered(self.plan, offered)
            if offer.refusal is not None:
                # Another feeder has this feed, or we may not feed: nobody would ever read us.
                self._error = offer.refusal
                return

    def _data(self, feed: Feed) -> None:
        try:
            self.ended = feed.run()
        except NodeagentError as error:
            self._error = error

    def _place(self, thread: threading.Thread) -> None:
        tid = thread.native_id
        if tid is None or not thread.is_alive():
            return
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/self/task/{tid}/comm").write_text(f"feed-{self.plan.name}"[:15])
        if self.plan.cpu:
            os.sched_setaffinity(tid, self.plan.cpu.ids)


def losses(counts: Counts, kernel_known: bool) -> dict[str, int | None]:
    """Messages lost by stage, each once (contract: run/v1, feed.lost)."""
    return {
        "nic": None,
        "kernel": counts.gap_kernel if kernel_known else None,
        "backend": 0,
        "decoder": counts.rejected,
        "wire_gap": counts.gap_wire,
    }


class Say:
    """What the feeder says: JSON lines on stdout, or sentences on stderr."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def _out(self, event: str, sentence: str, **fields: object) -> None:
        if self._json:
            line = {"schema": "nodeagent.feed/v1", "event": event, **fields}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        else:
            click.echo(sentence, err=True)

    def ready(self, plan: FeederPlan, feed: Feed) -> None:
        """The data thread runs: what is sent from now on is received."""
        note = note_of(plan, feed)
        lines = [{"group": x.group, "port": x.port, "interface": x.interface} for x in feed.lines]
        self._out(
            "ready",
            f"feed {plan.name}: receiving {', '.join(map(str, feed.lines)) or plan.file}; {note}",
            feed=plan.name,
            source=plan.source.value,
            lines=lines,
            note=note,
            pid=os.getpid(),
        )
        if "NOTIFY_SOCKET" in os.environ:
            from cysystemd.daemon import sd_notify

            sd_notify(f"READY=1\nSTATUS=receiving, {note}")

    def offered(self, plan: FeederPlan, accepted: bool) -> None:
        """The daemon took the rings, or is away."""
        where = plan.socket
        self._out(
            "offered" if accepted else "alone",
            f"feed {plan.name}: "
            + (f"offered on {where}" if accepted else f"nobody serves {where} yet; publishing on"),
            feed=plan.name,
            socket=where,
        )

    def ended(self, plan: FeederPlan, counts: Counts, dropped: int | None, position: int) -> None:
        """The last figures."""
        lost = losses(counts, dropped is not None or plan.source is Source.CAPTURE)
        total = sum(n or 0 for n in lost.values())
        bad = ", ".join(f"{n:,} {kind}" for kind, n in counts.bad)
        self._out(
            "end",
            f"feed {plan.name}: {counts.published:,} messages of {counts.packets:,} packets, "
            f"{total:,} lost, {counts.duplicates:,} duplicates" + (f"; bad: {bad}" if bad else ""),
            feed=plan.name,
            source=plan.source.value,
            messages=counts.published,
            packets=counts.packets,
            bytes=counts.bytes,
            duplicates=counts.duplicates,
            late=counts.late,
            rejected=counts.rejected,
            filtered=counts.filtered,
            span=counts.span,
            lost=lost,
            gaps=counts.gaps,
            kernel_dropped_packets=dropped,
            first_seq=counts.first_seq,
            next_seq=counts.next_seq,
            sessions=counts.sessions,
            session_ends=counts.session_ends,
            bad=dict(counts.bad),
            ring_position=position,
        )


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
@click.option("--ring-capacity", type=click.IntRange(1), default=RING_CAPACITY, show_default=True,
              help="Ticks, of 64 bytes.")  # fmt: skip
@click.option("--frames-bytes", type=click.IntRange(0), default=FRAMES_BYTES, show_default=True,
              help="Size of the frames ring; 0: none.")  # fmt: skip
@click.option("--node", type=click.IntRange(0), help="NUMA node of the rings' memory.")
@click.option("--hugetlb", is_flag=True, help="Take the rings from the hugetlb pool.")
@click.option("--first-seq", type=click.IntRange(0), default=0,
              help="Number a session begins with: what is missing at its head counts.")  # fmt: skip
@click.option(
    "--line-wait-ms",
    type=click.FloatRange(0, 10_000),
    default=20.0,
    show_default=True,
    help="Lines A and B: how long a silent line is waited for.",
)
@click.option("--busy", is_flag=True, help="Spin: only on a CPU that is this thread's alone.")
@click.option("--cpu", metavar="CPUS", help="CPUs of the data thread.")
@click.option("--housekeeping", metavar="CPUS", help="CPUs of all other threads.")
@click.option("--receive-bytes", type=click.IntRange(4096), default=64 << 20, show_default=True,
              help="Receive buffer of a socket.")  # fmt: skip
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
    ring_capacity: int,
    frames_bytes: int,
    node: int | None,
    hugetlb: bool,
    first_seq: int,
    line_wait_ms: float,
    busy: bool,
    cpu: str | None,
    housekeeping: str | None,
    receive_bytes: int,
    kernel_stamps: bool,
    verify_checksums: bool,
    rate: int,
    wait_readers: int,
    linger: bool,
    output: str,
) -> None:
    """One feed: receive, decode, publish into a shared-memory ring."""
    refuse_unbuilt(source or "")
    lines: tuple[Line, ...] = ()
    if config:
        settings, configured = from_config(config, name)
        name, socket = settings.name, socket or configured
        lines = lines_of(settings)
        source = source or settings.source.value
        file = file or settings.path or None
    if group:
        if port is None:
            raise UsageError(f"group {group} without --port", "--port 26400")
        lines = tuple(line_pair(group, port, interface, group_b, port_b))
    if not name:
        raise UsageError("no name given", "--name NAME, or --config FILE")
    chosen = choose(Source(source or "auto"), lines, file)
    plan = FeederPlan(
        name=name,
        lines=lines,
        file=file if chosen is Source.CAPTURE else None,
        format=Format[format_.upper()],
        options=Options(
            kernel_stamps=kernel_stamps,
            busy=busy,
            verify_checksums=verify_checksums,
            linger=linger,
            first_seq=first_seq,
            wait_ns=int(line_wait_ms * 1e6),
            rate=rate,
            receive_bytes=receive_bytes,
        ),
        socket=socket or DEFAULT_SOCKET,
        ring_capacity=ring_capacity,
        frames_bytes=frames_bytes,
        node=node,
        hugetlb=hugetlb,
        housekeeping=_cpus("--housekeeping", housekeeping),
        cpu=_cpus("--cpu", cpu),
        wait_readers=wait_readers,
    )
    Feeder(plan, Say(output == "json")).run()


def _cpus(option: str, text: str | None) -> CpuSet | None:
    """A CPU list that this process may run on. Raises UsageError."""
    if text is None:
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
    try:
        command.main(prog_name="nodeagent-feeder", standalone_mode=False)
    except NodeagentError as error:
        click.echo(f"error: {error}", err=True)
        if error.remedy:
            click.echo(f"remedy: {error.remedy}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        click.echo("remedy: nodeagent-feeder --help", err=True)
        sys.exit(64)
    except click.exceptions.Abort:
        sys.exit(130)


if __name__ == "__main__":
    main()
