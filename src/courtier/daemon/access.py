"""Who may do what: a job is its owner's, and an administrator's. The one place where that is decided.

Administrators are root, the broker's own user, and the members of the group that the setting `admin_group` names.
A caller without a peer came over TCP and showed the token, which only the broker's user can read.
"""

import grp
import os
import pwd
from dataclasses import dataclass

from courtier.api.backend import ApiError
from courtier.api.peer import Peer, user_name
from courtier.domain.workloads import Job, JobSpec
from courtier.engine.ports import Owner, PortError


def owner_of(spec: JobSpec) -> Owner | None:
    """Whom the job's processes run as; None: the broker's own user. Raises PortError when that cannot be done."""
    own = os.geteuid()
    if spec.uid == own:
        return None
    if own != 0:
        # Only root can start processes of somebody else; root's own submits to a user's broker run as that user.
        return None
    try:
        entry = pwd.getpwuid(spec.uid)
    except KeyError:
        if spec.gid is None:
            raise PortError("user_unknown", f"user {spec.user} ({spec.uid}) is not known here any more") from None
        return Owner(spec.uid, spec.gid, (spec.gid,))
    return Owner(spec.uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


@dataclass(frozen=True, slots=True)
class Viewer:
    """One caller, for the time of one request. uid None: he showed the token."""

    uid: int | None
    user: str
    gid: int | None
    admin: bool

    def owns(self, job: Job) -> bool:
        """Whether the job's secrets are his to see, and the job his to change."""
        return self.admin or job.spec.uid == self.uid

    def require_owner(self, job: Job) -> None:
        """Raises ApiError."""
        if not self.owns(job):
            owner = job.spec.user
            text = f"job {job.id} is {owner}'s: only {owner} and administrators may do that"
            raise not_allowed(text, job=job.id, user=owner)

    def require_admin(self, what: str) -> None:
        """Raises ApiError."""
        if not self.admin:
            raise not_allowed(f"{what} is for administrators only (root, and the group of the setting admin_group)")


def viewer_of(peer: Peer | None, admin_group: str) -> Viewer:
    """Who calls, and whether he is an administrator."""
    if peer is None:
        return Viewer(None, user_name(os.geteuid()), None, admin=True)
    admin = peer.uid in (0, os.geteuid()) or (bool(admin_group) and _in_group(peer, admin_group))
    return Viewer(peer.uid, peer.user, peer.gid, admin)


def _in_group(peer: Peer, group: str) -> bool:
    try:
        wanted = grp.getgrnam(group).gr_gid
        return wanted in os.getgrouplist(peer.user, peer.gid)
    except (KeyError, OSError):
        return False


def not_allowed(text: str, **numbers: int | str) -> ApiError:
    return ApiError("not_allowed", text, exit_code=4, status=403, numbers=numbers)
