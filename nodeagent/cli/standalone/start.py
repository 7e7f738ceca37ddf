"""The main job's starting: controller, actor, daemon, feeder, workloads, replayer, in that order.

Each function starts one of them and waits until it is ready. Raises NodeagentError.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import sys
import time

from nodeagent.cli.standalone.children import Child
from nodeagent.cli.standalone.watch import Watch, number
from nodeagent.cli.standalone.workplace import RUN_DIR
from nodeagent.errors import NodeagentError
from nodeagent.model.configfile import parse, shown
from nodeagent.model.settings import Config

FEED = "itch"
GROUP = "239.192.77.1"
SETTLE_S = 10.0
"""How long the daemon may take to place and pin the workloads."""
CAPTURE_MESSAGES = 50_000
MARK = "nodeagent-example-"
"""What the example workloads match; each run puts a mark of its own in its place."""


def _tool(name: str) -> str:
    return str(pathlib.Path(sys.executable).with_name(name))


def controller(watch: Watch) -> str:
    """Starts it on the configured port, or on a free one where that is taken."""
    wanted = parse(watch.options.config.read_text(), str(watch.options.config))
    address = wanted.config.controller.address
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            watch.say(f"{address}: {error.strerror}; the controller takes a free port instead")
            port = "0"
    port_file = watch.work.run_dir / "controller.port"
    child = watch.children.start(
        "controller",
        [
            _tool("nodeagent-controller"),
            *("--listen", f"{host}:{port}"),
            *("--state-dir", str(watch.work.state_dir / "controller")),
            *("--port-file", str(port_file)),
        ],
    )
    watch.wait_for("starting the controller", port_file.exists, child)
    return f"{host}:{port_file.read_text().strip().rpartition(':')[2]}"


def configure(watch: Watch, address: str) -> pathlib.Path:
    """Writes the daemon's configuration of this run from the example's."""
    loaded = parse(watch.options.config.read_text(), str(watch.options.config))
    config = loaded.config
    root = os.geteuid() == 0
    host = watch.options.host
    state_dir = watch.work.state_dir
    if host is not None:
        watch.say(
            f"recorded machine {host}: verdict and plan are that machine's; here nothing is "
            "pinned and no eBPF program is loaded"
        )
        # Another node than this one: events and identity of its own.
        state_dir = state_dir / "recorded"
        state_dir.mkdir(mode=0o700, exist_ok=True)
    elif not root:
        watch.say(
            "not root: this run observes; threads are not pinned, eBPF programs are not "
            "loaded (run it with sudo for both)"
        )
    config = dataclasses.replace(
        config,
        daemon=dataclasses.replace(
            config.daemon,
            run_dir=str(watch.work.run_dir),
            state_dir=str(state_dir),
        ),
        pin=config.pin
        if root and host is None
        else dataclasses.replace(config.pin, allow=(), auto=()),
        place=dataclasses.replace(config.place, workloads=str(_own_workloads(watch))),
        controller=dataclasses.replace(config.controller, address=address),
    )
    path = watch.work.run_dir / "nodeagent.toml"
    path.write_text(as_toml(config))
    return path


def _own_workloads(watch: Watch) -> pathlib.Path:
    """The example's workload file, matching the processes of this run and of no other."""
    text = (watch.options.examples / "workloads.toml").read_text()
    path = watch.work.run_dir / "workloads.toml"
    path.write_text(text.replace(MARK, _mark()))
    return path


def _mark() -> str:
    return f"nodeagent-run-{os.getpid()}-"


def capture(watch: Watch) -> pathlib.Path:
    """A capture of made-up messages, for the replayer to send."""
    path = watch.work.run_dir / "itch.pcap"
    child = watch.children.start(
        "synth",
        [
            _tool("nodeagentctl"),
            *("feed", "synth", str(path)),
            *("--messages", str(CAPTURE_MESSAGES), "--symbols", "32", "--seed", "1"),
        ],
    )
    watch.step = "making a capture"
    while child.alive and not watch.stopping:
        watch.show(watch.view())
        watch.pause(0.05)
    if watch.stopping:
        raise watch.stopped_early()
    if watch.children.stop(child) != 0:
        raise NodeagentError(
            f"the capture could not be made: {child.complaint()}",
            f"make room there, or set {RUN_DIR} to a folder with some",
        )
    return path


def actor(watch: Watch, config: pathlib.Path) -> Child | None:
    """The actor, for root only: others have nothing it could do for them; nor has --host."""
    if os.geteuid() != 0 or watch.options.host is not None:
        return None
    child = watch.children.start(
        "actor",
        [
            _tool("nodeagent-actor"),
            *("--config", str(config)),
            *("--run-dir", str(watch.work.run_dir), "--state-dir", str(watch.work.state_dir)),
            *("--allow", "threads"),
        ],
    )
    watch.wait_for("starting the actor", (watch.work.run_dir / "actor.sock").exists, child)
    for line in child.log.read_text(errors="replace").splitlines():
        # What it found in the journal of a run that was killed.
        said = line.removeprefix("nodeagent-actor: ")
        if not said.startswith(("ready on ", "configured by ")):
            watch.say(said)
    return child


def daemon(watch: Watch, config: pathlib.Path) -> Child:
    """The daemon, once it has read and judged the machine."""
    argv = [_tool("nodeagentd"), "--config", str(config)]
    if watch.options.host is not None:
        argv += ["--host", watch.options.host]
    child = watch.children.start("daemon", argv)
    watch.wait_for("reading the machine", lambda: _answers(watch), child)
    return child


def _answers(watch: Watch) -> bool:
    if not (watch.work.run_dir / "api.sock").exists():
        return False
    try:
        watch.refresh(force=True)
    except NodeagentError:
        return False
    return watch.status is not None and bool(watch.status.findings)


def feeder(watch: Watch) -> int:
    """The feeder, listening; returns its port."""
    child = watch.children.start(
        "feeder",
        [
            _tool("nodeagent-feeder"),
            *("--name", FEED, "--source", "socket", "--first-seq", "1"),
            *("--group", GROUP, "--port", "0", "--interface", "lo"),
            *("--socket", str(watch.work.run_dir / "ring.sock"), "-o", "json"),
        ],
    )
    watch.wait_for("starting the feeder", lambda: _has(child, "event", "offered"), child)
    ready = next(line for line in child.lines() if line.get("event") == "ready")
    lines = ready["lines"]
    assert isinstance(lines, list)
    return number(lines[0]["port"])


def workloads(watch: Watch) -> tuple[Child, Child, Child]:
    """Agent, vector index and the load that asks the index."""
    folder, run_dir = watch.options.examples, watch.work.run_dir
    agent = watch.children.start(
        "vwap",
        [
            *_memory_of(watch, "vwap"),
            *(sys.executable, str(folder / "vwap_agent.py"), "--feed", FEED, "--name", "vwap"),
            *("--socket", str(run_dir / "ring.sock"), "--mark", _mark() + "vwap"),
        ],
    )
    vector_socket = str(run_dir / "vector.sock")
    index = watch.children.start(
        "vector",
        [
            *_memory_of(watch, "vector"),
            *(sys.executable, str(folder / "vector_index.py"), "--socket", vector_socket),
            *("--name", _mark() + "vector"),
        ],
    )
    watch.wait_for("attaching the agent", lambda: _has(agent, "attached", True), agent)
    watch.wait_for("building the vector index", lambda: _has(index, "ready", True), index)
    load = watch.children.start(
        "query-load", [sys.executable, str(folder / "query_load.py"), "--socket", vector_socket]
    )
    watch.wait_for("asking the vector index", lambda: bool(load.lines()), load)
    watch.load = load
    return agent, index, load


def _memory_of(watch: Watch, workload: str) -> list[str]:
    """The wrapper that binds a workload's memory to its planned node: at launch or never.

    CPUs are the daemon's to set, so that the main job shows it.
    """
    placed = watch.status.placement.of(workload) if watch.status is not None else None
    if placed is None or not placed.mems or watch.options.host is not None:
        return []
    return [_tool("nodeagentctl"), "exec", "--mems", str(placed.mems), "--"]


def settle(watch: Watch, daemon: Child) -> None:
    """Until the daemon holds both workloads, or has said why it does not."""
    if os.geteuid() != 0 or watch.options.host is not None:
        return
    deadline = time.monotonic() + SETTLE_S

    def held() -> bool:
        now = watch.refresh(force=True)
        both = now is not None and len(now.held) == 2 and all(h.held for h in now.held)
        return both or time.monotonic() > deadline

    watch.wait_for("placing the workloads", held, daemon, limit_s=2 * SETTLE_S)
    if watch.status is None or not all(h.held for h in watch.status.held):
        watch.say(f"not every workload is pinned: {watch.status and watch.status.sentence}")


def replayer(watch: Watch, capture: pathlib.Path, port: int) -> Child:
    """The replayer, once its first messages have arrived."""
    child = watch.children.start(
        "replayer",
        [
            _tool("nodeagentctl"),
            *("-o", "json", "feed", "replay", str(capture)),
            *("--group", GROUP, "--port", str(port), "--interface", "lo"),
            *("--rate", str(watch.options.rate), "--loop"),
        ],
    )

    def flows() -> bool:
        now = watch.refresh(force=True)
        return now is not None and any(f.messages for f in now.feeds)

    watch.wait_for("starting the feed", flows, child)
    return child


def as_toml(config: Config) -> str:
    """A configuration as a file; `[[feed]]` tables are left out: feeders are started by us."""
    loaded = parse("", "defaults")
    lines: list[str] = ["# Written by the main job; it goes when the job ends."]
    section = ""
    for key, value, _ in shown(dataclasses.replace(loaded, config=config)):
        name, _, setting = key.partition(".")
        if "[" in name:
            continue
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        lines.append(f"{setting} = {value}")
    return "\n".join(lines) + "\n"


def _has(child: Child, key: str, value: object) -> bool:
    return any(line.get(key) == value for line in child.lines())
