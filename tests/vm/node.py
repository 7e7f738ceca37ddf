"""nodeagent installed in a machine as docs/operations.md says, and what tests ask such a node."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

from tests.vm.machine import expand
from tests.vm.qemu import Guest, GuestError, Result

GUEST = pathlib.Path(__file__).resolve().parent / "guest"
CONFIG = "/etc/nodeagent/nodeagent.toml"
WORKLOADS = "/etc/nodeagent/workloads.toml"
WAIT_S = 600.0
"""For what a machine should do by itself; software emulation on a busy host is slow."""
INSTALL = f"""
set -e
cd /opt/nodeagent/src
ln -sf /opt/nodeagent/bin/nodeagent* /usr/bin/
install -Dm644 -t /etc/sysusers.d systemd/sysusers.d/nodeagent.conf && systemd-sysusers
install -Dm644 -t /etc/tmpfiles.d systemd/tmpfiles.d/nodeagent.conf && systemd-tmpfiles --create
install -Dm644 -t /etc/nodeagent systemd/nodeagent.toml
install -Dm644 -t /etc/systemd/system systemd/*.service
# An emulated CPU is some 20 times slower: the limits of time and of CPU are a real node's.
for unit in nodeagentd nodeagent-actor; do
  mkdir -p /etc/systemd/system/$unit.service.d
  printf '[Service]\\nCPUQuota=\\nTimeoutStartSec=600\\nWatchdogSec=1200\\n' \\
    > /etc/systemd/system/$unit.service.d/vm.conf
done
systemctl daemon-reload
gcc -O1 -o /usr/local/bin/standin_vllm /srv/standin_vllm.c -lpthread
touch {WORKLOADS}
"""


class Node:
    """A machine with nodeagent's actor running under systemd; the daemon only where asked for."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        for name in ("standin_vllm.c", "pages.py", "ask.py"):
            guest.put(f"/srv/{name}", (GUEST / name).read_bytes())
        guest.check(INSTALL)

    def configure(self, *, allow: str, workloads: str, more: str = "") -> None:
        """Writes both files and (re)starts the actor, whose consent they are."""
        self.guest.put(
            CONFIG,
            f'[pin]\nallow = [{allow}]\n{more}\n[place]\nworkloads = "{WORKLOADS}"\n',
        )
        self.guest.put(WORKLOADS, workloads)
        self.guest.check("systemctl reset-failed; systemctl restart nodeagent-actor", 700)

    def ctl(self, words: str, limit_s: float = 400.0) -> Result:
        """`nodeagentctl` with these words."""
        return self.guest.run(f"nodeagentctl {words}", limit_s)

    def json(self, words: str, *, rc: int = 0) -> dict[str, Any]:
        """Its JSON. Raises GuestError where it ended otherwise than `rc`."""
        done = self.ctl(f"-o json {words}")
        if done.rc != rc:
            raise GuestError(f"nodeagentctl {words}: {done.rc}\n{done.stdout}\n{done.stderr}")
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def ask(self, knob: str, subject: str, value: str) -> tuple[str, str]:
        """Outcome and message of one value that the actor is asked to set."""
        told = self.guest.check(
            ["/opt/nodeagent/bin/python", "/srv/ask.py", knob, subject, value], 200
        )
        outcome, _, message = told.strip().partition(" ")
        return outcome, message

    def service(self, name: str, command: str, properties: str = "") -> None:
        """A command as a transient service of that name."""
        self.guest.check(f"systemd-run --quiet --collect --unit={name} {properties} {command}")

    def program(self, name: str, command: str) -> int:
        """As `service`; its process, once it has become the command."""
        self.service(name, command)
        pid = int(self.guest.check(f"systemctl show -p MainPID --value {name}"))
        # systemd's child is there before it is the program.
        look = f"tr '\\0' ' ' < /proc/{pid}/cmdline"
        self.until(command, lambda: self.guest.run(look).stdout.strip().endswith(command))
        return pid

    def pids(self, pattern: str) -> list[int]:
        """Processes whose command line has the pattern (no shells of ours), ascending."""
        found = self.guest.run(["pgrep", "-f", pattern]).stdout.split()
        return sorted(map(int, found))

    def masks(self, pid: int) -> dict[int, set[int]]:
        """Each thread's affinity, as the kernel says it."""
        told = self.guest.check(f"grep -H Cpus_allowed_list /proc/{pid}/task/*/status")
        return {
            int(line.split("/")[4]): expand(line.rpartition(":")[2].strip())
            for line in told.splitlines()
        }

    def ran(self, pid: int, seconds: int = 4) -> dict[int, int]:
        """The CPU that each thread was on last, of those that ran within these seconds: a thread
        that sleeps still names the CPU of long ago."""
        look = f"for t in /proc/{pid}/task/*; do echo $(cat $t/schedstat) $(cat $t/stat); done"
        before, after = (_looked(text) for text in self._twice(look, seconds))
        return {tid: cpu for tid, (ran, cpu) in after.items() if ran > before.get(tid, (0, 0))[0]}

    def _twice(self, look: str, seconds: int) -> tuple[str, str]:
        first, _, second = self.guest.check(f"{look}; sleep {seconds}; echo ---; {look}").partition(
            "---"
        )
        return first, second

    def pages(self, pid: int) -> dict[str, Any]:
        """guest/pages.py of that process."""
        told: dict[str, Any] = json.loads(self.guest.check(f"python3 /srv/pages.py {pid}"))
        return told

    def until(self, what: str, true: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        """Waits for it. Raises GuestError that names it."""
        end = time.monotonic() + limit_s
        while not true():
            if time.monotonic() > end:
                raise GuestError(f"{self.guest.machine.name}: not within {limit_s:.0f} s: {what}")
            time.sleep(0.5)

    def audit(self) -> str:
        """The journal of both units."""
        return self.guest.check("journalctl --no-pager -o cat -u nodeagentd -u nodeagent-actor")


def _looked(text: str) -> dict[int, tuple[int, int]]:
    """Thread -> (nanoseconds that it ran, CPU where it ran last): schedstat's and stat's words."""
    found = {}
    for line in text.splitlines():
        head, _, tail = line.rpartition(")")
        words = head.split()
        if len(words) > 3:
            found[int(words[3])] = int(words[0]), int(tail.split()[36])
    return found
