"""Where a folder really lies. A store on a network file system can lose locks and writes, so it is refused."""

import os
from pathlib import Path

from courtier.engine.ports import PortError

NETWORK_TYPES = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "ocfs2",
        "gfs2",
        "9p",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.ceph",
        "fuse.rclone",
        "fuse.gcsfuse",
        "fuse.juicefs",
    }
)


def filesystem_type(path: Path, mountinfo: str) -> str | None:
    """The type of the mount that holds the path, by /proc/self/mountinfo; later mounts cover earlier ones."""
    real = os.path.realpath(path)
    best, kind = "", None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def refuse_network_filesystem(path: Path, mountinfo: str | None = None) -> None:
    """Raises PortError when the folder lies on a network file system."""
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
    kind = filesystem_type(path, mountinfo)
    if kind in NETWORK_TYPES:
        raise PortError(
            "network_filesystem",
            f"{path} lies on a network file system ({kind}), where locks and fsync can not be relied on: "
            "set COURTIER_HOME to a folder on a local disk",
        )
