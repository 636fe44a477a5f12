import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools.testing.projects import add_submodule, commit, git, list_files, take_snapshot
from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.slurm.submission import snapshot

pytestmark = pytest.mark.git


def test_tracked_and_new_files_but_not_ignored_ones(project: Path) -> None:
    head = commit(project)
    (project / "src" / "new.py").write_text("new = 1\n")
    (project / "src" / "a.py").write_text("a = 2\n")
    taken, code = take_snapshot(project)
    assert list_files(code) == {".gitignore", "run.sh", "src/a.py", "src/new.py"}
    assert (code / "src" / "a.py").read_text() == "a = 2\n"
    assert os.access(code / "run.sh", os.X_OK)
    assert (taken.commit, taken.dirty, taken.notes) == (head, True, ())


@pytest.mark.parametrize("under_git", [True, False])
def test_the_tests_stay_behind(project: Path, under_git: bool) -> None:
    """They are not part of what runs, so editing them does not make a run dirty."""
    (project / "tests").mkdir()
    (project / "tests" / "test_a.py").write_text("a = 1\n")
    if under_git:
        commit(project)
    (project / "tests" / "test_a.py").write_text("a = 2\n")
    (project / "tests" / "test_new.py").touch()
    taken, code = take_snapshot(project)
    assert "src/a.py" in list_files(code) and not (code / "tests").exists()
    assert not taken.dirty


@pytest.mark.parametrize("under_git", [True, False])
def test_the_engine_is_copied_from_where_it_was_imported(
    project: Path, under_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine comes from an environment or the project, without tests and caches."""
    installed = project / ".venv" / "lib" / "site-packages"
    for folder in (installed / "train_anywhere", project / "engine" / "train_anywhere"):
        (folder / "slurm" / "__pycache__").mkdir(parents=True)
        (folder / "__init__.py").write_text(f"place = {str(folder)!r}\n")
        (folder / "slurm" / "python").write_text("#!/bin/bash\n")
        (folder / "slurm" / "python").chmod(0o755)
        (folder / "slurm" / "__pycache__" / "a.pyc").touch()
    (project / "engine" / "tests").mkdir()
    (project / "engine" / "tests" / "test_a.py").touch()
    (installed / "torch").mkdir()
    if under_git:
        (project / ".gitignore").write_text(".venv\n__pycache__\n")
        commit(project)
        (project / "engine" / "tests" / "test_a.py").write_text("a = 1\n")
    for engine in (installed, project / "engine"):
        monkeypatch.setattr(snapshot, "ENGINE", engine)
        taken, code = take_snapshot(project)
        assert not taken.dirty
        copied = sorted(str(p.relative_to(code)) for p in (code / "train_anywhere").rglob("*") if p.is_file())
        assert copied == ["train_anywhere/__init__.py", "train_anywhere/slurm/python"]
        assert str(engine) in (code / "train_anywhere" / "__init__.py").read_text()
        assert (code / "train_anywhere" / "slurm" / "python").stat().st_mode & 0o111
        assert not (code / "engine").exists() and (code / "src" / "a.py").exists()
        (project / "engine" / "train_anywhere" / "new.py").touch()
        (project / "engine" / "train_anywhere" / "server.pem").touch()
        shutil.rmtree(code)
        taken, code = take_snapshot(project)
        has_new = (code / "train_anywhere" / "new.py").exists()
        assert taken.dirty == under_git and has_new == (engine == project / "engine")
        assert not (code / "train_anywhere" / "server.pem").exists()
        assert any("server.pem was left out" in note for note in taken.notes)
        for name in ("new.py", "server.pem"):
            (project / "engine" / "train_anywhere" / name).unlink()
        shutil.rmtree(code)


def test_links_are_copied_with_what_they_lead_to(project: Path) -> None:
    """The target may be edited too. A folder outside the project is data."""
    (project.parent / "images").mkdir()
    (project / "data").symlink_to("../images")
    (project / "b.py").symlink_to("src/a.py")
    (project / "lost").symlink_to("nowhere")
    (project / "loop").symlink_to("loop")
    git(project, "init", "-q")
    taken, code = take_snapshot(project)
    assert (code / "b.py").read_text() == "a = 1\n"
    assert sorted(p.name for p in code.iterdir()) == [".gitignore", "b.py", "run.sh", "src", "train_anywhere"]
    assert not (code / "b.py").is_symlink()
    assert taken.notes == ("data was left out of the snapshot: not tracked by git, and a link to a folder.",)


def test_submodules_and_other_repositories_are_copied_without_their_history(project: Path) -> None:
    commit(project)
    add_submodule(project)
    (project / "mine").mkdir()
    (project / "mine" / "y.py").touch()
    commit(project / "mine")
    _, code = take_snapshot(project)
    assert {"sub/x.py", "mine/y.py"} <= list_files(code)
    assert not (code / "mine" / ".git").exists()
    assert not (code / "sub" / ".git").exists()


def test_names_that_git_would_quote(project: Path) -> None:
    commit(project)
    (project / "é \n'q'.py").write_text("")
    _, code = take_snapshot(project)
    assert "é \n'q'.py" in list_files(code)


def test_a_deleted_file_that_git_still_lists(project: Path) -> None:
    commit(project)
    (project / "src" / "a.py").unlink()
    taken, code = take_snapshot(project)
    assert "src/a.py" not in list_files(code)
    assert taken.dirty


def test_untracked_data_is_left_out_and_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    monkeypatch.setattr(snapshot, "MAX_CODE", 10)
    (project / "weights.bin").write_text("x" * 11)
    taken, code = take_snapshot(project)
    assert "weights.bin" not in list_files(code)
    assert "weights.bin was left out" in taken.notes[0]


def test_run_folders_are_never_copied(project: Path) -> None:
    commit(project)
    (project / "results" / "run").mkdir(parents=True)
    (project / "results" / "run" / "config.yaml").write_text("")
    (project / "results_table.py").touch()
    assert {f for f in list_files(take_snapshot(project)[1]) if f.startswith("results")} == {
        "results_table.py"
    }


def test_without_git_all_but_data_and_hidden_folders(project: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").touch()
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    (project / "data").mkdir()
    (project / "data" / "images").touch()
    taken, code = take_snapshot(project)
    assert list_files(code) == {"run.sh", "src/a.py", "ignored/big.bin"}
    assert taken.commit is None
    assert "not under git" in taken.notes[0]


KEYS = [
    ".env", ".env.local", "src/server.PEM", "a.key", "id_rsa", "id_ed25519.pub", ".netrc", "credentials.json", "k.kdbx",
    ".ssh/config", ".aws/config",
]  # fmt: skip


@pytest.mark.parametrize("under_git", [True, False])
def test_keys_and_passwords_are_left_out(project: Path, under_git: bool) -> None:
    if under_git:
        commit(project)
    for name in KEYS:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("TOKEN=1")
    (project / "link").symlink_to(".env")
    taken, code = take_snapshot(project)
    assert {f for f in list_files(code) if f[0] != "."} - {"ignored/big.bin"} == {"run.sh", "src/a.py"}
    seen = [name for name in (*KEYS, "link") if under_git or name[0] != "."]
    told = [f"{name} was left out of the snapshot: it may hold keys or passwords." for name in seen]
    assert sorted(n for n in taken.notes if "left out" in n) == sorted(told)


SECRETS = [
    ".envrc", "prod.env", "kaggle.json", "secret.yaml", "secrets.toml", "hf_token", "HF_TOKEN.txt", ".huggingface/token", "token",
    "token.txt", "token.json", "service-account.json", "my_service_account_key.json", "api_key.txt", "openai-api-key", "wandb_api_key.txt",
    "client_secret_12.json", "application_default_credentials.json", ".s3cfg", ".boto", "rclone.conf", ".my.cnf", ".pgpass",
    ".vault-token", ".databrickscfg", ".oci/config", "krb5cc_1000", "auth.json", ".dockercfg", ".docker/config.json",
    ".config/gh/hosts.yml", ".password-store/site.gpg", "vault.yml", "passwords.txt", "key.asc", ".comet.config", ".dvc/config.local",
    ".azure/token", ".gcloud/db", ".kube/config", "terraform.tfstate", ".cdsapirc", ".wandb/settings", "github_token",
    "src/deploy_key", "secrets/wandb", "conf/Password.txt", "private_key.txt", "clearml.conf", ".bash_history", ".aws/setup.py",
]  # fmt: skip


COPIES = (
    "{0}.bak", "{0}~", "{0}.old", "{0}.orig", "{0}.save", "#{0}#", ".#{0}", "._{0}", "Copy of {0}", "{0}.1", "{0}.2026-01-01", "{0}.swp",
    ".{0}.swp", "{1} (1){2}", "{1} - Copy{2}", "{1}_backup{2}", "{1}-old{2}", "{1}_2{2}", "{0}.txt", "{0}.gz", "{0}.tar.gz", "{0} copy",
    "{1} copy 2{2}", "old_{0}", "{0}.bak2", "{0}_bak", "{0}-copy",
)  # fmt: skip
"""Forms of the name of a copy: of the whole name, and of its stem and suffix."""

OTHER_SECRETS = [
    "env.local", ".env-prod", "dotenv", "netrc", "pgpass", "pip.conf", ".condarc", "wandb_token.yaml", "slack_bot_token.txt",
    "accessToken.json", "refresh_token.yml", "creds.json", "aws_creds", "db-password.yaml", "passphrase.txt", "pwd.txt", "AccessKeys.csv",
    "new_user_accessKeys.csv", "aws_access_key.csv", "ssh_key.conf", "deploy-key.toml", "github_rsa", "my.ed25519", "clientSecret.json",
    "gcp-service-account-prod.json", "google_credentials.json", "app-secrets.prod.yaml", "my.secrets.yml", "kubeconfig-prod.yaml",
    "kube-config", "admin.conf", "jupyter_cookie_secret", ".jupyter/jupyter_server_config.json", "cookies.txt", "recovery-codes.txt",
    "vault_pass.txt", "ansible-vault-password", ".irodsA", ".msmtprc", "dockerconfigjson", "docker_auth.json", "wg0.conf", "stored_tokens",
    "api-keys.json", "openai_key.yaml", "secretkey.txt.gz", "terraform.tfvars.json", "private-keys-v1.d/AB.txt", "auth_token.ini",
]  # fmt: skip

NO_SECRETS = [
    "tokens.txt", "tokenizer_config.json", "vocab.json", "secretary.txt", "sacred.yaml", "keyboard.json", "keypoints.json", "torch.env.yml",
    "data_keys.csv", "author.json", "test.json", "token_counts.csv", "compass.yaml", "old_model.json", "results-2.csv", "config (1).yaml",
    "token.py", "src/secrets.py", "tokenizer.json", "special_tokens_map.json", "added_tokens.json", "secret_sauce.py", "src/keys.py",
    "credentials.py", "configs/data/auth.json", "data/auth.json", "src/token/vocabulary.json", "id_to_label.json", "environment.yml",
    "keys.csv", "monkey.txt", "src/api_keys.pyi", "env.yaml", "password_model.pt", ".gitignore", "README.md",
]  # fmt: skip


def test_other_keys_and_tokens_are_left_out_but_not_what_only_sounds_like_a_key() -> None:
    deep = [f"deep/{name}" for name in SECRETS if name != "auth.json"]
    secrets = [*SECRETS, *(name.upper() for name in SECRETS), *deep]
    assert [name for name in secrets if not snapshot.may_hold_secrets(name)] == []
    known = [
        ".env", "kaggle.json", "id_rsa", "credentials.json", ".netrc", "token.txt", "server.pem", "auth.json", "hf_token",
    ]  # fmt: skip
    copies = [form.format(name, Path(name).stem, Path(name).suffix) for name in known for form in COPIES]
    assert [name for name in [*copies, *OTHER_SECRETS] if not snapshot.may_hold_secrets(name)] == []
    assert [name for name in NO_SECRETS if snapshot.may_hold_secrets(name)] == []


TEXTS = {
    "configs/gcp.json": '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMII"}',
    "notes.txt": "my token: hf_AbCdEfGhIjKlMnOpQrStUv\n",
    "run.sh.txt": "export GH=ghp_0123456789abcdefghijABCDEFGHIJ012345\n",
    "aws.yaml": "id: AKIAIOSFODNN7EXAMPLE\n",
    "bot.ini": "token = xoxb-1234567890-abcdefghij\n",
}
"""Files whose names are those of no key."""


def test_files_that_start_with_a_key_are_left_out(project: Path) -> None:
    commit(project)
    for name, text in TEXTS.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    (project / "code.py").write_text('TOKEN = "hf_"  # ghp_ AKIA xoxb- PRIVATE KEY\n')
    (project / "page.md").write_text("Tokens start with hf_ or AKIA; keys with PRIVATE KEY.\n")
    (project / "late.txt").write_text("x" * 2000 + TEXTS["notes.txt"])
    (project / "weights.bin").write_bytes(b"\0" + TEXTS["notes.txt"].encode())
    taken, code = take_snapshot(project)
    assert {"code.py", "page.md", "late.txt", "weights.bin"} <= list_files(
        code
    ) and not TEXTS.keys() & list_files(code)
    for name in TEXTS:
        assert f"{name} was left out of the snapshot: it may hold keys or passwords." in taken.notes
        assert snapshot.why_not_copied(project, name)


@pytest.mark.parametrize("under_git", [True, False])
def test_what_others_can_t_read_is_closed_in_the_copy_too(project: Path, under_git: bool) -> None:
    for path in [project, *project.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o077)
    if under_git:
        commit(project)
    (project / "own").mkdir(0o700)
    (project / "own" / "site.txt").touch(0o600)
    taken, code = take_snapshot(project)
    assert "own/site.txt" in list_files(code) and not any("left out" in note for note in taken.notes)
    modes = [path.stat().st_mode & 0o777 for path in (code, code / "own", code / "own" / "site.txt")]
    assert modes == [0o700, 0o700, 0o600]


def test_of_many_paths_that_are_left_out_the_first_are_named(project: Path) -> None:
    commit(project)
    for number in range(100):
        (project / f"{number:02}.pem").touch()
    notes = take_snapshot(project)[0].notes
    assert len(notes) == 21 and notes[0].startswith("00.pem was left out")
    assert notes[-1] == "80 more paths were left out of the snapshot, such as 99.pem."


def test_what_git_tracks_is_code_whatever_its_name(project: Path) -> None:
    (project / ".env").write_text("PORT=1")
    commit(project)
    taken, code = take_snapshot(project)
    assert (code / ".env").exists() and not taken.notes


def test_keys_in_another_repository_are_left_out_too(project: Path) -> None:
    commit(project)
    (project / "mine" / "sub").mkdir(parents=True)
    (project / "mine" / "sub" / "y.py").touch()
    (project / "mine" / ".env").touch()
    os.mkfifo(project / "mine" / "sub" / "pipe")
    commit(project / "mine")
    taken, code = take_snapshot(project)
    assert "mine/sub/y.py" in list_files(code) and "mine/.env" not in list_files(code)
    assert set(taken.notes) == {
        "mine/.env was left out of the snapshot: it may hold keys or passwords.",
        "mine/sub/pipe was left out of the snapshot: it is a FIFO.",
    }


@pytest.mark.timeout(20)
@pytest.mark.parametrize("under_git", [True, False])
def test_a_fifo_and_a_socket_are_left_out(
    project: Path, under_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if under_git:
        commit(project)
        (project / "src" / "a.py").unlink()
        os.mkfifo(project / "src" / "a.py")  # git lists it, but no others
    else:
        os.mkfifo(project / "pipe")
    monkeypatch.chdir(project)
    with socket.socket(socket.AF_UNIX) as listener:
        (project / "run.sh").unlink()
        listener.bind("run.sh")
        taken, _ = take_snapshot(project)
    kinds = {"src/a.py" if under_git else "pipe": "it is a FIFO", "run.sh": "it is a socket"}
    told = {f"{name} was left out of the snapshot: {kind}." for name, kind in kinds.items()}
    assert told == {n for n in taken.notes if "left out" in n}


TAKE = """
import sys
from pathlib import Path
from train_anywhere.slurm.submission import snapshot
from train_anywhere.errors import SubmitError
root = Path(sys.argv[1])
try:
    print("\\n".join(snapshot.take_snapshot(root, root.parent / "code", root / "results").notes))
except SubmitError as error:
    print(error)
"""


def take_as_anyone(root: Path) -> str:
    """Notes or the refusal, without root's right to read every file."""
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    command = [*plain, sys.executable, "-c", TAKE, str(root)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.parametrize("under_git", [True, False])
def test_an_unreadable_file_that_is_not_tracked_is_left_out(project: Path, under_git: bool) -> None:
    if under_git:
        commit(project)
    (project / "mine.py").write_text("a")
    (project / "mine.py").chmod(0)
    (project / "closed").mkdir(0)
    said = take_as_anyone(project)
    assert "mine.py was left out of the snapshot: it can't be read (Permission denied)." in said
    assert under_git or "closed was left out of the snapshot: it can't be read (Permission denied)." in said
    assert "src/a.py" in list_files(project.parent / "code")


def test_an_unreadable_file_that_is_tracked_is_a_sentence(project: Path) -> None:
    commit(project)
    (project / "src" / "a.py").chmod(0)
    assert take_as_anyone(project) == (
        f"{project}/src/a.py can't be read or written (Permission denied), and a job runs a copy of the project's files: "
        "change its permissions (chmod u+rw), or remove it.\n"
    )


def test_a_full_disk_is_a_sentence(project: Path, small_disk: Path) -> None:
    (project / "src" / "b.py").write_bytes(bytes(2**21))
    with pytest.raises(SubmitError, match=r"can't be copied to .*/code: .*No space left on device"):
        snapshot.take_snapshot(project, small_disk / "code", project / "results")
