"""Workloads, where they are placed, and the actions that make it so."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from nodeagent.model.cgroup import Container
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import STALL_MS


class Sharing(enum.StrEnum):
    """exclusive: its PUs are nobody else's; shared: may share a pool with other shared ones."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class Consent(enum.StrEnum):
    """Classes of acts that `[pin] allow` names (docs/adr/0003)."""

    THREADS = "threads"
    CGROUP = "cgroup"
    MEMORY = "memory"
    IRQ = "irq"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a workload's processes are known; every criterion that is given must fit."""

    title: str | None = None
    """Shell pattern on the process title (first word(s) of /proc/PID/cmdline joined by spaces)."""
    comm: str | None = None
    cmdline: str | None = None
    """Regular expression searched in the whole command line."""
    cgroup: str | None = None
    unit: str | None = None
    pid: int | None = None
    container: str | None = None
    """Shell pattern on the container's name."""
    image: str | None = None
    """Shell pattern on the container's image, with or without registry and tag."""
    label: str | None = None
    """KEY=VALUE of the container; VALUE is a shell pattern."""
    parent: str | None = None
    """Shell pattern on the title of the process's parent."""
    user: str | None = None
    """Name or number of the user it runs as: the effective one."""
    uid: int | None = None
    """That user's number; None: no user is asked for, or it is not known here."""

    @property
    def fakeable(self) -> bool:
        """Whether any user of the machine can have a process that fits: all of it is what a
        program says of itself."""
        said = (self.unit, self.cgroup, self.pid, self.user)
        return all(x is None for x in said) and not self.by_container

    @property
    def by_title(self) -> bool:
        """Whether it needs processes' command lines."""
        return not (self.title is None and self.cmdline is None and self.parent is None)

    @property
    def by_container(self) -> bool:
        """Whether it needs what only a container's runtime knows."""
        return not (self.container is None and self.image is None and self.label is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A part of a workload's threads that gets PUs of its own, out of the workload's.

    Every criterion that is given must fit; the first role that fits a thread has it. Threads that
    fit no role have the PUs that no role took, or all of the workload's where none is left.
    """

    name: str
    cpus: int
    """PUs of the workload for this role (>= 1)."""
    title: str | None = None
    """Shell pattern on the title of the thread's process; `|` parts several, as in the next two."""
    comm: str | None = None
    """Shell pattern on the thread's own name (/proc/PID/task/TID/comm)."""
    main: bool | None = None
    """True: the process's main thread only (tid = pid); False: the others only."""
    parent: str | None = None
    """Shell pattern on the title of the parent of the thread's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Workloads that share a NUMA node, placed all or none; they name it by `Workload.unit`.

    What `near` of a unit says stands in its members already.
    """

    name: str
    kind: str = "custom"
    """reasoning, vision, stream or custom (place/units.py says what each needs)."""
    near: str | None = None
    ring: str | None = None
    """Name of the feed whose ring its members read or fill; None: no ring of ours."""
    source: str = ""
    """FILE:LINE where the unit stands; "" where only its members name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One thing to place."""

    name: str
    kind: str
    """llm (or vllm), vector-index, vision, feeder, agent or custom."""
    match: Match
    cpus: int
    """PUs wanted (>= 1)."""
    sharing: Sharing = Sharing.EXCLUSIVE
    near: str | None = None
    """gpu:INDEX, gpu:UUID, gpu:MIG-UUID, a BDF, nic:NAME, nvme:INDEX, nvme:NAME, node:N; None:
    anywhere."""
    unit: str | None = None
    """Workloads of one unit share a NUMA node, all or none."""
    smt: str = "any"
    """whole-core, one-per-core or any."""
    l3: str = "any"
    """one: all its PUs share one L3 (a CCD is not split), else it is refused; any: as it fits."""
    memory_bytes: int = 0
    memory_move: str = "launch"
    """launch: its memory is bound when it starts and never moved; migrate: a running process's
    memory may be moved too, by a run with --yes."""
    hugepages: tuple[tuple[int, int], ...] = ()
    """(size of a page, bytes wanted of that size), smallest page first; on its node, beside
    `memory_bytes`."""
    isolated: bool = False
    cpu_list: CpuSet | None = None
    """These very PUs and no others (then `cpus` is their number); None: the planner chooses."""
    roles: tuple[Role, ...] = ()
    """In order of choice; their PUs sum to no more than `cpus`."""
    engine: str | None = None
    """The known engine (place/engines.py) whose match and roles were taken as defaults."""
    rollback: bool = False
    """Its pins may be undone when it ran measurably worse under them."""
    source: str = ""
    """FILE:LINE where the workload stands, for messages."""
    queues: CpuSet | None = None
    """Queues of the NIC it is near that it reads itself: their interrupts go to its own PUs."""
    wake_latency_us: int | None = None
    """Longest exit latency from idle of its PUs, 0: none; None: as the host has it. Exclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """A thread as it is: `cpus` is its affinity, `last_cpu` where it ran last."""

    tid: int
    comm: str
    cpus: CpuSet
    last_cpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """A process as it is. `start_time` (clock ticks since boot, stat field 22) tells a reused
    pid."""

    pid: int
    start_time: int
    comm: str
    title: str
    cgroup: str
    threads: tuple[ThreadState, ...]
    ppid: int = 0
    uid: int = 0
    """Its effective user."""
    parent_title: str = ""
    """Title of the process `ppid`; "" where it has none or was not read."""
    container: Container | None = None
    """The container it runs in; None: in none that its cgroup tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlaced:
    """The PUs of one role, out of its workload's."""

    role: Role
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where one workload belongs, and why."""

    workload: str
    unit: str | None
    sharing: Sharing
    cpus: CpuSet
    mems: CpuSet
    node: int | None
    gpu: str | None
    reasons: tuple[str, ...]
    pool: str | None = None
    """Name of the shared pool, when sharing."""
    kind: str = "custom"
    match: Match | None = None
    """How its processes are known; None: it has none to act upon."""
    roles: tuple[RolePlaced, ...] = ()
    """In the workload's order; disjoint, each inside `cpus`. Of a shared workload: none."""
    memory_bytes: int = 0
    memory_move: str = "launch"
    """As the workload has it."""
    rollback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A workload that cannot be placed: why, and the cheapest change that would make it fit."""

    workload: str
    reason: str
    would_fit_if: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The planner's answer."""

    placed: tuple[Placed, ...]
    refused: tuple[Refused, ...]
    housekeeping: CpuSet
    notes: tuple[str, ...] = ()

    def of(self, workload: str) -> Placed | None:
        """That workload's place, or None."""
        return next((p for p in self.placed if p.workload == workload), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The thread (or process) an action is about; start_time guards against a reused number."""

    pid: int
    tid: int
    """0: every thread of the process, those born meanwhile too."""
    start_time: int
    """Of the process, in clock ticks since boot (/proc/PID/stat field 22)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAffinity:
    """sched_setaffinity of one thread, or (tid 0) of every thread that is not inside `cpus`, or of
    the threads that `tids` names.

    A thread that its program bound to a part of `cpus` is inside already and is left as it is.
    """

    workload: str
    target: Target
    cpus: CpuSet
    before: CpuSet
    """As the planner saw it (union over the threads); the actor reads each thread's own again."""
    tids: tuple[int, ...] = ()
    """These threads of the process only: a role's. Empty: as the target says."""
    exclusive: bool = False
    """Whether the CPUs are to be nobody else's: kept in the journal, for plans of other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveToCpuset:
    """A process into a cgroup cpuset of ours, made when missing (cgroup v1 or v2)."""

    workload: str
    target: Target
    cpuset: str
    """Path below the cpuset mount, e.g. /nodeagent/vwap."""
    cpus: CpuSet
    mems: CpuSet
    before: str
    """Path of the cpuset the process was in."""
    exclusive: bool = False
    """As of SetAffinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateMemory:
    """Moves a running process's pages from other nodes to `to`, in steps (docs/adr/0019).

    Only for a workload whose `memory_move` is "migrate", and only for a person: the daemon never
    asks for it.
    """

    workload: str
    target: Target
    nodes: CpuSet
    """Its planned nodes: what lies on them already stays."""
    to: int
    """The node of `nodes` that the others' pages go to."""
    before: str
    """Bytes by node as the planner saw them, `0:1073741824 1:4096` (model/memory.py); the actor
    looks again."""
    stall_ms: int = STALL_MS
    """Stall bound: the longest that one step may keep pages from the process."""


class Knob(enum.StrEnum):
    """What a SetValue may set: a closed list. What `subject` names stands beside each."""

    IRQ_AFFINITY = "irq-affinity"
    """CPUs that may serve an interrupt; subject: its number. Value: a cpulist.
    Source: Documentation/core-api/irq/irq-affinity.rst."""
    IRQ_DEFAULT = "irq-default"
    """CPUs that may serve interrupts set up later; subject: `new`. Value: a cpulist."""
    XPS = "xps"
    """CPUs that send by a transmit queue; subject: `IF/tx-N`. Value: a cpulist, empty: unset.
    Source: Documentation/networking/scaling.rst."""
    RPS = "rps"
    """CPUs that process what a receive queue got; subject: `IF/rx-N`. Value: a cpulist, empty:
    off, the interrupt's own CPU does it."""
    IRQBALANCE = "irqbalance"
    """Whether irqbalance may move an interrupt; subject: its number. Value: banned or balanced."""
    WORKQUEUE = "workqueue"
    """CPUs of unbound kernel workers; subject: `*`, or a workqueue's name. Value: a cpulist.
    Source: Documentation/core-api/workqueue.rst."""
    WAKE_LATENCY = "wake-latency"
    """Longest exit latency from idle that a CPU may have; subject: its number. Value: microseconds,
    `0`: any, `n/a`: none at all. Source: Documentation/ABI/testing/sysfs-devices-power."""
    NUMA_BALANCING = "numa-balancing"
    """kernel.numa_balancing; subject: `kernel`. Value: 0 off, 1 on, 2 memory tiering, 3 both."""
    UNIT_CPUS = "unit-cpus"
    """AllowedCPUs= of a systemd unit, until the next boot; subject: its name. Value: a cpulist;
    the former one also says what set it. Source: systemd.resource-control(5)."""
    UNIT_MEMS = "unit-mems"
    """AllowedMemoryNodes= of a systemd unit that has no process; as UNIT_CPUS."""
    CONTAINER_CPUS = "container-cpus"
    """CPUs of a container, set by its runtime's update call; subject: RUNTIME:ID. Value: a cpulist,
    `all`: whatever its parent has to give."""
    PARTITION = "partition"
    """An isolated partition of cgroup v2; subject: NAME of the group /nodeagent.NAME. Value: a
    cpulist; `member`: it is none. Source: Documentation/admin-guide/cgroup-v2.rst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetValue:
    """One value of the host that belongs to no process, written, read back and undone to the byte.

    `subject` says which one of its knob; `value` and `before` are the knob's own text.
    """

    workload: str
    """Whom it serves; empty: the host as a whole."""
    knob: Knob
    subject: str
    value: str
    before: str
    """As the planner saw it; the actor reads it again."""
    exclusive: bool = False
    """As of SetAffinity: of a unit or container."""


ProcessAction = SetAffinity | MoveToCpuset
"""What is done to a process: it has a target, and a set of CPUs."""

Action = ProcessAction | MigrateMemory | SetValue

PARTITION_ROOT = "/nodeagent."
"""Before a workload's name: the cgroup of its isolated partition, at the top of the tree."""

HOLDING = frozenset({Knob.UNIT_CPUS, Knob.CONTAINER_CPUS})
"""Knobs whose value is the set of CPUs of a workload's processes."""

CONSENT_OF_KNOB: dict[Knob, Consent] = {
    Knob.IRQ_AFFINITY: Consent.IRQ,
    Knob.IRQ_DEFAULT: Consent.IRQ,
    Knob.XPS: Consent.IRQ,
    Knob.RPS: Consent.IRQ,
    Knob.IRQBALANCE: Consent.HOST,
    Knob.WORKQUEUE: Consent.HOST,
    Knob.WAKE_LATENCY: Consent.HOST,
    Knob.NUMA_BALANCING: Consent.HOST,
    Knob.UNIT_CPUS: Consent.CGROUP,
    Knob.UNIT_MEMS: Consent.MEMORY,
    Knob.CONTAINER_CPUS: Consent.CGROUP,
    Knob.PARTITION: Consent.HOST,
}
"""Class of consent of each knob (docs/adr/0003)."""


def places(action: Action) -> bool:
    """Whether it is what puts processes on their CPUs: with it a workload stands or falls."""
    if isinstance(action, SetValue):
        return action.knob in HOLDING or action.knob is Knob.PARTITION
    return not isinstance(action, MigrateMemory)


def consent_of(action: Action) -> Consent:
    """The class of consent that an action needs."""
    match action:
        case SetAffinity():
            return Consent.THREADS
        case MoveToCpuset():
            return Consent.CGROUP
        case MigrateMemory():
            return Consent.MEMORY
        case SetValue():
            return CONSENT_OF_KNOB[action.knob]


def subject_of(action: Action) -> str:
    """What an action is about, for people: `vwap pid 4711`, `irq-affinity 86`."""
    if isinstance(action, SetValue):
        return f"{action.knob} {action.subject}"
    return f"{action.workload} pid {action.target.pid}"


class Outcome(enum.StrEnum):
    """What became of an action."""

    DONE = "done"
    REFUSED = "refused"
    GONE = "gone"
    """The target ended before or while it was acted upon."""
    REVERTED = "reverted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """Outcome of one action, with the value read back."""

    outcome: Outcome
    message: str
    read_back: str | None = None
    journal_id: int | None = None
    contested: bool = False
    """Not done because somebody else set the same again, each time that it was set."""


MAX_HELD_THREADS = 512
"""Threads of a process that a status shows: it is sent whole whenever something changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A placed workload as it is now: read back, and where it really ran."""

    workload: str
    kind: str
    pid: int | None
    sharing: Sharing
    cpus_before: CpuSet | None
    cpus_planned: CpuSet
    cpus_actual: CpuSet | None
    node_planned: int | None
    ran_inside: float | None
    """Share of run time inside the planned mask since pinning, 0..1; None: not measured."""
    held: bool
    threads: tuple[ThreadState, ...] = field(default=())
    """At most MAX_HELD_THREADS of them, those that are outside their place first."""
    guard: str = ""
    """Why it is left alone, or whose changes were put right; empty: nothing happened."""
    compared: str = ""
    """Before and after the pin: better, worse, same or not comparable, and why; empty: not yet."""
    memory_local: float | None = None
    """Share of resident memory on the planned nodes, 0..1; None: not known."""
    thread_count: int = 0
    """Of all its threads."""
