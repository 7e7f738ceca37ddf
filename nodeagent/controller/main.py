"""nodeagent-controller: the fleet's memory as a process."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import re
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
import grpc
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from nodeagent.api.v1 import controller_pb2_grpc
from nodeagent.controller.service import ControllerService, Fleet, FleetService
from nodeagent.controller.store import MAX_EVENTS, Store
from nodeagent.errors import ConfigError, NodeagentError, UnavailableError, UsageError, sentence
from nodeagent.given import read_given
from nodeagent.rpc import options
from nodeagent.rpc.wire import Message
from nodeagent.streams import stand_in

DEFAULT_STATE_DIR = "/var/lib/nodeagent-controller"
SERVICES = ("nodeagent.api.v1.ControllerService", "nodeagent.api.v1.FleetService")
GRACE_S = 2.0
"""How long open calls may take to end at SIGTERM."""
MAX_CALLS = 8192
EXIT_USAGE = 64
EXIT_FAULT = 70

_log = logging.getLogger("nodeagent.controller")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration file (TOML). The command line goes before it."""

    listen: str = options.DEFAULT_CONTROLLER
    """Address and port; port 0: any free one."""
    state_dir: str = DEFAULT_STATE_DIR
    """Folder of the store."""
    max_events: int = MAX_EVENTS
    """Events kept; beyond it the oldest go."""


MAX_CONFIG = 1 << 20
"""Bytes of the configuration file."""


def read_settings(path: str | None) -> Settings:
    """The settings of a file; the defaults for none. Raises ConfigError."""
    if path is None:
        return Settings()
    remedy = "it may hold listen, state_dir and max_events"
    try:
        data = read_given(path, MAX_CONFIG)
        if len(data) > MAX_CONFIG:
            raise ConfigError(f"{path}: over {MAX_CONFIG} bytes, expected settings", remedy)
        text = data.decode()
        settings = msgspec.toml.decode(text, type=Settings)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", remedy) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error.reason} at byte {error.start}", remedy) from error
    except msgspec.DecodeError as error:
        said = str(error)
        raise ConfigError(
            f"{path}{_line(text, said)}: {said[:1].lower()}{said[1:]}", remedy
        ) from error
    except (RecursionError, ValueError) as error:
        # Nesting without end, a number of thousands of digits.
        raise ConfigError(f"{path}: {str(error).partition(';')[0]}", remedy) from error
    if settings.max_events < 1000:
        raise ConfigError(
            f"{path}: saw max_events = {settings.max_events}, expected at least 1000", remedy
        )
    return settings


def _line(text: str, said: str) -> str:
    """`:LINE` of the setting or place that an error names; "" when it names none."""
    if named := re.search(r"at line (\d+)", said):
        return f":{named[1]}"
    if "end of document" in said:
        return f":{text.count(chr(10)) + 1}"
    if named := re.search(r"unknown field `(\w+)`|`\$\.(\w+)`", said):
        key = named[1] or named[2]
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(rf"\s*{key}\s*=", line):
                return f":{number}"
    return ""


def check_listen(text: str) -> str:
    """HOST:PORT as gRPC takes it. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 65536):
        raise UsageError(
            f"--listen: saw {text!r}, expected HOST:PORT", f"--listen {options.DEFAULT_CONTROLLER}"
        )
    return text


async def serve(
    store: Store, listen: str, *, port_file: pathlib.Path | None, stop: asyncio.Event
) -> None:
    """Serves agents and people until `stop` is set.

    Raises UnavailableError when the address cannot be had.
    """
    server = grpc.aio.server(options=options.CONTROLLER_SERVER, maximum_concurrent_rpcs=MAX_CALLS)
    fleet = Fleet(store)
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(ControllerService(fleet), server)
    controller_pb2_grpc.add_FleetServiceServicer_to_server(FleetService(fleet), server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection(
        (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    host = listen.rpartition(":")[0]
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise UnavailableError(
            f"{listen}: this address cannot be had: it is in use, or not of this machine",
            f"ss -ltnp 'sport = :{listen.rpartition(':')[2]}' shows who has it; or --listen "
            f"{host}:0 for any free port",
        ) from error
    await set_health(checks, serving=True)
    loop = asyncio.get_running_loop()

    def trouble(why: str) -> None:
        if why:
            _log.error("the store refuses, nothing is acknowledged reason=%s", why)
        else:
            _log.info("the store works again")
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(set_health(checks, serving=not why), loop)
        if store.failed:
            loop.call_soon_threadsafe(stop.set)

    store.on_trouble(trouble)
    await server.start()
    if port_file is not None:
        fresh = port_file.with_name(f".{port_file.name}.new")
        fresh.write_text(f"{host}:{port}\n")
        fresh.replace(port_file)
    click.echo(f"nodeagent-controller listens on {host}:{port}")
    notify("READY=1", f"STATUS=listens on {host}:{port}")
    await stop.wait()
    notify("STOPPING=1")
    _log.info("stopping")
    await checks.enter_graceful_shutdown()
    await server.stop(GRACE_S)


async def set_health(checks: Message, *, serving: bool) -> None:
    """What the gRPC health service answers."""
    status = health_pb2.HealthCheckResponse
    value = status.SERVING if serving else status.NOT_SERVING
    for name in ("", *SERVICES):
        await checks.set(name, value)


def notify(*lines: str) -> None:
    """Tells systemd, where it asks to be told. Source: sd_notify(3)."""
    if "NOTIFY_SOCKET" in os.environ:
        from cysystemd.daemon import sd_notify

        sd_notify("\n".join(lines))


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:     nodeagent-controller --listen 127.0.0.1:7440 --state-dir /srv/fleet\n"
    "Exit codes:  0 stopped by a signal; 3 could not start; 64 wrong usage, 70 our own fault",
)
@click.option("--listen", metavar="HOST:PORT", help=f"[default: {options.DEFAULT_CONTROLLER}]")
@click.option("--state-dir", metavar="DIR", help=f"[default: {DEFAULT_STATE_DIR}]")
@click.option("--config", metavar="FILE", help="TOML: listen, state_dir, max_events.")
@click.option(
    "--port-file",
    metavar="FILE",
    type=click.Path(path_type=pathlib.Path),
    help="Write HOST:PORT there once it listens (for port 0).",
)
@click.version_option(package_name="nodeagent")
def command(
    listen: str | None,
    state_dir: str | None,
    config: str | None,
    port_file: pathlib.Path | None,
) -> None:
    """Take the reports of nodeagentd on many nodes, keep them, answer `nodeagentctl fleet`."""
    settings = read_settings(config)
    address = check_listen(listen or settings.listen)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    if address.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]"):
        _log.warning("traffic is not encrypted: keep this address inside a trusted network")
    store = Store.open(state_dir or settings.state_dir, max_events=settings.max_events)
    try:
        asyncio.run(_until_signal(store, address, port_file))
    finally:
        store.close()
    if store.failed:
        # systemd starts it again; what was not acknowledged is sent again.
        raise AssertionError(store.trouble)


async def _until_signal(store: Store, listen: str, port_file: pathlib.Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(store, listen, port_file=port_file, stop=stop)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `nodeagent-controller`."""
    stand_in()
    try:
        command.main(args=argv, prog_name="nodeagent-controller", standalone_mode=False)
    except NodeagentError as error:
        _fail(str(error), error.remedy, error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), "nodeagent-controller --help", EXIT_USAGE)
    except Exception as error:
        if os.environ.get("NODEAGENT_TRACEBACK"):
            raise
        _fail(
            f"nodeagent-controller met its own fault: {type(error).__name__}: {error}",
            "run it again with NODEAGENT_TRACEBACK=1 and report what it prints",
            EXIT_FAULT,
        )


def _fail(message: str, remedy: str, code: int) -> NoReturn:
    click.echo(f"error: {sentence(message)}", err=True)
    if remedy:
        click.echo(f"remedy: {sentence(remedy)}", err=True)
    sys.exit(code)
