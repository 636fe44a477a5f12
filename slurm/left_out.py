"""What is no code, and stays out of snapshots: keys and passwords, data, what can't be read."""

import errno
import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

BIG = 20 * 2**20
"""Bytes from which a file that git does not track is taken for data."""

SECRET = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc", ".htpasswd"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.ppk"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials*", "secrets.*"),
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".gcloud"),
)
"""Names of files and folders that commonly hold keys or passwords, in any case of letters."""


def secret(name: str) -> bool:
    """Whether a path below the project looks as if it held keys or passwords."""
    parts = [part.lower() for part in PurePath(name).parts]
    return any(fnmatchcase(part, pattern) for part in parts for pattern in SECRET)


def special(mode: int) -> str:
    """That a path is neither file, folder nor link; empty for those."""
    kinds = {
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
        "a device": lambda m: stat.S_ISBLK(m) or stat.S_ISCHR(m),
    }
    return next((f"it is {kind}" for kind, fits in kinds.items() if fits(mode)), "")


def unfit(root: Path, name: str) -> str:
    """Why a path can't or must not be copied; empty where it may be.

    Args:
        name: of the path below `root`.
    """
    path = root / name
    try:
        linked = os.readlink(path) if path.is_symlink() else ""
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # deleted meanwhile, or a link to nothing
            return ""
        return f"it can't be read ({error.strerror})"
    if secret(name) or secret(linked):
        return "it may hold keys or passwords"
    readable = os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK)
    return special(mode) or ("" if readable else "it can't be read (Permission denied)")


def data(root: Path, name: str) -> str:
    """Why a path that git does not track is taken for data; empty where it is code."""
    path = root / name
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISREG(status.st_mode) and status.st_size >= BIG:
        return f"larger than {BIG >> 20} MiB"
    return "a link to a folder" if stat.S_ISLNK(status.st_mode) and path.is_dir() else ""
