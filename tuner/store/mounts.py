"""Whether a folder lies on a network file system, where SQLite cannot keep many writers apart."""

from __future__ import annotations

import os
import re
from pathlib import Path

# As Linux names them. SQLite's write-ahead log needs memory that all its users share, which hosts
# do not, and its locks are as good as the server's.
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|afs|ceph|lustre|gpfs|beegfs|glusterfs"
    r"|fuse\.(glusterfs|sshfs|ceph|s3fs|gcsfuse|rclone|juicefs|blobfuse2?)"
)
_MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The kind of the network file system that `path` lies on; None if it is none, or unknown.

    Args:
        mounts: instead of the mounts of this process.
    """
    try:
        lines = (mounts or _MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    place = Path(os.path.realpath(path))
    found: tuple[int, str] = (0, "")
    for line in lines:
        # "36 35 98:0 / /mnt rw shared:1 - ext4 /dev/root rw"; of two on one place the later counts
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        if len(point.parts) >= found[0] and place.is_relative_to(point):
            found = len(point.parts), after.split(" ")[0]
    return found[1] if _NETWORK.fullmatch(found[1]) else None
