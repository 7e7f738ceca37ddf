"""What we cost: CPU and PSS of daemon, actor and their children while a feed runs and eBPF counts;
and how long a person waits for `nodeagentctl --help`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from row import Row, median_of

BIN = pathlib.Path(sys.executable).parent
SETTLE_S = 5.0
"""Start-up (first reading, plan, pin, attach) is over then; it is no running cost."""

RATE = 20_000
"""Messages a second of the feed: our cost must not depend on it, and others share this machine."""

WORKER = "import threading, time\nfor _ in range(3): threading.Thread(target=lambda: [sum(range(999)) or time.sleep(.01) for _ in iter(int, 1)], daemon=True).start()\ntime.sleep(999)"  # noqa: E501


def rows(quick: bool) -> Iterator[Row]:
    """The rows of the daemon."""
    yield Row(
        name="daemon.help",
        value=median_of(_help_ms, runs=3 if quick else 9),
        unit="ms",
        target="<= 200",
        peer="git --help",
        peer_value=median_of(_git_ms, runs=3) if shutil.which("git") else None,
    )
    if os.geteuid() != 0:
        yield Row(name="daemon.cpu", value=None, unit="%", target="<= 0.5", note="needs root")
        return
    with tempfile.TemporaryDirectory(prefix="ndb-") as folder:
        yield from _cost(pathlib.Path(folder), 20.0 if quick else 60.0)


def _help_ms() -> float:
    return _ms([str(BIN / "nodeagentctl"), "--help"])


def _git_ms() -> float:
    return _ms(["git", "-h"])


def _ms(argv: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return (time.perf_counter() - start) * 1e3


def _cost(folder: pathlib.Path, seconds: float) -> Iterator[Row]:
    port, controller = _free_udp_port(), _free_tcp_port()
    run_dir = folder / "run"
    config = folder / "n.toml"
    config.write_text(
        f'daemon.run_dir = "{run_dir}"\ndaemon.state_dir = "{folder / "state"}"\n'
        "pin.allow = ['threads']\npin.auto = ['threads']\npin.on_stop = 'release'\n"
        f'place.workloads = "w.toml"\nprobe.enabled = true\n'
        f'controller.address = "127.0.0.1:{controller}"\n'
    )
    (folder / "w.toml").write_text(
        '[[workload]]\nname = "w"\nkind = "custom"\ncpus = 1\nsharing = "shared"\n'
        f'match = {{ cmdline = "{folder.name}$" }}\n'
    )
    pcap = folder / "day.pcap"
    ctl = str(BIN / "nodeagentctl")
    _quiet([ctl, "feed", "synth", str(pcap), "--messages", "20000"])
    with contextlib.ExitStack() as stack:

        def start(*argv: object) -> subprocess.Popen[bytes]:
            made = subprocess.Popen(
                [str(a) for a in argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(_end, made)
            return made

        start(BIN / "nodeagent-controller", "--listen", f"127.0.0.1:{controller}",
              "--state-dir", folder / "c")  # fmt: skip
        actor = start(BIN / "nodeagent-actor", "--run-dir", run_dir, "--state-dir", folder / "a",
                      "--allow", "threads")  # fmt: skip
        start(sys.executable, "-c", WORKER, folder.name)
        daemon = start(BIN / "nodeagentd", "--config", config)
        while not (run_dir / "api.sock").exists():
            time.sleep(0.1)
        start(BIN / "nodeagent-feeder", "--name", "bench", "--source", "socket",
              "--group", "127.0.0.1", "--port", port, "--socket", run_dir / "ring.sock",
              "--ring-capacity", 65536, "--frames-bytes", 0)  # fmt: skip
        start(ctl, "feed", "replay", pcap, "--group", "127.0.0.1", "--port", port,
              "--rate", RATE, "--loop")  # fmt: skip
        time.sleep(SETTLE_S)
        before, at = _cpu_s(daemon.pid, actor.pid), time.monotonic()
        switches = _switches(daemon.pid, actor.pid)
        time.sleep(seconds)
        spent = time.monotonic() - at
        used = _cpu_s(daemon.pid, actor.pid) - before
        woken = (_switches(daemon.pid, actor.pid) - switches) / spent
        parts = {pid: _pss_mb(pid) for pid in _family(daemon.pid, actor.pid)}
        status = _status(run_dir)
    note = (
        f"daemon, actor, {len(parts) - 2} children; {spent:.0f} s, feed {RATE:,} messages/s; "
        f"eBPF {'on' if status[0] else 'off: ' + str(status[1])}; {status[2]}"
    )
    yield Row(
        name="daemon.cpu", value=100 * used / spent, unit="% of a CPU", target="<= 0.5", note=note
    )
    yield Row(
        name="daemon.pss",
        value=sum(parts.values()),
        unit="MB",
        target="<= 120",
        note=" + ".join(f"{mb:.1f}" for mb in parts.values()),
    )
    yield Row(name="daemon.wakeups", value=woken, unit="/s", note="context switches of all threads")


def _status(run_dir: pathlib.Path) -> tuple[bool, str | None, str]:
    from nodeagent.rpc.client import NodeClient

    with NodeClient(str(run_dir / "api.sock")) as client:
        status = client.status()
    assert status.rings and status.controller.connected, status.sentence
    return status.probe.available, status.probe.reason, status.sentence


def _quiet(argv: list[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_tcp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _family(*roots: int) -> list[int]:
    """The processes and all below them."""
    parents: dict[int, int] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    family = list(roots)
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    return family


def _cpu_s(*roots: int) -> float:
    """CPU seconds of all of them, and of their children that ended. Source: schedstat for what
    runs (nanoseconds), stat fields 16 and 17 for what ended (ticks)."""
    total = 0.0
    for pid in _family(*roots):
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return total


def _switches(*roots: int) -> int:
    total = 0
    for pid in _family(*roots):
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                for line in (task / "status").read_text().splitlines():
                    if "ctxt_switches" in line:
                        total += int(line.split()[1])
    return total


def _pss_mb(pid: int) -> float:
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
