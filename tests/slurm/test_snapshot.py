import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from slurm import left_out, snapshot
from src.errors import SubmitError
from src.files import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / ".gitignore").write_text("/ignored/\n")
    (root / "ignored").mkdir()
    (root / "ignored" / "big.bin").write_text("x")
    return root


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", root, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(root: Path) -> str:
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return git(root, "rev-parse", "HEAD")


def status(root: Path) -> str:
    """What a person would look at."""
    return git(root, "status", "--porcelain", "--untracked-files=all", "--", ".")


def take(root: Path) -> tuple[snapshot.Snapshot, Path]:
    code = root.parent / "code"
    return snapshot.take(root, code, root / "results"), code


def files(code: Path) -> set[str]:
    return {str(p.relative_to(code)) for p in code.rglob("*") if p.is_file()}


def test_tracked_and_new_files_but_not_ignored_ones(project: Path) -> None:
    head = commit(project)
    (project / "src" / "new.py").write_text("new = 1\n")
    (project / "src" / "a.py").write_text("a = 2\n")
    taken, code = take(project)
    assert files(code) == {".gitignore", "run.sh", "src/a.py", "src/new.py"}
    assert (code / "src" / "a.py").read_text() == "a = 2\n"
    assert os.access(code / "run.sh", os.X_OK)
    assert (taken.commit, taken.dirty, taken.notes) == (head, True, ())


def test_a_clean_tree_is_not_dirty(project: Path) -> None:
    commit(project)
    assert not take(project)[0].dirty


@pytest.mark.parametrize("under_git", [True, False])
def test_the_tests_stay_behind(project: Path, under_git: bool) -> None:
    """They are not part of what runs, so editing them does not make a run dirty."""
    (project / "tests").mkdir()
    (project / "tests" / "test_a.py").write_text("a = 1\n")
    if under_git:
        commit(project)
    (project / "tests" / "test_a.py").write_text("a = 2\n")
    (project / "tests" / "test_new.py").touch()
    taken, code = take(project)
    assert "src/a.py" in files(code) and not (code / "tests").exists()
    assert not taken.dirty


def modify(root: Path) -> None:
    (root / "src" / "a.py").write_text("a = 2\n")  # as many bytes as before


def replace_by_a_link(root: Path) -> None:
    (root / "src" / "a.py").rename(root / "ignored" / "a.py")
    (root / "src" / "a.py").symlink_to("../ignored/a.py")


def replace_by_a_folder(root: Path) -> None:
    (root / "src" / "a.py").unlink()
    (root / "src" / "a.py").mkdir()
    (root / "src" / "a.py" / "b").touch()


def conflict(root: Path) -> None:
    for branch in ("one", "two"):
        git(root, "checkout", "-q", "-b", branch, "HEAD" if branch == "one" else "HEAD~1")
        (root / "src" / "a.py").write_text(branch)
        git(root, "commit", "-q", "-a", "-m", branch)
    subprocess.run(["git", "-C", root, "merge", "one"], capture_output=True)


def staged_and_back(root: Path) -> None:
    modify(root)
    git(root, "add", ".")
    (root / "src" / "a.py").write_text("a = 1\n")


def intend_to_add(root: Path) -> None:
    (root / "empty").touch()
    git(root, "add", "--intent-to-add", "empty")


def commit_in_submodule(root: Path) -> None:
    add_submodule(root)
    git(root / "sub", "commit", "-q", "--allow-empty", "-m", "second")


DIRTY: list[Callable[[Path], object]] = [
    modify,
    replace_by_a_link,
    replace_by_a_folder,
    conflict,
    staged_and_back,
    intend_to_add,
    commit_in_submodule,
    lambda root: (root / "src" / "a.py").unlink(),
    lambda root: (root / "run.sh").chmod(0o644),
    lambda root: (root / "src" / "a.py").chmod(0o755),
    lambda root: (root / "new").touch(),
    lambda root: (root / "link").unlink() or (root / "link").symlink_to("src/none.py"),
    lambda root: git(root, "rm", "-q", "--cached", "src/a.py"),
    lambda root: git(root, "mv", "src/a.py", "src/b.py"),
    lambda root: git(root, "update-index", "--chmod=+x", "src/a.py"),
]


def add_submodule(root: Path) -> None:
    other = root.parent / "other"
    other.mkdir()
    (other / "x.py").touch()
    commit(other)
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-q", "-m", "with submodule")


def windows_line_ends(root: Path) -> None:
    git(root, "config", "core.autocrlf", "true")
    (root / "src" / "a.py").write_bytes(b"a = 3\r\n")
    git(root, "commit", "-q", "-a", "-m", "with LF in git and CRLF here")


def no_modes(root: Path) -> None:
    git(root, "config", "core.fileMode", "false")
    (root / "run.sh").chmod(0o644)


def filtered(root: Path) -> None:
    """As Git LFS does: git has other bytes than the folder."""
    (root / ".gitattributes").write_text("*.bin filter=turn\n")
    for way in ("clean", "smudge"):
        git(root, "config", f"filter.turn.{way}", "tr 01 10")
    (root / "w.bin").write_text("0110")
    commit(root)


def not_checked_out(root: Path) -> None:
    git(root, "update-index", "--skip-worktree", "src/a.py")
    (root / "src" / "a.py").unlink()


def names_around_a_folder(root: Path) -> None:
    """Git sorts a folder as if its name ended in a slash."""
    (root / "src-x").mkdir()
    for name in ("src-x/a", "src.py", "src0", "src-y", "src/é"):
        (root / name).touch()
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "more")


CLEAN: list[Callable[[Path], object]] = [
    lambda root: None,
    add_submodule,
    windows_line_ends,
    no_modes,
    filtered,
    not_checked_out,
    names_around_a_folder,
    lambda root: (root / "ignored" / "more").touch(),
    lambda root: os.utime(root / "src" / "a.py", (0, 0)),
    lambda root: (root / "src" / "a.py").write_text("a = 1\n"),
]


@pytest.mark.parametrize("change", [*DIRTY, *CLEAN])
def test_dirty_is_what_git_status_says(project: Path, change: Callable[[Path], object]) -> None:
    (project / "link").symlink_to("src/a.py")
    commit(project)
    change(project)
    taken, _ = take(project)
    assert taken.dirty == bool(status(project)) == (change in DIRTY)


def test_a_repository_with_sha256_names(project: Path) -> None:
    git(project, "init", "-q", "--object-format=sha256")
    head = commit(project)
    assert take(project)[0] == snapshot.Snapshot(head, False, ())


def test_git_changes_nothing_in_the_repository_and_runs_no_program_that_its_configuration_names(
    project: Path,
) -> None:
    commit(project)
    program = project.parent / "program"
    program.write_text(f"#!/bin/sh\ntouch {project.parent}/ran\n")
    program.chmod(0o755)
    (project / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in ("post-index-change", "post-checkout", "pre-commit"):
        (project / ".git" / "hooks" / hook).symlink_to(program)
    git(project, "config", "core.fsmonitor", str(program))
    os.utime(project / "src" / "a.py", (0, 0))  # git would note in its index that the file is the same
    index = (project / ".git" / "index").read_bytes()
    taken, code = take(project)
    assert not taken.dirty and files(code) == {".gitignore", "run.sh", "src/a.py"}
    assert (project / ".git" / "index").read_bytes() == index
    assert not (project.parent / "ran").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [("status.showUntrackedFiles", "no"), ("status.branch", "false"), ("status.short", "true"), ("color.ui", "always"),
     ("core.quotePath", "true"), ("status.relativePaths", "false"), ("status.renames", "copies")],
)  # fmt: skip
def test_how_git_is_configured_to_print_changes_nothing(project: Path, key: str, value: str) -> None:
    head = commit(project)
    git(project, "config", key, value)
    (project / "é.py").touch()
    git(project, "mv", "src/a.py", "src/ü b.py")
    taken, code = take(project)
    assert (taken.commit, taken.dirty) == (head, True)
    assert files(code) == {".gitignore", "run.sh", "src/ü b.py", "é.py"}


def test_a_change_elsewhere_in_a_larger_repository_is_none_of_the_project(project: Path) -> None:
    (project.parent / "other.txt").write_text("1")
    head = commit(project.parent)
    (project.parent / "other.txt").write_text("2")
    assert take(project)[0] == snapshot.Snapshot(head, False, ())
    modify(project)
    shutil.rmtree(project.parent / "code")
    assert take(project)[0].dirty


def put_first_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")


@pytest.mark.timeout(20)
def test_a_git_that_hangs_is_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    put_first_on_path(monkeypatch, project.parent, f"echo $$ > {project.parent}/pid; sleep 60 & sleep 60")
    monkeypatch.setattr(snapshot.git, "TIMEOUT_S", 0.5)
    with pytest.raises(SubmitError, match=r"^git did not answer within 0.5 s, .* `git -C .*project status`"):
        take(project)
    assert not psutil.pid_exists(int((project.parent / "pid").read_text()))


def test_without_a_git_that_can_be_started_the_project_is_not_under_git(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(project)
    monkeypatch.setenv("PATH", str(project))
    taken, code = take(project)
    assert (taken.commit, taken.dirty) == (None, False)
    assert "not under git" in taken.notes[0] and "src/a.py" in files(code)


def test_before_the_first_commit(project: Path) -> None:
    git(project, "init", "-q")
    taken, code = take(project)
    assert (taken.commit, taken.dirty) == (None, True)
    assert "src/a.py" in files(code)


def test_links_are_copied_with_what_they_lead_to(project: Path) -> None:
    """The target may be edited too; a folder that is no part of the project is data."""
    (project.parent / "images").mkdir()
    (project / "data").symlink_to("../images")
    (project / "b.py").symlink_to("src/a.py")
    (project / "lost").symlink_to("nowhere")
    (project / "loop").symlink_to("loop")
    git(project, "init", "-q")
    taken, code = take(project)
    assert (code / "b.py").read_text() == "a = 1\n"
    assert sorted(p.name for p in code.iterdir()) == [".gitignore", "b.py", "run.sh", "src"]
    assert not (code / "b.py").is_symlink()
    assert taken.notes == ("data was left out of the snapshot: not tracked by git, and a link to a folder.",)


def test_submodules_and_other_repositories_are_copied_without_their_history(project: Path) -> None:
    commit(project)
    add_submodule(project)
    (project / "mine").mkdir()
    (project / "mine" / "y.py").touch()
    commit(project / "mine")
    _, code = take(project)
    assert {"sub/x.py", "mine/y.py"} <= files(code)
    assert not (code / "mine" / ".git").exists()
    assert not (code / "sub" / ".git").exists()


def test_names_that_git_would_quote(project: Path) -> None:
    commit(project)
    (project / "é \n'q'.py").write_text("")
    _, code = take(project)
    assert "é \n'q'.py" in files(code)


def test_a_deleted_file_that_git_still_lists(project: Path) -> None:
    commit(project)
    (project / "src" / "a.py").unlink()
    taken, code = take(project)
    assert "src/a.py" not in files(code)
    assert taken.dirty


def test_untracked_data_is_left_out_and_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    monkeypatch.setattr(left_out, "MAX_CODE", 10)
    (project / "weights.bin").write_text("x" * 11)
    taken, code = take(project)
    assert "weights.bin" not in files(code)
    assert "weights.bin was left out" in taken.notes[0]


def test_run_folders_are_never_copied(project: Path) -> None:
    commit(project)
    (project / "results" / "run").mkdir(parents=True)
    (project / "results" / "run" / "config.yaml").write_text("")
    assert not any(f.startswith("results") for f in files(take(project)[1]))


def test_without_git_all_but_data_and_hidden_folders(project: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").touch()
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    (project / "data").mkdir()
    (project / "data" / "images").touch()
    taken, code = take(project)
    assert files(code) == {"run.sh", "src/a.py", "ignored/big.bin"}
    assert taken.commit is None
    assert "not under git" in taken.notes[0]


def test_a_project_in_a_folder_of_a_larger_repository(project: Path) -> None:
    (project.parent / "other.txt").touch()
    commit(project.parent)
    _, code = take(project)
    assert "src/a.py" in files(code)
    assert "other.txt" not in files(code)


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "src/server.PEM", "a.key", "id_rsa", "id_ed25519.pub", ".netrc", "credentials.json", "k.kdbx",
     ".ssh/config", ".aws/config"],
)  # fmt: skip
@pytest.mark.parametrize("under_git", [True, False])
def test_keys_and_passwords_are_left_out(project: Path, name: str, under_git: bool) -> None:
    if under_git:
        commit(project)
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("TOKEN=1")
    (project / "link").symlink_to(name)
    taken, code = take(project)
    assert {f for f in files(code) if f[0] != "."} - {"ignored/big.bin"} == {"run.sh", "src/a.py"}
    told = [f"{n} was left out of the snapshot: it may hold keys or passwords." for n in (name, "link")]
    hidden = not under_git and name[0] == "."
    assert sorted(n for n in taken.notes if "left out" in n) == (told[1:] if hidden else sorted(told))


def test_what_git_tracks_is_code_whatever_its_name(project: Path) -> None:
    (project / ".env").write_text("PORT=1")
    commit(project)
    taken, code = take(project)
    assert (code / ".env").exists() and not taken.notes


def test_keys_in_another_repository_are_left_out_too(project: Path) -> None:
    commit(project)
    (project / "mine" / "sub").mkdir(parents=True)
    (project / "mine" / "sub" / "y.py").touch()
    (project / "mine" / ".env").touch()
    os.mkfifo(project / "mine" / "sub" / "pipe")
    commit(project / "mine")
    taken, code = take(project)
    assert "mine/sub/y.py" in files(code) and "mine/.env" not in files(code)
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
        taken, _ = take(project)
    kinds = {"src/a.py" if under_git else "pipe": "it is a FIFO", "run.sh": "it is a socket"}
    told = {f"{name} was left out of the snapshot: {kind}." for name, kind in kinds.items()}
    assert told == {n for n in taken.notes if "left out" in n}


TAKE = """
import sys
from pathlib import Path
from slurm import snapshot
from src.errors import SubmitError
root = Path(sys.argv[1])
try:
    print("\\n".join(snapshot.take(root, root.parent / "code", root / "results").notes))
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
    assert "src/a.py" in files(project.parent / "code")


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
        snapshot.take(project, small_disk / "code", project / "results")
