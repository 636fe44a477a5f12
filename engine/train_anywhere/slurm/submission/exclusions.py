"""Decide what a snapshot of the code excludes: tests, keys and passwords, data, unreadable files."""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

MAX_CODE = 20 * 2**20
"""Size in bytes from which a file that git does not track is taken for data."""

SECRET_NAMES = (
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
    # folders; a pattern with a slash is matched against the whole path
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".gcloud", ".oci", ".huggingface", ".kaggle", ".wandb", ".password-store"),
    *(".globus", ".irods", ".mc", ".terraform", ".config", "/auth.json", "*/containers/auth.json", "*/gh/hosts.yml"),
    "*/.dvc/config.local",
)  # fmt: skip
"""Names of files and folders that commonly contain keys or passwords; case does not matter."""

SECRET_FOLDERS = (
    *(pattern for pattern in SECRET_NAMES if pattern[0] == "."),
    "secret",
    "secrets",
    "credentials*",
)
"""Patterns for folders: all files below such a folder are excluded."""

CODE = (".py", ".pyi")
"""Suffixes of code: token.py is not a token. Code below a hidden folder of `SECRET_FOLDERS` is excluded too."""


def may_hold_secrets(name: str) -> bool:
    """Return whether the name of a path below the project suggests keys or passwords."""
    *folders, last = [part.lower() for part in PurePath(name).parts] or [""]
    code = last.endswith(CODE)
    whole = "/".join(["", *folders, last])
    return any(fnmatchcase(f, p) for f in folders for p in SECRET_FOLDERS if p[0] == "." or not code) or (
        not code and any(fnmatchcase(whole if "/" in p else last, p) for p in SECRET_NAMES)
    )


def is_group_readable(root: Path, names: Iterable[str]) -> bool:
    """Return whether the group may read most of these files, and new ones: with umask 077 it can't read any new file."""
    mask = os.umask(0o077)
    os.umask(mask)
    modes = [os.stat(root / name).st_mode for name in names if os.path.isfile(root / name)]
    return not mask & stat.S_IRGRP and 2 * sum(bool(mode & stat.S_IRGRP) for mode in modes) > len(modes)


def why_private(root: Path, name: str) -> str:
    """Return why a path is private: the group can't read it or enter a parent folder; empty if it can, and for code."""
    path = root / name
    with suppress(OSError):  # just deleted, or a broken link
        for folder in [f for f in path.parents if f != root and f.is_relative_to(root)]:
            if not folder.stat().st_mode & stat.S_IXGRP and not name.lower().endswith(CODE):
                return f"the group can't enter {folder.relative_to(root)} (chmod g+x)"
        if not path.stat().st_mode & stat.S_IRGRP and not name.lower().endswith(CODE):
            return "the group can't read it (chmod g+r)"
    return ""


def describe_special(mode: int) -> str:
    """Return a clause such as "it is a FIFO" for a path that is not a file, folder or link; empty for those."""
    kinds = {
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
        "a device": lambda m: stat.S_ISBLK(m) or stat.S_ISCHR(m),
    }
    return next((f"it is {kind}" for kind, fits in kinds.items() if fits(mode)), "")


def _targets(root: Path, link: Path) -> list[str]:
    """Return what a link names, and what it leads to in the end."""
    return [os.readlink(link), os.path.relpath(os.path.realpath(link), os.path.realpath(root))]


def why_not_copied(root: Path, name: str) -> str:
    """Return why a path relative to `root` can't or must not be copied; empty if it may be."""
    path = root / name
    try:
        linked = _targets(root, path) if path.is_symlink() else []
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # just deleted, or a broken link
            return ""
        return f"it can't be read ({error.strerror})"
    if any(map(may_hold_secrets, [name, *linked])):
        return "it may hold keys or passwords"
    readable = os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK)
    return describe_special(mode) or ("" if readable else "it can't be read (Permission denied)")


def why_data(root: Path, name: str) -> str:
    """Return why a path that git does not track is taken for data; empty if it is code."""
    path = root / name
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISREG(status.st_mode) and status.st_size >= MAX_CODE:
        return f"larger than {MAX_CODE >> 20} MiB"
    return "a link to a folder" if stat.S_ISLNK(status.st_mode) and path.is_dir() else ""
