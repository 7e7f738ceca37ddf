"""Boots a machine and runs a command in it; its output and exit status come back.

    python -m tests.vm.run [--limit SECONDS] [--put FILE]... MACHINE [-- COMMAND...]

Without a command: the machine's name, kernel and state. Several commands, each an argument after
`--` that ends with `;`, are one shell text. Names: `python -m tests.vm.run --list`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

from tests.vm import image, payload, qemu
from tests.vm.machine import machines

UNUSABLE = 3
DEFAULT = "uname -r; nproc; numactl -H; systemctl is-system-running; systemctl --failed --no-legend"


def main() -> int:
    """The command's exit status; 3 where no machine can run here."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="name the machines")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--put", action="append", default=[], metavar="FILE", help="into /srv")
    parser.add_argument("machine", nargs="?")
    parser.add_argument("command", nargs="*")
    asked = parser.parse_args()
    known = machines()
    if asked.list or asked.machine is None:
        for one in known.values():
            print(f"{one.name:16} kernel {one.kernel:5} {one.cpus:3} CPUs, {one.total_mb} MiB")
        return 0
    if asked.machine not in known:
        print(f"no machine {asked.machine}: --list names them", file=sys.stderr)
        return UNUSABLE
    try:
        qemu.available()
        where, drive = image.make(), payload.make()
        return _run(qemu.Guest(known[asked.machine], where, drive), asked)
    except image.NoImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE


def _run(guest: qemu.Guest, asked: argparse.Namespace) -> int:
    def echo(stream: str, data: bytes) -> None:
        out = sys.stdout if stream == "stdout" else sys.stderr
        out.buffer.write(data)
        out.buffer.flush()

    begun = time.monotonic()
    with guest:
        state = guest.ready()
        say = f"{guest.machine.name}: {state} after {time.monotonic() - begun:.0f} s"
        print(f"{say}, {qemu.accelerator(image.find())}", file=sys.stderr, flush=True)
        for name in asked.put:
            file = pathlib.Path(name)
            guest.put(f"/srv/{file.name}", file.read_bytes(), file.stat().st_mode & 0o777)
        rc = guest.run(" ".join(asked.command) or DEFAULT, asked.limit, echo).rc
        guest.power_off()
    return rc


if __name__ == "__main__":
    sys.exit(main())
