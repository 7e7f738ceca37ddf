"""One call on D-Bus, from code that waits: connect, ask, read the answer, hang up, by a deadline.

An act asks for few things and then nothing for hours, so no connection is kept. The library's loop
runs inside the call. What comes back is another program's word: it is checked by signature and
bounded before anybody uses it.
Source: the D-Bus specification; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence

from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.errors import AuthError, DBusFastError

from nodeagent.errors import ActError, RightsError, UnavailableError, visible
from nodeagent.model.deadlines import BUS_CALL_S
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.timeleft import TimeLeft

ADDRESS = "unix:path=/run/dbus/system_bus_socket"
MAX_TEXT = 300
"""Characters of another program's sentence that are repeated."""
SYSTEMD = "org.freedesktop.systemd1"
PROPERTIES = "org.freedesktop.DBus.Properties"

_GONE = frozenset({f"{SYSTEMD}.NoSuchUnit", "org.freedesktop.DBus.Error.UnknownObject"})
_RIGHTS = frozenset(
    {
        "org.freedesktop.DBus.Error.AccessDenied",
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
        "org.freedesktop.DBus.Error.AuthFailed",
    }
)
_NOBODY = frozenset(
    {
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
        "org.freedesktop.DBus.Error.Disconnected",
    }
)
_WRONG = (
    *(DBusFastError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
    *(struct.error, MemoryError, RecursionError),
)
"""What the library raises for an answer that is none: it meets bytes that nobody checked."""
REMEDY = 'see systemctl status dbus; or use [pin] allow = ["threads"]'

logging.getLogger("dbus_fast").addHandler(logging.NullHandler())
logging.getLogger("dbus_fast").propagate = False


class Bus:
    """A bus by its address, and how long one call may take: `deadline_s`, and no longer than
    `left` says."""

    def __init__(
        self,
        address: str = ADDRESS,
        deadline_s: float = BUS_CALL_S,
        left: TimeLeft | None = None,
    ) -> None:
        self.address, self._deadline_s = address, deadline_s
        self._left = left or TimeLeft()

    def call(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
        *,
        returns: str = "",
        destination: str = SYSTEMD,
        fds: Sequence[int] = (),
    ) -> tuple[object, ...]:
        """The answer's values; Variants inside are opened. `returns`: the signature it must have;
        `fds`: descriptors that the body names by their place (type h).

        Raises GoneError (no such unit or object), RightsError, UnavailableError (nobody is there to
        ask), ActError for every other answer, and for none.
        """
        what = f"{interface.rpartition('.')[2]}.{member}"
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
            unix_fds=list(fds),
        )
        deadline_s = self._left.of(self._deadline_s)
        try:
            answer = asyncio.run(self._ask(message, deadline_s))
        except TimeoutError as error:
            raise ActError(
                f"D-Bus: {what} was not answered within {deadline_s:.3g} s", REMEDY
            ) from error
        except (OSError, EOFError, AuthError) as error:
            why = getattr(error, "strerror", None) or str(error) or "it hung up"
            raise UnavailableError(f"D-Bus: {self.address}: {_cut(why)}", REMEDY) from error
        except _WRONG as error:
            raise ActError(
                f"D-Bus: {what}: the answer is not to be understood ({_cut(repr(error))})", REMEDY
            ) from error
        if answer is None:
            raise ActError(f"D-Bus: {what} was not answered", REMEDY)
        if answer.message_type is MessageType.ERROR:
            raise _explained(what, answer)
        if answer.signature != returns:
            raise ActError(
                f"D-Bus: {what} answered with signature {_cut(answer.signature)!r}, "
                f"expected {returns!r}",
                REMEDY,
            )
        return tuple(_open(value) for value in answer.body)

    async def _ask(self, message: Message, deadline_s: float) -> Message | None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        passes = bool(message.unix_fds)
        async with asyncio.timeout(deadline_s):
            bus = await MessageBus(self.address, BusType.SYSTEM, negotiate_unix_fd=passes).connect()
            try:
                asked = asyncio.ensure_future(bus.call(message))
                gone = bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
                ended = asyncio.ensure_future(gone)
                try:
                    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if asked.done():
                        return asked.result()
                    ended.result()
                    raise EOFError("it hung up")
                finally:
                    asked.cancel()
                    ended.cancel()
            finally:
                bus.disconnect()

    def get(self, path: str, interface: str, name: str) -> object:
        """One property."""
        (value,) = self.call(path, PROPERTIES, "Get", "ss", (interface, name), returns="v")
        return value


def _open(value: object) -> object:
    return value.value if isinstance(value, Variant) else value


def _explained(what: str, answer: Message) -> ActError | RightsError | UnavailableError:
    said = answer.body[0] if answer.body and isinstance(answer.body[0], str) else ""
    name = answer.error_name or ""
    text = _cut(said or name)
    if name in _GONE:
        return GoneError(f"systemd: {text}")
    if name in _RIGHTS:
        return RightsError(f"D-Bus: {what} was refused: {text}", "run the actor as root")
    if name in _NOBODY or name.startswith("org.freedesktop.DBus.Error.Spawn."):
        return UnavailableError(f"D-Bus: nobody answers {what}: {text}", REMEDY)
    return ActError(f"D-Bus: {what} failed: {text}")


def _cut(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 3] + "..."
