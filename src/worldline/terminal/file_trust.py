"""Files that are used because of where they lie: whether another user may have put them there, or can change them.

A `worldline.toml` on the way up names code that commands run. In a folder that others can write to, such as /tmp, it
may be theirs. So, as git does with its repositories: the file and its folder must belong to this user or to root, and
no other user may be able to write to them. With sudo, the user who called it counts too. What is refused is allowed by
`WORLDLINE_TRUSTED`, a list of folders.

A file that a person names on the command line is not checked: naming it is the consent.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

import msgspec

from worldline.base import errors
from worldline.runtime import environment

_ROOT = 0
_EVERYTHING = "*"


class User(msgspec.Struct, frozen=True):
    """Who a process runs for: the user, the one who called sudo, and the folders that are trusted all the same."""

    uid: int
    sudo_uid: int | None = None
    trusted: tuple[str, ...] = ()

    @classmethod
    def of_process(cls) -> User:
        trusted, sudo = environment.trust()
        # Only root believes the variable: sudo has set it. Another user's process could be started with anything in it.
        called_sudo = int(sudo) if os.geteuid() == _ROOT and sudo.isdecimal() else None
        return cls(os.geteuid(), called_sudo, trusted)

    def owns(self, uid: int) -> bool:
        return uid in (self.uid, _ROOT, self.sudo_uid)

    def trusts(self, path: Path) -> bool:
        return any(each == _EVERYTHING or path.is_relative_to(Path(each).resolve()) for each in self.trusted if each)


def check(path: Path, what: str, *, importable: bool = False, user: User | None = None) -> None:
    """`BadInput` if another user may have put this file or folder there. `importable`: its folder is put on Python's
    path, so that every file in it counts.
    """
    me = user or User.of_process()
    # A link and what it points to: each stands in a folder, and may be exchanged there.
    for each in dict.fromkeys((path.absolute(), path.resolve())):
        if not each.exists() or me.trusts(each):  # what is not there cannot be read; making it is up to the command
            continue
        # In /tmp others cannot replace a file, but they can put one beside it, which counts if the folder is
        # importable.
        why = _wrong(each, me, in_sticky=False) or _wrong(each.parent, me, in_sticky=not importable)
        if why:
            folder = each if each.is_dir() else each.parent
            raise errors.BadInput(
                f"{what} is not used: {why}, so it may run code as you or take your data; if that is right, set "
                f"{environment.TRUSTED}={folder}"
            )


def _wrong(path: Path, me: User, *, in_sticky: bool) -> str:
    """Why others may have written something. `in_sticky`: of a folder in which each has files of their own, such as
    /tmp, files are theirs alone.
    """
    found = path.lstat()  # the link itself: what it points to is checked on its own
    if not me.owns(found.st_uid):
        return f"{path} belongs to another user ({_name(found.st_uid)})"
    if stat.S_ISLNK(found.st_mode) or (in_sticky and found.st_mode & stat.S_ISVTX):
        return ""  # the mode of a link means nothing
    others = found.st_mode & stat.S_IWOTH
    group = found.st_mode & stat.S_IWGRP and not _is_own(found.st_gid, me)
    return f"{path} can be changed by other users (mode {stat.S_IMODE(found.st_mode):04o})" if others or group else ""


def _is_own(gid: int, me: User) -> bool:
    """Whether a group has no members but this user: systems that give each user such a group let it write to files."""
    if gid == _ROOT:  # its members can become root anyway
        return True
    try:
        user, group = pwd.getpwuid(me.uid), grp.getgrgid(gid)
    except KeyError:  # a user or group that the system does not know: so nothing is known of its members
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
