"""One group more on a file than its mode has room for: a POSIX access ACL.

Source: acl(5); include/uapi/linux/posix_acl_xattr.h for the bytes, posix_acl.h for the tags.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

NAME = "system.posix_acl_access"
_VERSION = 2
_USER_OBJ, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF


def let_group(path: str | os.PathLike[str], gid: int) -> None:
    """Gives one more group what the file's own group may; others as the mode says. Raises OSError
    (ENOTSUP: a file system without ACLs)."""
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    group = mode >> 3 & 7
    entries = (
        (_USER_OBJ, mode >> 6 & 7, _NO_ID),
        (_GROUP_OBJ, group, _NO_ID),
        (_GROUP, group, gid),
        (_MASK, group, _NO_ID),
        (_OTHER, mode & 7, _NO_ID),
    )
    data = struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *e) for e in entries)
    os.setxattr(path, NAME, data)
