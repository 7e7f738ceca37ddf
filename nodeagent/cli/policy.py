"""--policy FILE: reads it, once, with a bound."""

from __future__ import annotations

import datetime

from nodeagent.check.policy import Policy
from nodeagent.errors import ConfigError


def read_policy(path: str | None) -> Policy:
    """The policy in that file; the built-in one for None. Raises ConfigError (exit 64)."""
    if path is None:
        return Policy()
    # Here: what reads a TOML file is as large as all else that judges a machine without one.
    from nodeagent.check.policyfile import MAX_BYTES, REMEDY, parse
    from nodeagent.given import read_given

    try:
        data = read_given(path, MAX_BYTES)
        text = data.decode()
    except OSError as error:
        raise ConfigError(
            f"{path}: the policy file cannot be read: {error.strerror}", "give a readable file"
        ) from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", REMEDY) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path}: larger than {MAX_BYTES >> 20} MiB, expected a policy file", REMEDY
        )
    return parse(text, path, datetime.datetime.now(datetime.UTC).date())
