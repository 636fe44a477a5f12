"""Values with any characters reach the ranks unchanged through the real bash."""

import dataclasses
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import bounded, composed
from train_anywhere.config.load import load
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.slurm.script.job import make_job
from train_anywhere.slurm.script.render import option, ranges, render

HOSTILE = st.text(
    st.sampled_from("$`'\"\\;&|<>(){}[]*?!#~ \n\t%=-")
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=20,
)


@bounded(25)
@given(st.lists(HOSTILE, min_size=6, max_size=6))
def test_values_reach_the_ranks_as_they_are(values: list[str]) -> None:
    """Folders, interpreter, module and options are hostile at once."""
    code, python, module, account, comment, conda = values
    conda = conda.replace("/", " ")  # a folder is made absolute
    account, comment = (re.sub(r"[\n\r\0]", " ", v) for v in (account, comment))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run" + re.sub(r"[\n\r/]", " ", code))
        snapshot = Path(folder, "code" + code.replace("/", " "))
        for made in (run, snapshot, tools := Path(folder, "tools")):
            made.mkdir()
        for part in (ENGINE / "train_anywhere", ROOT / "configs"):
            (snapshot / part.name).symlink_to(part)
        (run / "run.json").write_text('{\n  "state": "queued"\n}\n')
        made_job = make_job(load(composed("cluster=slurm")), str(run), str(snapshot))
        cluster = dataclasses.replace(
            made_job.cluster, modules=[module], conda=conda, account=account, comment=comment
        )
        script = render(dataclasses.replace(made_job, cluster=cluster, python=f"/py{python}"))
        seen = shlex.quote(f"{folder}/seen")
        stand_ins = (
            f'say() {{ printf "%s\\0" "$@" >>{seen}; }}\n'
            'module() { say module "$@"; }; conda() { [ "$1" != activate ] || say "$@"; }\nexport CONDA_EXE=conda\n'
        )
        monitor = 'case "$*" in *train_anywhere.features.node*) exit ;; esac'
        (tools / "srun").write_text(f'#!/bin/bash\n{monitor}\nshift 6; printf "%s\\0" "$@" >>{seen}\n')
        (tools / "srun").chmod(0o755)
        environ = {
            "PATH": f"{tools}:/usr/bin:/bin",
            "HOME": folder,
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node1",
        }
        done = subprocess.run(
            ["bash", "-c", stand_ins + script],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        words = Path(folder, "seen").read_bytes().decode().split("\0")[:-1]
        assert ["module", "load", module] == words[2:5]
        assert words[5:7] == ["activate", conda]
        assert words[-5:] == [f"/py{python}", "-u", f"{snapshot}/src/train.py", "--run", str(run)]
        assert sorted(p.name for p in Path(folder).iterdir()) == sorted(
            {run.name, snapshot.name, "seen", "tools"}
        )


@bounded(1)
@given(st.lists(HOSTILE, min_size=300, max_size=300))
def test_an_option_is_one_line_that_reads_back(values: list[str]) -> None:
    """Slurm reads a double-quoted value as bash does, once $ and ` are left out of it."""
    lines = [v for v in values if not re.search(r"[\n\r\0]", v)]
    shown = [option(v) for v in lines]
    assert all("\n" not in s for s in shown)
    quoted = [
        s.replace("$", r"\$").replace("`", r"\`") if s.startswith('"') else shlex.quote(s) for s in shown
    ]
    script = "printf '%s\\0' " + " ".join(quoted)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == lines


@bounded()
@given(st.sets(st.integers(0, 200), max_size=30))
def test_members_are_read_back_from_their_ranges(members: set[int]) -> None:
    listed = [r.partition("-") for r in ranges(sorted(members)).split(",") if r]
    assert {n for low, _, high in listed for n in range(int(low), int(high or low) + 1)} == members
