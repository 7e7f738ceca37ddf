"""In a machine: on which node each page of a process's memory is; one JSON object.

    pages.py PID [MIN_KIB]

Every writable private mapping of at least MIN_KIB (1024), asked page by page with move_pages(2)
without nodes, which moves nothing. `nodes`: pages by node; `absent`: pages without memory;
`errors`: pages by errno; `policy`: the mapping's policies, of numa_maps.
"""

import ctypes
import json
import os
import pathlib
import sys

CHUNK = 16384
ENOENT = 2


def mappings(pid: int, min_bytes: int) -> list[range]:
    page = os.sysconf("SC_PAGE_SIZE")
    found = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        bounds, rights, *_ = line.split()
        low, high = (int(x, 16) for x in bounds.split("-"))
        if rights == "rw-p" and high - low >= min_bytes:
            found.append(range(low, high, page))
    return found


def main(pid: int, min_bytes: int) -> None:
    library = ctypes.CDLL("libnuma.so.1", use_errno=True)
    nodes: dict[str, int] = {}
    errors: dict[str, int] = {}
    absent = 0
    for mapping in mappings(pid, min_bytes):
        for at in range(0, len(mapping), CHUNK):
            addresses = mapping[at : at + CHUNK]
            count = len(addresses)
            pages = (ctypes.c_void_p * count)(*addresses)
            status = (ctypes.c_int * count)(*([-999] * count))
            if library.move_pages(pid, ctypes.c_ulong(count), pages, None, status, 0) < 0:
                sys.exit(f"move_pages: {os.strerror(ctypes.get_errno())}")
            for one in status:
                if one >= 0:
                    nodes[str(one)] = nodes.get(str(one), 0) + 1
                elif one == -ENOENT:
                    absent += 1
                else:
                    errors[os.strerror(-one)] = errors.get(os.strerror(-one), 0) + 1
    maps = pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    policy = sorted({line.split()[1] for line in maps})
    print(json.dumps({"nodes": nodes, "absent": absent, "errors": errors, "policy": policy}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) * 1024 if len(sys.argv) > 2 else 1 << 20)
