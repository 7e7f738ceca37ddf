"""TOML that a person wrote, as a document; what is none is one sentence with its line."""

from __future__ import annotations

import re
import tomllib

from nodeagent.errors import ConfigError

MAX_PARTS = 64
"""Parts of a dotted key, or names in a table's heading."""
_PART = r"(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_DEEP = re.compile(
    rf"^[ \t]*\[{{0,2}}[ \t]*{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_PARTS}}}"
    rf"|(?<![\w.-])[\w-]+(?:[ \t]*\.[ \t]*[\w-]+){{{MAX_PARTS}}}",
    re.MULTILINE,
)


def document(text: str, path: str, remedy: str) -> dict[str, object]:
    """The file's tables. Raises ConfigError."""
    if (deep := _DEEP.search(text)) is not None:
        # tomllib walks from the top again for each part of such a key: minutes, and gigabytes.
        line = text.count("\n", 0, deep.start()) + 1
        raise ConfigError(f"{path}:{line}: a key of more than {MAX_PARTS} parts", remedy)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(where[1]) if where else max(1, text.count("\n") + (not text.endswith("\n")))
        said = re.sub(r"\s*\(at [^)]*\)$", "", str(error))
        raise ConfigError(
            f"{path}:{line}: not TOML: {said[:1].lower()}{said[1:]}", remedy
        ) from error
    except RecursionError:
        raise ConfigError(f"{path}: values nested too deep to be read", remedy) from None
    except ValueError as error:
        # Numbers and dates that TOML's grammar allows and Python cannot hold.
        raise ConfigError(
            f"{path}: a value that cannot be held: {_first(error)}", remedy
        ) from error


def _first(error: ValueError) -> str:
    said = str(error).partition(";")[0].partition(":")[0]
    return said[:1].lower() + said[1:]
