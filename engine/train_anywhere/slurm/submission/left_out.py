"""What stays out of a snapshot of the code: tests, keys and passwords, data, what can't be read."""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

UNREAD = ("tests/", "engine/tests/", "engine/benchmarks/", "wheels/")
"""Folders that no run reads. They are half of the files, and run folders count against quotas of files."""

MAX_CODE = 20 * 2**20
"""Bytes; a file that git does not track and that is as large is taken for data."""

SECRET = (
    # variables and settings of programs
    *(".env", ".env.*", "*.env", ".envrc*", ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".htpasswd"),
    *(".git-credentials", ".npmrc", ".pypirc", ".sentryclirc", ".*apirc", ".synapseconfig", ".modal.toml", ".comet.config"),
    *("clearml.conf", ".vault-token", ".vault[-_]pass*", "vault.yml", "vault.yaml", ".s3cfg", ".boto", ".passwd-s3fs", "*rclone.conf"),
    *(".databrickscfg", ".dockercfg", "kaggle.json", "kubeconfig*", "*.kubeconfig", "krb5cc_*", "*.keytab", "*.tfstate", "*.tfstate.*"),
    *("*.tfvars", ".terraformrc", ".*_history", "rootkey.csv", "*accesskeys.csv"),
    # keys
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdb", "*.kdbx", "*.gpg", "*.pgp", "*.asc", "*.age", "*.ppk"),
    *("*.ovpn", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "ssh_host_*", "*private[-_]key*", "*api[-_]key*", "*apikey*"),
    *("*[-_]key", "*[-_]key.txt", "*[-_]key.json", "*service[-_]account*", "*serviceaccount*", "*firebase-adminsdk*"),
    # tokens and passwords
    *("token", "token.*", ".token*", "*.token", "*[-_]token", "*[-_]token.txt", "*[-_]token.json", "*hf[-_]token*", "client_secret*"),
    *("secret", "secret.*", "secrets", "secrets.*", ".secret*", "*.secret", "*.secrets", "*[-_]secret", "*[-_]secret.*", "*[-_]secrets*"),
    *("*password", "*password.*", "*passwords", "*passwords.*", "passwd", "credentials*", ".credentials*", "*[-_.]credentials*"),
    # folders; a pattern with a slash is one of the whole path
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".gcloud", ".oci", ".huggingface", ".kaggle", ".wandb", ".password-store"),
    *(".globus", ".irods", ".mc", ".terraform", ".config", "/auth.json", "*/containers/auth.json", "*/gh/hosts.yml"),
    "*/.dvc/config.local",
)  # fmt: skip
"""Names of files and folders that commonly hold keys or passwords; upper and lower case are the same."""

FOLDERS = (*(pattern for pattern in SECRET if pattern[0] == "."), "secret", "secrets", "credentials*")
"""Those that a folder may have: all files below it are left out."""

CODE = (".py", ".pyi")
"""Endings of code: token.py is no token. Below a hidden folder it is not copied either."""


def secret(name: str) -> bool:
    """Whether a path below the project looks as if it held keys or passwords."""
    *folders, last = [part.lower() for part in PurePath(name).parts] or [""]
    code = last.endswith(CODE)
    whole = "/".join(["", *folders, last])
    return any(fnmatchcase(f, p) for f in folders for p in FOLDERS if p[0] == "." or not code) or (
        not code and any(fnmatchcase(whole if "/" in p else last, p) for p in SECRET)
    )


def group_reads(root: Path, names: Iterable[str]) -> bool:
    """Whether the group may read most of these files, and would a new one: with umask 077 it may read none."""
    mask = os.umask(0o077)
    os.umask(mask)
    modes = [os.stat(root / name).st_mode for name in names if os.path.isfile(root / name)]
    return not mask & stat.S_IRGRP and 2 * sum(bool(mode & stat.S_IRGRP) for mode in modes) > len(modes)


def why_private(root: Path, name: str) -> str:
    """Why a path is private: its group can't read it or enter a folder above; empty if it can, and for code."""
    path = root / name
    with suppress(OSError):  # just deleted, or a broken link
        for folder in [f for f in path.parents if f != root and f.is_relative_to(root)]:
            if not folder.stat().st_mode & stat.S_IXGRP and not name.lower().endswith(CODE):
                return f"the group can't enter {folder.relative_to(root)} (chmod g+x)"
        if not path.stat().st_mode & stat.S_IRGRP and not name.lower().endswith(CODE):
            return "the group can't read it (chmod g+r)"
    return ""


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
