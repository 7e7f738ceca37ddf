"""One call on a bus: a real dbus-daemon, and peers that answer what no bus would."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dbus_fast import Message, MessageType

from nodeagent.errors import ActError, NodeagentError, RightsError, UnavailableError, visible
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.bus import MAX_TEXT, Bus
from nodeagent.pin.timeleft import TimeLeft

DBUS = "org.freedesktop.DBus"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """The address of a real bus of our own."""
    program = shutil.which("dbus-daemon")
    if program is None:
        pytest.skip("dbus-daemon is not installed here: apt-get install dbus-daemon")
    address = f"unix:path={tmp_path}/bus"
    process = subprocess.Popen(
        [
            program,
            "--session",
            "--nofork",
            "--nopidfile",
            "--print-address",
            f"--address={address}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"unix:path=")
    yield address
    process.kill()
    process.communicate()


def test_a_real_bus_answers(daemon: str) -> None:
    bus = Bus(daemon)
    (names,) = bus.call("/", DBUS, "ListNames", returns="as", destination=DBUS)
    assert isinstance(names, list) and DBUS in names
    with pytest.raises(UnavailableError, match=r"nobody answers Manager\.LoadUnit"):
        bus.call("/", "org.freedesktop.systemd1.Manager", "LoadUnit", "s", ("x.service",))
    with pytest.raises(UnavailableError, match=r"nobody answers Manager\.LoadUnit"):
        bus.call("/", "a.Manager", "LoadUnit", destination="org.nonesuch")
    with pytest.raises(ActError, match=r"answered with signature 'as', expected 's'"):
        bus.call("/", DBUS, "ListNames", returns="s", destination=DBUS)
    with pytest.raises(ActError, match=r"failed: .*Nonesuch"):
        bus.call("/", DBUS, "Nonesuch", destination=DBUS)


def test_no_bus_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No such file or directory") as told:
        Bus(f"unix:path={tmp_path}/none").call("/", "a.b", "C")
    assert "[pin] allow" in told.value.remedy


class Peer:
    """Somebody on the other end of the socket: `answer` gets the connection after the greeting."""

    def __init__(self, path: Path, answer: Callable[[socket.socket], None]) -> None:
        self.address = f"unix:path={path}"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        with client:
            try:
                self._answer(client)
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
        self._thread.join()


def greet(client: socket.socket) -> None:
    """As a bus does, up to its answer to Hello."""
    client.recv(4096)
    client.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
    seen = b""
    while b"BEGIN\r\n" not in seen or b"Hello" not in seen:
        seen += client.recv(4096)
    client.sendall(hello())
    client.recv(65536)


def hello() -> bytes:
    return reply(1, "s", [":1.1"])


def reply(to: int, signature: str, body: list[object]) -> bytes:
    message = Message(
        message_type=MessageType.METHOD_RETURN, reply_serial=to, signature=signature, body=body,
        serial=7, sender=DBUS,
    )  # fmt: skip
    return bytes(message._marshall(False))


def fault(name: str, text: str) -> bytes:
    message = Message(
        message_type=MessageType.ERROR, reply_serial=2, error_name=name, signature="s",
        body=[text], serial=7, sender=DBUS,
    )  # fmt: skip
    return bytes(message._marshall(False))


def ask(path: Path, answer: Callable[[socket.socket], None], deadline_s: float = 5.0) -> object:
    peer = Peer(path, answer)
    try:
        return Bus(peer.address, deadline_s).call("/", "a.b", "C", returns="s")
    finally:
        peer.close()


def after_greeting(data: bytes) -> Callable[[socket.socket], None]:
    def answer(client: socket.socket) -> None:
        greet(client)
        client.sendall(data)

    return answer


def test_a_peer_that_answers_well_is_understood(tmp_path: Path) -> None:
    assert ask(tmp_path / "s", after_greeting(reply(2, "s", ["yes"]))) == ("yes",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.freedesktop.systemd1.NoSuchUnit", GoneError),
        ("org.freedesktop.DBus.Error.AccessDenied", RightsError),
        ("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", RightsError),
        ("org.freedesktop.DBus.Error.NameHasNoOwner", UnavailableError),
        ("org.freedesktop.systemd1.UnitMasked", ActError),
    ],
)
def test_an_error_is_its_kind_in_one_bounded_line(
    name: str, kind: type[NodeagentError], tmp_path: Path
) -> None:
    text = "no\n\x1b[31m" + "x" * 5000
    with pytest.raises(kind) as told:
        ask(tmp_path / "s", after_greeting(fault(name, text)))
    assert type(told.value) is kind
    assert len(str(told.value)) < MAX_TEXT + 80 and visible(str(told.value)) == str(told.value)


def silent(client: socket.socket) -> None:
    client.recv(4096)
    while client.recv(4096):
        pass


def silent_later(client: socket.socket) -> None:
    greet(client)
    while client.recv(4096):
        pass


@pytest.mark.parametrize("peer", [silent, silent_later])
def test_a_silent_peer_is_not_waited_for(
    peer: Callable[[socket.socket], None], tmp_path: Path
) -> None:
    with pytest.raises(ActError, match=r"not answered within 0.3 s"):
        ask(tmp_path / "s", peer, 0.3)


def test_a_call_has_no_more_than_what_is_left_of_its_step(tmp_path: Path) -> None:
    peer, left = Peer(tmp_path / "s", silent_later), TimeLeft(0.3)
    try:
        with left.step(), pytest.raises(ActError, match=r"not answered within 0\.[23]\d* s"):
            Bus(peer.address, 60.0, left).call("/", "a.b", "C", returns="s")
    finally:
        peer.close()


HOSTILE: dict[str, Callable[[socket.socket], None]] = {
    "hangs up": lambda c: None,
    "refuses": lambda c: c.sendall(b"REJECTED EXTERNAL\r\n"),
    "greets with bytes": lambda c: c.sendall(b"\xff\xfe\r\n"),
    "greets for ever": lambda c: c.sendall(b"A" * (1 << 20)),
    "hangs up later": greet,
    "sends bytes": after_greeting(bytes(range(256)) * 8),
    "claims 4 GiB": after_greeting(
        b"l\x02\x00\x01\xff\xff\xff\xff\x07\x00\x00\x00\xff\xff\xff\xff"
    ),
    "cuts": after_greeting(reply(2, "s", ["yes"])[:-3]),
    "answers with nothing": after_greeting(reply(2, "", [])),
    "answers another type": after_greeting(reply(2, "ay", [b"\0" * 4096])),
    "nests": after_greeting(reply(2, "a" * 30 + "s", [[]])),
}


@pytest.mark.parametrize("how", sorted(HOSTILE))
def test_a_hostile_peer_gets_one_sentence(how: str, tmp_path: Path) -> None:
    with pytest.raises(NodeagentError) as told:
        ask(tmp_path / "s", HOSTILE[how], 0.5)
    assert visible(str(told.value)) == str(told.value) and len(str(told.value)) < 2 * MAX_TEXT


def test_bytes_of_an_answer_changed_at_random_never_escape(tmp_path: Path) -> None:
    chance, good = random.Random(1851), reply(2, "s", ["unit/v_2eservice"])
    told = answered = 0
    for number in range(150):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            value = ask(tmp_path / f"{number}", after_greeting(bytes(data)), 0.15)
        except NodeagentError as error:
            told += 1
            assert visible(str(error)) == str(error) and len(str(error)) < 2 * MAX_TEXT
        else:
            answered += 1
            assert isinstance(value, tuple) and isinstance(value[0], str)
    assert told > 20 and answered > 0
