"""The testbed is a real cluster: everything that the project's Slurm tests lean on, shown once."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.testbed.cluster import REPOSITORY, Testbed
from slurm.testbed.errors import TestbedError
from slurm.testbed.images import PACKAGES, can_build, make_image
from slurm.testbed.requirements import missing
from slurm.testbed.sites import SITES

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


AS_ASKED = ["--account=def-me", "--comment=field=nlp;appl=pytorch"]  # what one site or another insists on


def submit(testbed: Testbed, folder: Path, script: str, *options: str, user: str | None = None) -> str:
    """Write a batch script, submit it from `folder` and return the job id; output goes to out-<job id>."""
    path = folder / "job.sh"
    path.write_text("#!/bin/bash\n" + script)
    words = ["sbatch", "--parsable", "--output=out-%j", "--open-mode=append", *options, str(path)]
    done = testbed.run(words, cwd=folder, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for(done: Callable[[], bool], what: str, timeout: float = 40) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, f"{what} did not happen in {timeout} s"
        time.sleep(0.05)


def test_every_node_has_its_own_name_address_tmp_and_shm(testbed: Testbed) -> None:
    look = "echo $(hostname) $(hostname -I) $(ls $mine 2>/dev/null | wc -l); touch $mine"
    look = f"mine='/tmp/mine /dev/shm/mine'; {look}"
    lines = testbed.run(["srun", "--nodes=4", "bash", "-c", look]).stdout.splitlines()
    again = testbed.run(["srun", "--nodes=4", "bash", "-c", look]).stdout.splitlines()
    assert sorted(lines) == [f"node{n} 10.77.0.{n} 0" for n in range(1, 5)]
    assert sorted(again) == [f"node{n} 10.77.0.{n} 2" for n in range(1, 5)]
    assert not Path("/tmp/mine").exists()


def test_nodes_see_the_repository_and_the_shared_folder(testbed: Testbed, shared_dir: Path) -> None:
    (shared_dir / "from_outside").touch()
    done = testbed.run(
        ["srun", "--nodes=2", "ls", str(shared_dir), str(REPOSITORY / "slurm/testbed/cluster.py")]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("from_outside") == 2


def test_shims_on_path_reach_the_cluster_and_jobs_do_not_inherit_them(testbed: Testbed) -> None:
    words = ["srun", "--ntasks=1", "sh", "-c", "command -v srun; echo $PATH"]
    done = subprocess.run(words, env=testbed.env(), capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("/usr/bin/srun")
    assert str(testbed.dir) not in done.stdout


def test_gpus_are_given_out_and_counted(testbed: Testbed) -> None:
    def gpus(*options: str) -> list[str]:
        return testbed.run(["srun", *options, "printenv", "CUDA_VISIBLE_DEVICES"]).stdout.splitlines()

    assert gpus("--nodes=2", "--gres=gpu:2") == ["0,1", "0,1"]
    assert gpus("--nodes=1", "--gpus-per-node=8") == ["0,1,2,3,4,5,6,7"]
    refused = testbed.run(["sbatch", "--gres=gpu:9", "--wrap=true"])
    assert "Requested node configuration is not available" in refused.stderr


def test_typed_gpus_features_and_partition_of_a_site(testbed_for: Callable[..., Testbed]) -> None:
    ibex = testbed_for("ibex")
    words = [
        "--partition=batch",
        "--constraint=v100&cpu_intel_platinum_8260",
        "--gpus=v100:8",
        "--cpus-per-gpu=5",
    ]
    assert ibex.run(["sbatch", "--test-only", *words, "--wrap=true"]).returncode == 0
    assert ibex.run(["sbatch", "--test-only", *words, "--gpus=a100:8", "--wrap=true"]).returncode != 0
    assert (
        ibex.run(["sbatch", "--test-only", *words, "--cpus-per-gpu=6", "--nodes=1", "--wrap=true"]).returncode
        != 0
    )


@pytest.mark.parametrize(
    ("site", "options", "said"),
    [
        ("neuron", [], "needs --comment"),
        ("neuron", ["--mem=10G", *AS_ASKED], "does not take --mem"),
        ("neuron", ["--mem-per-cpu=1G", *AS_ASKED], "does not take --mem"),
        ("trillium", ["--mem=10G", *AS_ASKED], "does not take --mem"),
        ("narval", [], "needs --account"),
        ("narval", ["--mem=10G", *AS_ASKED], ""),
        ("neuron", AS_ASKED, ""),
    ],
)
def test_rules_of_a_site_are_enforced(
    testbed_for: Callable[..., Testbed], site: str, options: list[str], said: str
) -> None:
    done = testbed_for(site).run(["sbatch", "--test-only", *options, "--wrap=true"])
    assert said in done.stderr
    assert (done.returncode == 0) == (said == "")


def test_job_array_completes_with_output(testbed: Testbed, shared_dir: Path) -> None:
    job = submit(
        testbed, shared_dir, "echo $SLURM_ARRAY_TASK_ID > member-$SLURM_ARRAY_TASK_ID", "--array=1-3%2"
    )
    assert testbed.wait_job(job) == "COMPLETED"
    assert sorted(p.name for p in shared_dir.glob("member-*")) == ["member-1", "member-2", "member-3"]
    failing = submit(testbed, shared_dir, "exit $SLURM_ARRAY_TASK_ID", "--array=0-1")
    assert testbed.wait_job(failing) == "FAILED"


def test_requeue_keeps_the_job_id_and_counts(testbed: Testbed, shared_dir: Path) -> None:
    script = 'echo "start ${SLURM_RESTART_COUNT:-0}"\n[ "$SLURM_RESTART_COUNT" ] || sleep 60\n'
    job = submit(testbed, shared_dir, script)
    output = shared_dir / f"out-{job}"
    wait_for(lambda: output.exists() and "start 0" in output.read_text(), "first start")
    assert testbed.run(["scontrol", "requeue", job]).returncode == 0
    assert testbed.wait_job(job) == "COMPLETED"
    assert re.findall("start .", output.read_text()) == ["start 0", "start 1"]


def test_urgent_job_preempts_scavenger_which_runs_again(testbed: Testbed, shared_dir: Path) -> None:
    script = "trap 'echo told; exit 1' TERM\necho \"start ${SLURM_RESTART_COUNT:-0}\"\n"
    script += '[ "$SLURM_RESTART_COUNT" ] || { sleep 60 & wait; }\n'
    job = submit(testbed, shared_dir, script, "--partition=scavenge", "--nodes=4", "--exclusive")
    output = shared_dir / f"out-{job}"
    wait_for(lambda: output.exists() and "start 0" in output.read_text(), "first start")
    urgent = testbed.run(["srun", "--partition=urgent", "--nodes=4", "--exclusive", "true"])
    assert urgent.returncode == 0, urgent.stderr
    assert testbed.wait_job(job) == "COMPLETED"
    assert "start 1" in output.read_text()


def test_job_of_a_dead_node_is_requeued_on_another(testbed: Testbed, shared_dir: Path) -> None:
    job = submit(testbed, shared_dir, 'hostname\n[ "$SLURM_RESTART_COUNT" ] || sleep 90\n', "--exclude=node1")
    output = shared_dir / f"out-{job}"
    wait_for(lambda: output.exists() and output.read_text() != "", "first start")
    victim = output.read_text().strip()
    testbed.kill_node(victim)
    try:
        assert testbed.wait_job(job, timeout=60) == "COMPLETED"
    finally:
        testbed.boot_node(victim)
    assert output.read_text().split()[-1] != victim
    ready = ["sinfo", "--noheader", f"--nodes={victim}", "--partition=main", "--format=%T"]
    wait_for(lambda: testbed.run(ready).stdout.strip() == "idle", f"{victim} coming back")


@pytest.mark.mpi
def test_mpirun_and_pmix_start_ranks_on_two_nodes(testbed: Testbed, shared_dir: Path) -> None:
    script = "mpirun bash -c 'echo mpirun $(hostname) $OMPI_COMM_WORLD_RANK'\n"
    script += "timeout 20 srun --mpi=pmix bash -c 'echo pmix $(hostname) $PMIX_RANK'\n"
    job = submit(testbed, shared_dir, script, "--nodes=2", "--ntasks-per-node=2", "--nodelist=node2,node3")
    assert testbed.wait_job(job) == "COMPLETED"
    lines = re.findall("^(?:mpirun|pmix) .*", (shared_dir / f"out-{job}").read_text(), flags=re.MULTILINE)
    ranks = ["node2 0", "node2 1", "node3 2", "node3 3"]
    assert sorted(lines) == [f"mpirun {r}" for r in ranks] + [f"pmix {r}" for r in ranks]


def test_time_limit_of_run_ends_everything_it_started(testbed: Testbed) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        testbed.run(["srun", "--job-name=too-long", "sleep", "77"], timeout=1)
    queue = ["squeue", "--noheader", "--name=too-long", "--states=running"]
    wait_for(lambda: testbed.run(queue).stdout == "", "the end of the job")


def test_users_exist_inside_and_have_a_home(testbed: Testbed) -> None:
    done = testbed.run(
        ["srun", "--ntasks=1", "sh", "-c", "whoami; pwd"], user="alice", cwd=testbed.dir / "home/alice"
    )
    assert done.stdout.split() == ["alice", str(testbed.dir / "home/alice")]


def test_commands_can_run_on_a_node(testbed: Testbed) -> None:
    assert testbed.run(["hostname"], node="node3").stdout == "node3\n"
    assert testbed.run(["hostname"]).stdout == "login\n"


def test_pbs_job_runs_on_two_nodes_with_a_node_file(
    testbed_for: Callable[..., Testbed], shared_dir: Path
) -> None:
    pbs = testbed_for("sockeye_pbs", ssh=True)
    script = shared_dir / "job.pbs"
    script.write_text(
        "#!/bin/bash\n#PBS -N guide\n#PBS -l select=2:ncpus=2:mpiprocs=2\n#PBS -j oe\n"
        "cat $PBS_NODEFILE; echo $PBS_JOBNAME $PBS_O_WORKDIR; ssh node2 hostname\n"
    )
    words = [str(pbs.dir / "bin/qsub"), str(script)]
    done = subprocess.run(
        words, cwd=shared_dir, env=pbs.env(), capture_output=True, text=True, timeout=30, check=True
    )
    assert pbs.wait_job(done.stdout.strip()) == "COMPLETED"
    output = [path.read_text() for path in shared_dir.glob("*.o*")]
    assert output == [f"node1\nnode1\nnode2\nnode2\nguide {shared_dir}\nnode2\n"]


@pytest.mark.parametrize("user", [None, "alice"])
def test_container_stand_in_runs_tasks_in_an_image_folder(
    testbed: Testbed, shared_dir: Path, user: str | None, require: Callable[[object, str], None]
) -> None:
    require(can_build(), f"apt-get install -y {PACKAGES}")
    make_image(shared_dir / "image", environment={"FROM_IMAGE": "yes"})
    (shared_dir / "code").mkdir()
    script = "echo $(id -un) $(hostname) $PWD $SLURM_PROCID $FROM_IMAGE $(ls -d /var 2>/dev/null | wc -l)\n"
    (shared_dir / "code/train.sh").write_text(script)
    container = [f"--container-image={shared_dir}/image", f"--container-mounts={shared_dir}/code:/code:ro"]
    container += ["--container-workdir=/code", "--no-container-entrypoint"]
    words = ["srun", "--nodelist=node1,node2", "--ntasks-per-node=1", *container, "sh", "train.sh"]
    done = testbed.run(words, user=user, cwd=shared_dir)
    name = user or "root"
    assert sorted(done.stdout.splitlines()) == [
        f"{name} node1 /code 0 yes 0",
        f"{name} node2 /code 1 yes 0",
    ], done.stderr
    written = testbed.run(["srun", "--ntasks=1", *container, "touch", "/code/x"], cwd=shared_dir)
    assert "Read-only file system" in written.stderr
    assert done.stderr == ""


def test_container_in_a_batch_script(
    testbed: Testbed, shared_dir: Path, require: Callable[[object, str], None]
) -> None:
    require(can_build(), f"apt-get install -y {PACKAGES}")
    image = make_image(shared_dir / "image")
    inside = f"ls /; hostname > {shared_dir}/$SLURM_PROCID"
    script = f"srun --container-image={image} --container-mounts={shared_dir} sh -c '{inside}'\n"
    job = submit(testbed, shared_dir, script, "--nodes=2")
    assert testbed.wait_job(job) == "COMPLETED", (shared_dir / f"out-{job}").read_text()
    assert {(shared_dir / rank).read_text() for rank in "01"} <= {f"{node}\n" for node in testbed.nodes}
    assert "home" not in (shared_dir / f"out-{job}").read_text().split()


def test_container_image_that_is_not_there(testbed: Testbed, require: Callable[[object, str], None]) -> None:
    require(can_build(), f"apt-get install -y {PACKAGES}")
    done = testbed.run(["srun", "--ntasks=1", "--container-image=/nowhere.sqsh", "true"])
    assert done.returncode != 0
    assert "can't find image /nowhere.sqsh" in done.stderr


def test_sacct_with_accounting(testbed_for: Callable[..., Testbed], shared_dir: Path) -> None:
    testbed = testbed_for("slurm", accounting=True)
    job = submit(testbed, shared_dir, "exit 3", "--comment=field=nlp;appl=pytorch")
    assert testbed.wait_job(job) == "FAILED"
    words = [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--jobs",
        job,
        "--format=State,ExitCode,Comment",
    ]
    wait_for(
        lambda: testbed.run(words).stdout == "FAILED|3:0|field=nlp;appl=pytorch\n", "the record of the job"
    )


def test_a_long_path_is_no_problem(tmp_path: Path) -> None:
    with Testbed(tmp_path / ("long-" * 20) / "testbed", nodes=1) as testbed:
        done = testbed.run(["srun", "hostname"])
        assert done.stdout == "node1\n", done.stderr


def test_every_preset_of_a_cluster_has_its_site() -> None:
    presets = {path.stem for path in (REPOSITORY / "configs/cluster").glob("*.yaml")}
    assert presets - {"local", "current", "pbs"} == set(SITES)


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_every_site_comes_up_beside_the_others(site: str, tmp_path: Path, testbed: Testbed) -> None:
    with Testbed(tmp_path / "testbed", nodes=2, site=site) as own:
        words = ["srun", "--nodes=2", f"--gpus-per-node={own.layout.site.gpus}", *AS_ASKED, "hostname"]
        done = own.run(words)
        assert sorted(done.stdout.split()) == list(own.nodes), done.stderr
        others = testbed.run(["sinfo", "--noheader", "--Node", "--format=%N"]).stdout.split()
        assert set(others) == {"node1", "node2", "node3", "node4"}
    assert not own.is_up()
    assert testbed.is_up()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = "import sys; from slurm.testbed.cluster import Testbed\nTestbed(sys.argv[1], nodes=1).up()\n"
    words = [sys.executable, "-u", "-c", code + "print('up'); input()", str(tmp_path / "t")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe) as owner:
        assert owner.stdout and owner.stdout.readline() == b"up\n"
        testbed = Testbed.attach(tmp_path / "t")
        assert testbed.is_up()
        owner.kill()
    wait_for(lambda: not testbed.is_up(), "the end of the testbed")


def test_command_line(tmp_path: Path) -> None:
    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slurm.testbed", words[0], "--dir", str(tmp_path / "t"), *words[1:]]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)

    refused = cli("shell")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    try:
        up = cli("up", "--nodes", "2", "--site", "alvis")
        assert up.returncode == 0, up.stderr
        assert f"export PATH={tmp_path}/t/bin:$PATH" in up.stdout
        assert "is up in" in cli("up").stderr
        assert cli("kill", "alvis3-02").returncode == 0
        assert cli("run", "--node", "alvis3-02", "--", "true").stderr == "alvis3-02 is off: boot it\n"
        assert "use one of alvis3-01, alvis3-02" in cli("boot", "node9").stderr
        assert cli("boot", "alvis3-02").returncode == 0
        assert cli("run", "--user", "bob", "--node", "alvis3-02", "--", "whoami").stdout == "bob\n"
    finally:
        assert cli("down").returncode == 0
    assert "no testbed is up" in cli("run", "true").stderr


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(TestbedError, match="not empty"):
        Testbed(tmp_path).up()
    assert (tmp_path / "thesis.tex").exists()


def test_missing_programs_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slurm.testbed.requirements.SBIN", "")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert missing() == (
        "the testbed needs programs that are not installed: apt-get install -y iproute2 munge slurm-wlm util-linux"
    )


def test_without_root_it_says_so(tmp_path: Path) -> None:
    words = ["runuser", "-u", "nobody", "--", "env", f"PYTHONPATH={REPOSITORY}", "python3", "-c"]
    code = "from slurm.testbed.requirements import missing; print(missing())"
    done = subprocess.run([*words, code], capture_output=True, text=True, cwd="/")
    assert "needs root" in done.stdout, done.stderr
