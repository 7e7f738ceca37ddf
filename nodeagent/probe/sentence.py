"""Why there is no eBPF here, in one sentence, with what to do about it."""

from __future__ import annotations

import os

from nodeagent.errors import NodeagentError, RightsError, UnavailableError
from nodeagent.model.cpuset import CpuSet

MAX_LOG_LINES = 3
"""Lines of the verifier's log that a sentence carries; the last ones tell."""

_FRAME = ("-- BEGIN", "-- END", "processed ", "failed to load")


def no_library() -> NodeagentError:
    """The build had no libbpf."""
    return UnavailableError(
        "this build has no eBPF loader: libbpf was not found when it was built",
        "apt-get install clang llvm libbpf-dev, then install nodeagent again",
    )


def no_object(name: str) -> NodeagentError:
    """The build had no clang."""
    return UnavailableError(
        f"this build has no eBPF object {name}.bpf.o: clang or llvm-strip was not found when it "
        "was built",
        "apt-get install clang llvm libbpf-dev, then install nodeagent again",
    )


def no_btf() -> NodeagentError:
    """The kernel does not describe its types."""
    return UnavailableError(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing), which CO-RE programs need",
        "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y; Debian's and Ubuntu's own kernels are",
    )


def no_rights(missing: tuple[str, ...]) -> NodeagentError:
    """Capabilities are missing."""
    return RightsError(
        f"nodeagent may not load eBPF programs: {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} missing",
        "run it as root, or let nodeagent-actor load them (systemd unit nodeagent-actor.service)",
    )


def withheld() -> NodeagentError:
    """EPERM although the capabilities are there."""
    return RightsError(
        "nodeagent may not load eBPF programs: the kernel refused although CAP_BPF and CAP_PERFMON "
        "are held",
        "look for kernel lockdown (/sys/kernel/security/lockdown), a security module, or a "
        "container's seccomp profile that denies bpf(2)",
    )


def refused(name: str, error: int, log: str) -> NodeagentError:
    """The verifier, or the CO-RE relocation, refused a program."""
    lines = [
        line.strip().removeprefix("libbpf: ")
        for line in log.splitlines()
        if line.strip() and not any(mark in line for mark in _FRAME)
    ]
    said = "; ".join(lines[-MAX_LOG_LINES:]) or os.strerror(error)
    return UnavailableError(
        f"this kernel refused the eBPF object {name}: {os.strerror(error)}: {said}",
        "run `nodeagentctl probe capabilities` and report both",
    )


def not_attached(name: str, program: str, error: int) -> NodeagentError:
    """Loaded, but its hook refused it."""
    return UnavailableError(
        f"the eBPF program {program} of {name} was loaded but could not be attached: "
        f"{os.strerror(error)}",
        "run `nodeagentctl probe capabilities`",
    )


def isolated(cpus: CpuSet) -> NodeagentError:
    """`[probe] isolated = "off"`, and there are isolated CPUs."""
    return UnavailableError(
        f'CPU {cpus} is isolated and [probe] isolated is "off", so no eBPF program is attached to '
        "the scheduler's hooks",
        'set [probe] isolated to "gate" (isolated CPUs run only the gate, a few ns a switch) or '
        '"full" (they are measured too)',
    )


def foreign_pids() -> NodeagentError:
    """We live in a PID namespace: our numbers are not the kernel's."""
    return UnavailableError(
        "this process lives in a PID namespace, and eBPF programs see the kernel's own pids: what "
        "they count could not be told apart by process",
        "run nodeagent-actor in the host's PID namespace (a container needs --pid=host)",
    )


def text(error: NodeagentError) -> str:
    """Sentence and remedy as one line, for a status."""
    return f"{error}; remedy: {error.remedy}" if error.remedy else str(error)
