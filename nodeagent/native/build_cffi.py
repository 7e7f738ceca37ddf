"""Writes the C source of one cffi module (API mode) from header files that are plain cdefs.

usage: build_cffi.py MODULE OUTPUT HEADER...

A header read here holds only what cffi's parser takes: integer #defines, structs, enums and
prototypes,
and `extern "Python"` blocks between `/* cffi-only` and `*/`. Lines with `#include`, `#if` and the
like, and `#pragma`, are left out, so that C can guard the same file.
"""

import pathlib
import re
import sys

from cffi import FFI


def cdef_of(text: str) -> str:
    """The part of a header that cffi parses: no preprocessor lines but integer #defines."""
    text = re.sub(r"/\* cffi-only(.*?)\*/", r"\1", text, flags=re.S)
    kept = []
    for line in text.splitlines():
        define = re.match(r"\s*#\s*define\s+\w+\s+(\S.*)$", line)
        if line.lstrip().startswith("#"):
            if define and re.match(
                r"\(?-?(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\)?\s*(/\*.*)?$", define[1]
            ):
                kept.append(re.sub(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]+", r"\1", line))
            continue
        kept.append(line)
    return "\n".join(kept)


def main() -> None:
    """Reads the headers, emits the C file."""
    module, output, *headers = sys.argv[1:]
    ffi = FFI()
    for header in headers:
        ffi.cdef(cdef_of(pathlib.Path(header).read_text()))
    includes = "\n".join(f'#include "{pathlib.Path(h).name}"' for h in headers)
    ffi.set_source(module, includes)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main()
