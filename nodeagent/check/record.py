"""What a check is: a small pure function with its explanation, and the words it answers in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from nodeagent.errors import NodeagentError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Evidence, Verdict
from nodeagent.model.pasted import Report
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Cache, NodeKind, NumaNode, Package

AS_ROOT = "run it as root: sudo nodeagentctl topology check"
"""Remedy of every UNKNOWN that only a missing right causes; such lines are folded into one."""
RECORD_AS_ROOT = "record it again, as root: sudo nodeagentctl capture FILE"
"""The same where what is judged is a recording: to judge it as root tells no more."""
RECORD_MORE = "record the whole machine, as root: sudo nodeagentctl capture FILE"
"""Remedy of every UNKNOWN that a recording with too little in it causes."""
PASTE_MORE = "grep -H . /sys/devices/system/cpu/{possible,online,present}  # paste this with it"
"""Remedy where a paste leaves out how many CPUs there are."""
ASK_OPERATOR = (
    "ask the host's operator for a guest topology that is the host's: virsh edit GUEST, "
    "<cpu><numa> cells and <topology> as on the host"
)
"""Remedy of what only the hypervisor's owner can mend."""
MEASURE = (
    "trust neither: nvidia-smi topo -m; numactl -N 0 -m 0 nvbandwidth -t host_to_device_memcpy_ce, "
    "then the same from each other node"
)
"""Remedy where sources contradict each other: nobody but a measurement is right."""
NOT_RECORDED = "not in the recording"
NO_SUCH_FILE = "No such file or directory"
READ_BY_HAND = "cat the named file, and dmesg | tail; where it is damaged report it with uname -r"
"""Remedy of every UNKNOWN that a damaged file, or one that fails, causes."""

_R = TypeVar("_R", bound=Report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One answer of a check: a Finding that does not know its id yet."""

    verdict: Verdict
    subject: str
    message: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


class Missing(NodeagentError):  # noqa: N818  # a state of the evidence, not a fault
    """What a check needs could not be seen: becomes UNKNOWN."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{shown(path)} could not be seen: {reason}", remedy)
        self.path = path
        self.reason = reason


class NotApplicable(NodeagentError):  # noqa: N818
    """There is nothing here for this check to judge: becomes NA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check and its page: `nodeagentctl explain ID` and docs/checks.md come from here alone."""

    id: str
    title: str
    means: str
    """What it looks at and what each verdict means."""
    why: str
    prove: str
    """Commands that show the same thing by hand."""
    mend: str
    source: str
    run: Callable[[Seen], Iterable[Judged]]
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Named limits and their defaults; a policy file may change them."""


def check(
    id: str,
    title: str,
    *,
    means: str,
    why: str,
    prove: str,
    mend: str,
    source: str,
    bounds: Mapping[str, float] | None = None,
) -> Callable[[Callable[[Seen], Iterable[Judged]]], Check]:
    """Makes a Check of a function `(Seen) -> answers`."""

    def made(run: Callable[[Seen], Iterable[Judged]]) -> Check:
        return Check(
            id=id,
            title=title,
            means=means,
            why=why,
            prove=prove,
            mend=mend,
            source=source,
            run=run,
            bounds=dict(bounds or {}),
        )

    return made


def shown(path: str) -> str:
    """A path as people know it: with its leading slash, unless it is a command or a call."""
    return f"/{path}" if path.startswith(("proc/", "sys/", "etc/", "dev/")) else path


def saw(path: str, text: str) -> Evidence:
    """Evidence: a file and what stood there; a file without a word is `(empty)`."""
    text = text if text.strip() else "(empty)"
    return Evidence(path=shown(path), text=text if len(text) <= 400 else text[:397] + "...")


def ok(subject: str, message: str, *evidence: Evidence) -> Judged:
    """Nothing wrong."""
    return Judged(verdict=Verdict.OK, subject=subject, message=message, evidence=evidence)


def info(subject: str, message: str, *evidence: Evidence, remedy: str = "") -> Judged:
    """Worth knowing; never counts."""
    return Judged(
        verdict=Verdict.INFO, subject=subject, message=message, evidence=evidence, remedy=remedy
    )


def warn(subject: str, message: str, *evidence: Evidence, remedy: str) -> Judged:
    """Costs something, works."""
    return Judged(
        verdict=Verdict.WARN, subject=subject, message=message, evidence=evidence, remedy=remedy
    )


def fail(subject: str, message: str, *evidence: Evidence, remedy: str) -> Judged:
    """Does not do what was asked, or will break."""
    return Judged(
        verdict=Verdict.FAIL, subject=subject, message=message, evidence=evidence, remedy=remedy
    )


def unknown(subject: str, message: str, *evidence: Evidence, remedy: str) -> Judged:
    """Could not be seen; names the file or the right."""
    return Judged(
        verdict=Verdict.UNKNOWN, subject=subject, message=message, evidence=evidence, remedy=remedy
    )


def needs_right(reason: str) -> bool:
    """Whether an unreadable file would be readable with more rights."""
    low = reason.lower()
    return any(w in low for w in ("permission", "not permitted", "needs root", "eacces", "eperm"))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check gets: the snapshot and the bounds in force, with accessors that say when
    something is missing instead of returning a healthy default."""

    snapshot: Snapshot
    bounds: Mapping[str, float]
    asked: bool = False
    """Whether the policy speaks of this check: what it needs is then needed here."""

    # ---- texts ----------------------------------------------------------------------------

    def text(self, path: str, *, absent: str) -> str:
        """A settings file's text. Raises Missing (unreadable, or not in the recording) or
        NotApplicable(absent) where this machine has no such file."""
        got = self.snapshot.texts.get(path)
        if got is not None:
            return got
        raise self.gone(path, absent)

    def word(self, path: str, *, absent: str) -> str:
        """A settings file that always holds something. Raises like `text`; blank is Missing."""
        text = self.text(path, absent=absent)
        if not text:
            raise Missing(path, "the file is empty", READ_BY_HAND)
        return text

    @property
    def as_root(self) -> str:
        """Remedy where only a right was missing."""
        return AS_ROOT if self.snapshot.live else RECORD_AS_ROOT

    def gone(self, path: str, absent: str) -> NodeagentError:
        """The exception that fits a file whose text is not there."""
        reason = self.snapshot.why_unread(path)
        if reason is not None:
            return self.unread(path, reason)
        if self.snapshot.pasted:
            return NotApplicable(f"the input says nothing of {shown(path)}")
        if not self.snapshot.complete:
            return Missing(path, NOT_RECORDED, RECORD_MORE)
        return NotApplicable(absent)

    def unread(self, path: str, reason: str) -> Missing:
        """The exception that fits a file which was asked for in vain."""
        if not self.snapshot.complete and reason == NO_SUCH_FILE:
            return Missing(path, NOT_RECORDED, RECORD_MORE)
        return Missing(path, reason, self.as_root if needs_right(reason) else READ_BY_HAND)

    def number(self, path: str, *, absent: str) -> int:
        """A settings file that holds one whole number. Raises like `text`; damage is Missing."""
        text = self.text(path, absent=absent)
        try:
            return int(text.split()[0] if text.split() else text, 0)
        except ValueError:
            raise Missing(path, f"saw {text[:40]!r}, expected a number", READ_BY_HAND) from None

    def cpus(self, path: str, *, absent: str) -> CpuSet:
        """A settings file that holds a CPU list. Raises like `text`; damage is Missing."""
        try:
            return CpuSet.parse(self.text(path, absent=absent).replace("(null)", ""))
        except ParseError as error:
            raise Missing(path, str(error), READ_BY_HAND) from error

    def mask(self, path: str, *, absent: str) -> CpuSet:
        """A settings file that holds a hexadecimal CPU mask. Raises like `text`."""
        try:
            return CpuSet.parse_mask(self.text(path, absent=absent))
        except ParseError as error:
            raise Missing(path, str(error), READ_BY_HAND) from error

    def matching(self, head: str, tail: str) -> tuple[tuple[str, str], ...]:
        """(path, text) of every settings file that starts and ends so, in path order."""
        texts = self.snapshot.texts
        return tuple(
            (p, texts[p]) for p in sorted(texts) if p.startswith(head) and p.endswith(tail)
        )

    # ---- the command line -----------------------------------------------------------------

    def arg(self, name: str) -> str | None:
        """The value of a boot argument, "" for a flag, None when it is not given. Raises Missing
        when the command line itself could not be read, NotApplicable when a paste has none."""
        if not self.snapshot.boot_args and "proc/cmdline" not in self.snapshot.texts:
            raise self.gone("proc/cmdline", "this system has no kernel command line")
        return self.snapshot.arg(name)

    # ---- areas: a list that could not be read is not an empty list ---------------------------

    def whole(self, *areas: str, leaf: str = "") -> None:
        """Raises Missing when something below one of these areas, a file whose name starts with
        `leaf`, could not be read."""
        for unread in self.snapshot.unread:
            path = unread.path.lstrip("/")
            if path.startswith(areas) and path.rpartition("/")[2].startswith(leaf):
                raise self.unread(path, unread.reason)

    def devices(self) -> None:
        """Raises Missing when the PCI devices could not all be read, so that "no GPU" would be a
        guess."""
        self.kinds()
        if not self.snapshot.topology.pci:
            self.whole("sys/bus/pci", "sys/devices/pci")
            if not self.snapshot.complete and not self.snapshot.pasted:
                raise Missing("sys/bus/pci/devices", NOT_RECORDED, RECORD_MORE)

    def kinds(self) -> None:
        """Raises Missing when a PCI function does not tell what it is: it may be a GPU."""
        if self.snapshot.pasted is None:
            for leaf in ("class", "vendor"):
                self._function_files(leaf)

    def device_nodes(self, *, bridges: bool = False) -> None:
        """Raises Missing when the file with the NUMA node of a device (with `bridges`: also of a
        bridge) was there and could not be read: that is not the firmware's -1."""
        by = {p.bdf: p for p in self.snapshot.topology.pci}
        for bdf, (path, reason) in self.unread_nodes.items():
            if bdf in by and (bridges or not by[bdf].is_bridge):
                raise self.unread(path, reason)

    @property
    def unread_nodes(self) -> dict[str, tuple[str, str]]:
        """BDF -> (path, reason) of each file with a device's NUMA node that could not be read."""
        found = {}
        for unread in self.snapshot.unread:
            head, _, leaf = unread.path.lstrip("/").rpartition("/")
            if leaf == "numa_node":
                found[head.rpartition("/")[2]] = (f"{head}/{leaf}", unread.reason)
        return found

    def _function_files(self, leaf: str) -> None:
        for unread in self.snapshot.unread:
            path = unread.path.lstrip("/")
            if not path.startswith(("sys/bus/pci/", "sys/devices/pci")):
                continue
            absent = unread.reason == NO_SUCH_FILE and not self.snapshot.complete
            if path.rpartition("/")[2] == leaf and not absent:
                raise self.unread(path, unread.reason)

    def l3_groups(self) -> tuple[Cache, ...]:
        """The L3 caches that have CPUs. Raises Missing when a file that tells them could not be
        read."""
        for leaf in ("level", "type", "shared_cpu"):
            self.whole("sys/devices/system/cpu/cpu", leaf=leaf)
        return tuple(c for c in self.snapshot.topology.caches if c.level == 3 and c.cpus)

    def packages(self) -> tuple[Package, ...]:
        """The packages. Raises Missing when a file that tells them could not be read."""
        for leaf in ("package_cpus", "core_siblings", "physical_package_id"):
            self.whole("sys/devices/system/cpu/cpu", leaf=leaf)
        return self.snapshot.topology.packages

    def nodes(self) -> tuple[NumaNode, ...]:
        """The NUMA nodes. Raises Missing when they could not all be read, NotApplicable when the
        input or the kernel has none."""
        nodes = self.snapshot.topology.nodes
        self.whole("sys/devices/system/node")
        if not nodes:
            raise NotApplicable("no NUMA nodes are described")
        return nodes

    def reports(self, kind: type[_R]) -> tuple[_R, ...]:
        """What tools said, of one kind; nothing on a machine that was read."""
        return self.snapshot.pasted.of(kind) if self.snapshot.pasted else ()

    # ---- what several checks ask -----------------------------------------------------------

    @property
    def cpu_nodes(self) -> tuple[NumaNode, ...]:
        """NUMA nodes that have CPUs."""
        return tuple(n for n in self.snapshot.topology.nodes if n.cpus)

    @property
    def memory_only(self) -> tuple[NumaNode, ...]:
        """NUMA nodes with memory and no CPUs (GPU memory, HBM, CXL)."""
        kinds = (NodeKind.MEMORY, NodeKind.GPU_MEMORY)
        return tuple(n for n in self.snapshot.topology.nodes if n.kind in kinds)

    @property
    def gpus_compute(self) -> bool:
        """Whether the machine has a GPU that computes."""
        topology = self.snapshot.topology
        return any(p.computes for p in topology.pci) or bool(self.snapshot.gpus)

    @property
    def last_cpu(self) -> int | None:
        """The highest possible CPU, what `N` means on the kernel command line; None: not known."""
        possible = self.snapshot.topology.possible or self.snapshot.topology.present
        if not possible and not self.snapshot.pasted:
            possible = self.snapshot.topology.online
        return max(possible.ids) if possible else None

    @property
    def isolated(self) -> CpuSet:
        """CPUs that somebody wants quiet: isolated or nohz_full, in force or asked for."""
        isolation = self.snapshot.topology.isolation
        return isolation.isolated | isolation.nohz_full

    def mend(self, bare: str, guest: str = "") -> str:
        """A remedy: `bare` for the hardware's owner, `guest` inside a virtual machine, where
        nothing can be reseated and no BIOS be set; "": ASK_OPERATOR."""
        return (guest or ASK_OPERATOR) if self.snapshot.host.virtual else bare

    @property
    def latency_matters(self) -> bool:
        """Whether this machine was given a job where tails matter: GPUs, isolated CPUs; or a
        person asks about pasted settings. Raises Missing when a function may be a GPU."""
        if self.gpus_compute or self.isolated or self.snapshot.pasted is not None:
            return True
        self.kinds()
        return False


def some(items: Iterable[object], limit: int = 8) -> str:
    """A list for a sentence, cut after `limit` items with a count of the rest."""
    words = [str(i) for i in items]
    rest = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {rest} more" if rest > 0 else "")


def share(part: float, whole: float) -> float:
    """part of whole in percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0
