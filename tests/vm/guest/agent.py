"""The guest's end of the channel: runs what the host asks for, one request at a time.

One JSON object a line each way, over the virtio-serial port `vm-agent`; bytes are base64.
    {"id": 1, "run": ["bash", "-c", "..."], "limit_s": 60}  ->  {"id": 1, "stdout": "..."} ...
                                                                {"id": 1, "rc": 0}
    {"id": 2, "put": "/path", "mode": 420, "more": false, "body": "..."}  ->  {"id": 2, "rc": 0}
    {"id": 3, "get": "/path"}                               ->  {"id": 3, "stdout": "..."} ... rc
The standard library only, and no import that costs a second in software emulation.
"""

import base64
import json
import os
import pathlib
import select
import signal
import subprocess
import time
from typing import Any

PORT = "/dev/virtio-ports/vm-agent"
CHUNK = 1 << 16
TIMED_OUT = 124
ENVIRONMENT = {
    "PATH": "/opt/nodeagent/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def open_port() -> int:
    while True:
        try:
            return os.open(PORT, os.O_RDWR)
        except OSError:
            time.sleep(0.05)


def say(port: int, what: dict[str, object]) -> None:
    data = (json.dumps(what) + "\n").encode()
    while data:
        data = data[os.write(port, data) :]


def run(port: int, number: int, command: list[str], limit_s: float) -> int:
    """Its output in pieces as it comes; 124 when it was killed for its limit."""
    try:
        child = subprocess.Popen(
            command,
            cwd="/root",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        say(port, {"id": number, "stderr": coded(f"{command[0]}: {error.strerror}\n".encode())})
        return 127
    assert child.stdout and child.stderr
    streams = {child.stdout.fileno(): "stdout", child.stderr.fileno(): "stderr"}
    end = time.monotonic() + limit_s
    while streams:
        left = end - time.monotonic()
        if left <= 0:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return TIMED_OUT
        ready = select.select(list(streams), [], [], min(left, 0.2))[0]
        for fd in ready:
            data = os.read(fd, CHUNK)
            if data:
                say(port, {"id": number, streams[fd]: coded(data)})
            else:
                del streams[fd]
        # A child in the background may hold the streams for ever.
        if not ready and child.poll() is not None:
            break
    try:
        return child.wait(max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return TIMED_OUT


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def answer(port: int, asked: dict[str, Any]) -> int:
    """The exit status. What was asked is JSON of the host's end."""
    number: int = asked["id"]
    if "run" in asked:
        return run(port, number, asked["run"], asked["limit_s"])
    try:
        if "put" in asked:
            path = pathlib.Path(asked["put"])
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if asked["more"] else "wb") as file:
                file.write(base64.b64decode(asked["body"]))
            path.chmod(asked["mode"])
        else:
            with pathlib.Path(asked["get"]).open("rb") as file:
                while data := file.read(CHUNK):
                    say(port, {"id": number, "stdout": coded(data)})
    except OSError as error:
        say(port, {"id": number, "stderr": coded(f"{error}\n".encode())})
        return 1
    return 0


def main() -> None:
    port = open_port()
    up_s = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    say(port, {"id": 0, "up_s": up_s})
    held = b""
    while True:
        data = os.read(port, CHUNK)
        if not data:
            # The host's end is closed.
            time.sleep(0.1)
            continue
        held += data
        while b"\n" in held:
            line, held = held.split(b"\n", 1)
            asked = json.loads(line)
            say(port, {"id": asked["id"], "rc": answer(port, asked)})


if __name__ == "__main__":
    main()
