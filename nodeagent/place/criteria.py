"""Which processes a [[workload]] is, and which threads its roles: text becomes values. Pure."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import msgspec

from nodeagent.model.placement import Match, Role
from nodeagent.place.engines import WORKLOAD_ENGINES, Engine, usual_roles
from nodeagent.place.tables import Lines, MatchTable, Place, RoleTable, WorkloadTable

MAX_CPUS = 1 << 13
MAX_ROLES = 16
MAX_COMM = 15
"""Bytes of a thread's name. Source: TASK_COMM_LEN in include/linux/sched.h."""
MAX_UID = (1 << 32) - 2
"""-1 is nobody at all. Source: chown(2)."""
MAX_PATTERN = 1024
"""Characters of a pattern or regular expression."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_WORDS = "1 to 64 letters, digits, '.', '_' or '-'"
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}\$?")
"""As useradd(8) and directory services have them."""
_WHO = ("title", "cmdline", "comm", "pid")
"""Criteria that say which program it is: any of them replaces what the engine says."""


def name_of(at: Place, key: str, name: str, lines: Lines) -> None:
    """Raises ConfigError for what is no name."""
    if not _NAME.fullmatch(name):
        lines.saw(at, key, name, _NAME_WORDS)


# ---- which processes ----------------------------------------------------------------------------


def match_of(at: Place, table: WorkloadTable, engine: Engine | None, lines: Lines) -> Match:
    """The workload's own criteria, and the engine's where it has none. Raises ConfigError."""
    told = table.match or MatchTable()
    given = {k: v for k, v in msgspec.structs.asdict(told).items() if v is not None}
    if engine is not None and engine.cmdline is not None and not any(k in given for k in _WHO):
        given["cmdline"] = engine.cmdline
    if not given:
        keys = ", ".join(MatchTable.__struct_fields__)
        if engine is not None:
            lines.fail(
                at,
                "engine",
                f"workload {table.name} matches nothing: {engine.name} is a library, and its "
                "processes are called as their program likes",
                f"give match one of: {keys}",
            )
        if table.match is None:
            lines.fail(
                at,
                None,
                "a workload without 'match'",
                f"add match = {{ ... }} with one of: {keys}; or an engine, one of: "
                + ", ".join(WORKLOAD_ENGINES),
            )
        lines.fail(
            at,
            "match",
            f"workload {table.name} matches nothing: its match is empty",
            f"give one of: {keys}",
        )
    for key, value in given.items():
        if isinstance(value, str):
            _pattern(at, f"match.{key}", value, lines)
    if told.comm is not None:
        _comm(at, "match.comm", (told.comm,), lines)
    if told.cmdline is not None:
        _regex(at, told.cmdline, lines)
    if told.label is not None and not told.label.partition("=")[0].strip():
        lines.saw(at, "match.label", told.label, "KEY=VALUE, e.g. app=vllm")
    if told.label is not None and "=" not in told.label:
        lines.saw(at, "match.label", told.label, "KEY=VALUE, e.g. app=vllm")
    if told.user is not None:
        given |= _user(at, told.user, lines)
    if told.pid is not None and not 1 <= told.pid < 1 << 22:
        lines.saw(at, "match.pid", told.pid, "a process number from 1 to 4194303", "correct it")
    return Match(**given)


def _user(at: Place, told: str | int, lines: Lines) -> dict[str, str | int]:
    """A number is known here; a name's is looked up where the file is read."""
    name = str(told)
    if not name.isdecimal():
        if not _USER.fullmatch(name):
            lines.saw(at, "match.user", name, "a user's name or number; it is no pattern")
        return {"user": name}
    if int(name) > MAX_UID:
        lines.saw(at, "match.user", name, f"a user's number up to {MAX_UID}")
    return {"user": name, "uid": int(name)}


def _pattern(at: Place, key: str, text: str, lines: Lines) -> None:
    name = key.rpartition(".")[2]
    if not text.strip():
        lines.fail(at, key, f"{name} is empty and would match everything", f"fill {name}")
    if len(text) > MAX_PATTERN:
        lines.fail(
            at, key, f"{name} has {len(text)} characters, expected at most {MAX_PATTERN}", "cut it"
        )


def _comm(at: Place, key: str, patterns: Sequence[str], lines: Lines) -> None:
    """A longer name is never seen: pthread_setname_np refuses it, prctl cuts it."""
    for pattern in patterns:
        fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0].encode()
        if len(fixed) > MAX_COMM:
            cut = fixed[:MAX_COMM].decode("utf-8", "ignore")
            lines.fail(
                at,
                key,
                f"comm: {pattern!r} begins with {len(fixed)} bytes, and the kernel keeps "
                f"{MAX_COMM} of a thread's name: it would never fit",
                f'write comm = "{cut}"',
            )


def _regex(at: Place, text: str, lines: Lines) -> None:
    try:
        with warnings.catch_warnings():
            # What a later Python may read otherwise is no news for stderr.
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        lines.saw(
            at,
            "match.cmdline",
            text,
            f"a regular expression ({error})",
            "escape special characters with a backslash, in single quotes",
        )


# ---- roles --------------------------------------------------------------------------------------


def roles_of(
    index: int, table: WorkloadTable, engine: Engine | None, cpus: int, lines: Lines
) -> tuple[Role, ...]:
    """The workload's own roles, else the engine's usual ones. Raises ConfigError."""
    if not table.role:
        shared = table.sharing == "shared"
        return usual_roles(engine, cpus) if engine is not None and not shared else ()
    if len(table.role) > MAX_ROLES:
        lines.fail(
            ("role", index, MAX_ROLES),
            None,
            f"{len(table.role)} roles, expected at most {MAX_ROLES}",
            "join some",
        )
    roles: list[Role] = []
    for n, told in enumerate(table.role):
        at: Place = ("role", index, n)
        role = _role(at, told, engine, lines)
        for before in roles:
            if before.name == role.name:
                lines.fail(
                    at, "name", f"a second role {role.name!r} of workload {table.name}", "rename it"
                )
            if _criteria(before) == _criteria(role):
                lines.fail(
                    at,
                    None,
                    f"role {role.name} fits the same threads as role {before.name}, and a thread "
                    "has one role",
                    "make the two differ, or join them",
                )
        roles.append(role)
    taken = sum(r.cpus for r in roles)
    if taken > cpus:
        lines.fail(
            ("role", index, len(roles) - 1),
            "cpus",
            f"the roles of workload {table.name} want {taken} PUs, and it has {cpus}",
            f"cpus = {taken} for the workload, or fewer for a role",
        )
    return tuple(roles)


def _role(at: Place, told: RoleTable, engine: Engine | None, lines: Lines) -> Role:
    name_of(at, "name", told.name, lines)
    if not 1 <= told.cpus <= MAX_CPUS:
        lines.saw(at, "cpus", told.cpus, f"a number of CPUs from 1 to {MAX_CPUS}")
    for key in ("title", "comm", "parent"):
        text = getattr(told, key)
        if text is not None:
            _pattern(at, key, text, lines)
    if told.comm is not None:
        _comm(at, "comm", told.comm.split("|"), lines)
    role = Role(
        name=told.name,
        cpus=told.cpus,
        title=told.title,
        comm=told.comm,
        main=told.main,
        parent=told.parent,
    )
    if any(c is not None for c in _criteria(role)):
        return role
    parts = engine.parts if engine is not None else ()
    part = next((p for p in parts if p.name == told.name), None)
    if part is not None:
        return part.role(told.cpus)
    known = ", ".join(p.name for p in parts)
    return lines.fail(
        at,
        "name",
        f"role {told.name} says of no thread that it is one: it has none of title, comm, main, "
        "parent" + (f", and {engine.name} knows no such part" if engine is not None else ""),
        f"one of {engine.name}'s parts ({known}), or comm = ..."
        if engine is not None
        else 'give it one, e.g. comm = "cuda*" or main = true',
    )


def _criteria(role: Role) -> tuple[str | bool | None, ...]:
    return role.title, role.comm, role.main, role.parent
