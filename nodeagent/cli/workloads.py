"""Which workload file a command works with, the plan made from it, and where the actor is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent.cli.main import Invocation
from nodeagent.discover.users import users
from nodeagent.errors import ConfigError, NodeagentError, ParseError, UsageError
from nodeagent.given import read_given
from nodeagent.model.actions import JournalEntry
from nodeagent.model.configfile import MAX_BYTES, Loaded, parse
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import HOLDING, Placement, ProcessState, Unit, Workload
from nodeagent.model.settings import DEFAULT_PATH
from nodeagent.model.snapshot import Snapshot
from nodeagent.place.holders import Facts
from nodeagent.place.isolate import isolating
from nodeagent.place.limits import NOBODY
from nodeagent.place.match import with_users
from nodeagent.place.workloads import parse_file

USUAL_FILE = "/etc/nodeagent/workloads.toml"
NAME_ONE = "name a workload file with --workloads; examples/workloads.toml shows the form"


class NoWorkloadFileError(UsageError):
    """Neither an option nor the configuration names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The workloads of a file, and the CPUs the configuration keeps for the system."""

    path: str
    workloads: tuple[Workload, ...]
    housekeeping: CpuSet | None
    units: tuple[Unit, ...] = ()
    isolating: tuple[str, ...] = ()
    """Workloads that the configuration has isolated by partitions."""


def cpu_list(option: str, text: str) -> CpuSet:
    """The CPUs (or nodes) that an option names. Raises UsageError."""
    try:
        return CpuSet.parse(text)
    except ParseError as error:
        raise UsageError(
            f"{option}: saw {text!r}, expected {error.expected}", "write it as the kernel does"
        ) from error


def read_text(path: str, remedy: str = NAME_ONE) -> str:
    """At most MAX_BYTES of UTF-8. Raises ConfigError."""
    try:
        data = read_given(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}",
            remedy,
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: over {MAX_BYTES} bytes, expected a file of ours", "split it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", "save it as UTF-8") from error


def configuration(named: str | None = None) -> Loaded:
    """The daemon's configuration, --config or the default one; the defaults where there is no
    file at the default path."""
    if named is not None:
        return parse(read_text(named, "name the file that nodeagentd was given"), named)
    return parse(read_text(DEFAULT_PATH) if Path(DEFAULT_PATH).exists() else "", DEFAULT_PATH)


def api_socket(invocation: Invocation) -> str | None:
    """api.sock as --socket or --config names it, else in the run folder of the default file; None:
    there is no such file, or one that is being edited, and the built-in default is meant."""
    if invocation.socket is not None or not os.path.lexists(DEFAULT_PATH):
        return invocation.socket
    try:
        return f"{configuration().config.daemon.run_dir}/api.sock"
    except ConfigError:
        return None


def wanted(
    named: str | None, housekeeping: str | None, *, live: bool, config: str | None = None
) -> Wanted:
    """From --workloads and --housekeeping, else from the configuration: on this machine the
    default one, for a recorded one only what --config names."""
    loaded = configuration(config) if live or config is not None else None
    path = named
    if path is None and loaded is not None:
        setting = loaded.config.place.workloads
        if setting:
            path = str(Path(loaded.path).parent / setting)
        elif config is None and Path(USUAL_FILE).exists():
            path = USUAL_FILE
    if path is None:
        usual = f", and there is no {USUAL_FILE}" if config is None else ""
        raise NoWorkloadFileError(
            f"no workload file: neither --workloads nor [place] workloads in "
            f"{config or DEFAULT_PATH} names one{usual}",
            "name one with --workloads (examples/workloads.toml shows the form), or with --config "
            "the file that nodeagentd was given",
        )
    kept = loaded.housekeeping if loaded is not None else None
    if housekeeping is not None:
        kept = cpu_list("--housekeeping", housekeeping)
    file = parse_file(read_text(path), path)
    return Wanted(
        path=path,
        workloads=with_users(file.workloads, users() if live else {}),
        housekeeping=kept,
        units=file.units,
        isolating=isolating(file.workloads, loaded.config.pin.isolation) if loaded else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A machine that was read, and the plan for it. `workloads`: with their devices resolved."""

    snapshot: Snapshot
    workloads: tuple[Workload, ...]
    placement: Placement
    processes: tuple[ProcessState, ...]
    facts: Facts | None
    """What it offers to hold processes with; None: a recording that does not tell."""


def plan_here(want: Wanted, host: str | None, journal: Sequence[JournalEntry] = ()) -> Here:
    """Reads the machine and plans; the placement in force is read off the processes. `journal`:
    what we set for units and containers bounds no plan.

    Raises NodeagentError when no CPU of that machine is known.
    """
    from nodeagent.cli.host import open_root, read_root
    from nodeagent.discover.holding import facts as holding_facts
    from nodeagent.discover.procs import PATIENCE_S, Processes
    from nodeagent.place.facts import facts_of
    from nodeagent.place.held import observed
    from nodeagent.place.planner import plan
    from nodeagent.place.units import ring_notes
    from nodeagent.place.workloads import resolve

    with open_root(host) as root:
        snapshot = read_root(root, nvml=any("gpu" in (w.near or "") for w in want.workloads))
        reader = Processes(
            root, labels=any(w.match.label for w in want.workloads), titles_s=PATIENCE_S
        )
        try:
            processes = reader.scan()
        finally:
            reader.close()
        if host is None:
            # A pattern that also fits the command that asks would pin what is gone in a second.
            processes = tuple(p for p in processes if p.pid != os.getpid())
        facts = holding_facts(root, (), want.isolating)
    need_titles(want.workloads, reader.title_reason)
    topology = snapshot.topology
    if not topology.online:
        why = snapshot.why_unread("sys/devices/system/cpu/online") or "nothing was read"
        raise NodeagentError(f"no CPU of that machine is known: {why}", "give another --host")
    workloads = resolve(want.workloads, snapshot)
    now = observed(topology, workloads, processes)
    written = {
        e.workload: CpuSet.parse(e.value)
        for e in journal
        if e.knob in HOLDING and e.state != "undoing"
    }
    told = facts_of(snapshot, written, facts.isolating if facts is not None else NOBODY)
    placement = plan(topology, workloads, processes, now, want.housekeeping, told)
    notes = ring_notes(want.units, placement)
    asked = [w.name for w in workloads if w.match.by_container]
    if asked and reader.container_reason:
        notes += (f"{', '.join(asked)} by container: {reader.container_reason}",)
    placement = dataclasses.replace(placement, notes=placement.notes + notes)
    return Here(
        snapshot=snapshot,
        workloads=workloads,
        placement=placement,
        processes=processes,
        facts=facts,
    )


def need_titles(workloads: tuple[Workload, ...], reason: str) -> None:
    """Raises NodeagentError where `reason` says that command lines are missing, and some workload
    is known by them: nothing would fit, and "no process now" would not be true."""
    names = ", ".join(w.name for w in workloads if w.match.by_title)
    if reason and names:
        raise NodeagentError(
            f"which processes are {names} is not known: {reason}",
            "try again; where it stays so, match by comm, unit or cgroup, which are read otherwise",
        )


def actor_socket(socket: str | None) -> Path:
    """actor.sock beside the api.sock that --socket or --config names, else in the configured run
    folder."""
    if socket is not None:
        return Path(socket).parent / "actor.sock"
    return Path(configuration().config.daemon.run_dir) / "actor.sock"
