"""What stays out of a snapshot of the code: tests, keys and passwords, data, what can't be read."""

import errno
import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

TESTS = "tests/"
"""No run reads them, and they are 40 % of the files: run folders count against quotas of files."""

MAX_CODE = 20 * 2**20
"""Bytes; a file that git does not track and that is as large is taken for data."""

SECRET = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.ppk"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials*", "secrets.*"),
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".gcloud"),
)
"""Names of files and folders that commonly hold keys or passwords; upper and lower case are the same."""


def secret(name: str) -> bool:
    """Whether a path below the project looks as if it held keys or passwords."""
    parts = [part.lower() for part in PurePath(name).parts]
    return any(fnmatchcase(part, pattern) for part in parts for pattern in SECRET)


def special(mode: int) -> str:
    """What a path is that is neither file, folder nor link, as a clause; empty for those."""
    kinds = {
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
        "a device": lambda m: stat.S_ISBLK(m) or stat.S_ISCHR(m),
    }
    return next((f"it is {kind}" for kind, fits in kinds.items() if fits(mode)), "")


def why_not_copied(root: Path, name: str) -> str:
    """Why a path can't or must not be copied; empty if it may be.

    Args:
        name: the path, relative to `root`.
    """
    path = root / name
    try:
        linked = os.readlink(path) if path.is_symlink() else ""
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # just deleted, or a broken link
            return ""
        return f"it can't be read ({error.strerror})"
    if secret(name) or secret(linked):
        return "it may hold keys or passwords"
    readable = os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK)
    return special(mode) or ("" if readable else "it can't be read (Permission denied)")


def why_data(root: Path, name: str) -> str:
    """Why a path that git does not track is taken for data; empty if it is code."""
    path = root / name
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISREG(status.st_mode) and status.st_size >= MAX_CODE:
        return f"larger than {MAX_CODE >> 20} MiB"
    return "a link to a folder" if stat.S_ISLNK(status.st_mode) and path.is_dir() else ""
