"""The testbed is a real cluster: proofs of what the Slurm tests rely on."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.testbeds import AS_ASKED
from tools.testbed.testbed_cluster import Testbed
from tools.testbed.testbed_config import PACKAGES, can_build, make_image
from tools.testing.processes import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def test_every_node_has_its_own_name_address_tmp_and_shm(testbed: Testbed) -> None:
    look = "echo $(hostname) $(hostname -I) $(ls $mine 2>/dev/null | wc -l); touch $mine"
    look = f"mine='/tmp/mine /dev/shm/mine'; {look}"
    lines = testbed.run(["srun", "--nodes=4", "bash", "-c", look]).stdout.splitlines()
    again = testbed.run(["srun", "--nodes=4", "bash", "-c", look]).stdout.splitlines()
    assert sorted(lines) == [f"node{n} 10.77.0.{n} 0" for n in range(1, 5)]
    assert sorted(again) == [f"node{n} 10.77.0.{n} 2" for n in range(1, 5)]
    assert not Path("/tmp/mine").exists()


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
        "--partition=batch", "--constraint=v100&cpu_intel_platinum_8260", "--gpus=v100:8", "--cpus-per-gpu=5",
    ]  # fmt: skip
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
@pytest.mark.quick("neuron-options1-does not take --mem", "narval-options5-")
def test_rules_of_a_site_are_enforced(
    testbed_for: Callable[..., Testbed], site: str, options: list[str], said: str
) -> None:
    done = testbed_for(site).run(["sbatch", "--test-only", *options, "--wrap=true"])
    assert said in done.stderr
    assert (done.returncode == 0) == (said == "")


def test_time_limit_of_run_ends_everything_it_started(testbed: Testbed) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        testbed.run(["srun", "--job-name=too-long", "sleep", "77"], timeout=1)
    queue = ["squeue", "--noheader", "--name=too-long", "--states=running"]
    wait_until(lambda: testbed.run(queue).stdout == "")


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
    testbed: Testbed,
    shared_dir: Path,
    user: str | None,
    monkeypatch: pytest.MonkeyPatch,
    require: Callable[[object, str], None],
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)  # the image does not have it
    require(can_build(), f"apt-get install -y {PACKAGES}")
    make_image(shared_dir / "image", environment={"FROM_IMAGE": "yes"})
    (shared_dir / "code").mkdir()
    script = "echo $(id -un) $(hostname) $PWD $SLURM_PROCID $FROM_IMAGE $(ls -d /var 2>/dev/null | wc -l)\n"
    (shared_dir / "code/train.sh").write_text(script)
    container = [f"--container-image={shared_dir}/image", f"--container-mounts={shared_dir}/code:/code:ro"]
    container += ["--container-workdir=/code", "--no-container-entrypoint"]
    words = ["srun", "--nodelist=node1,node2", "--ntasks-per-node=1", *container, "sh", "train.sh"]
    done = testbed.run(words, user=user, cwd="/")  # a folder of the container too
    name = user or "root"
    assert sorted(done.stdout.splitlines()) == [
        f"{name} node1 /code 0 yes 0",
        f"{name} node2 /code 1 yes 0",
    ], done.stderr
    written = testbed.run(["srun", "--ntasks=1", *container, "touch", "/code/x"], cwd=shared_dir)
    assert "Read-only file system" in written.stderr
    assert done.stderr == ""


def test_container_image_that_is_not_there(testbed: Testbed, require: Callable[[object, str], None]) -> None:
    require(can_build(), f"apt-get install -y {PACKAGES}")
    done = testbed.run(["srun", "--ntasks=1", "--container-image=/nowhere.sqsh", "true"])
    assert done.returncode != 0
    assert "can't find image /nowhere.sqsh" in done.stderr
