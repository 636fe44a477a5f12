"""What must hold for any input: values that nobody thought of, found by hypothesis; the same ones in every run."""

import copy
import dataclasses
import itertools
import math
import re
import shlex
import shutil
import string
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm import units
from slurm.job import make_job
from slurm.render import option, ranges, render
from src.errors import ConfigError, TopologyError
from src.hostlist import expand_hosts, expand_tasks, first_host
from src.interval import MOST, Interval, mtbf, optimal
from src.overrides import compose
from src.plan import make_plan
from src.resume import flatten, unflatten
from src.retention import Retention, Saved
from src.schema import Config, load
from src.starter_variables import job_port, number, train_hosts
from src.strict import build
from src.topology import Topology, discover

EXAMPLES = 150


def bounded(examples: int = EXAMPLES) -> settings:
    """So many examples, the same ones each time, without a limit on the time of one: machines are slow at times."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@cache
def composed(*overrides: str) -> dict[str, Any]:
    """A good tree; not to be changed."""
    return compose(overrides)


DIGITS = st.characters(categories=["Nd", "No", "Nl"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

# --- host lists ----------------------------------------------------------------------------------

NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


@bounded(400)
@given(
    st.text(
        DIGITS | st.sampled_from("na0123[]-,. \t\n²٣(x)") | st.characters(exclude_categories=["Cs"]),
        max_size=9,
    )
)
def test_any_text_is_a_list_of_hosts_or_refused(hosts: str) -> None:
    try:
        names = expand_hosts(hosts)
        first = first_host(hosts)
    except TopologyError as error:
        assert "\n" not in str(error).replace(hosts, "")
        return
    assert names and first == names[0]
    assert all(NAME.fullmatch(name) for name in names), names


@bounded()
@given(st.text(DIGITS | st.sampled_from("0123(x),-"), max_size=9))
def test_any_text_is_a_list_of_tasks_or_refused(tasks: str) -> None:
    try:
        counts = expand_tasks(tasks)
    except TopologyError:
        return
    assert tasks.isascii() and counts and all(c >= 0 for c in counts)


@st.composite
def host_lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A list in Slurm's notation, and the names it means."""
    parts, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        head = draw(st.text(string.ascii_lowercase, min_size=1, max_size=4))
        spans = draw(
            st.lists(st.tuples(st.integers(0, 120), st.integers(0, 3), st.integers(1, 4)), max_size=3)
        )
        numbers = [f"{n:0{width}}" for low, more, width in spans for n in range(low, low + more + 1)]
        written = [f"{low:0{w}}" + (f"-{low + more:0{w}}" if more else "") for low, more, w in spans]
        parts.append(head + (f"[{','.join(written)}]" if spans else ""))
        names += [head + n for n in numbers] if spans else [head]
    return ",".join(parts), names


@bounded()
@given(host_lists())
def test_a_list_of_hosts_is_read_as_it_was_written(pair: tuple[str, list[str]]) -> None:
    assert expand_hosts(pair[0]) == pair[1]
    assert first_host(pair[0]) == pair[1][0]


@pytest.mark.slurm
def test_scontrol_reads_the_same(
    require: Callable[[object, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(shutil.which("scontrol"), "apt-get install slurm-client")
    config = tmp_path / "slurm.conf"
    config.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    monkeypatch.setenv("SLURM_CONF", str(config))

    @bounded(20)
    @given(host_lists())
    def agrees(pair: tuple[str, list[str]]) -> None:
        shown = subprocess.run(["scontrol", "show", "hostnames", pair[0]], capture_output=True, text=True)
        assert shown.stdout.split() == pair[1], shown.stderr

    agrees()


# --- variables of those who start ranks ----------------------------------------------------------

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_num_nodes", "PMIX_SERVER_URI2", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
    "SLURM_TASKS_PER_NODE", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "TRAIN_HOSTS", "PBS_JOBID", "PBS_NODEFILE", "PMI_SIZE", "PMI_RANK",
)  # fmt: skip
GROUPS = [
    [v for v in VARIABLES if v.startswith(p)] for p in ("", "RANK", "LOCAL", "HOROVOD", "OMPI", "SLURM")
]
VALUES = (
    st.sampled_from(["0", "1", "2", "1,1", "2(x2)", "n1:1,n2:1", "n[1-2]", "", "/", "²", "-1", "٣", "x"])
    | TEXT
)


@bounded(300)
@given(
    st.sampled_from(GROUPS).flatmap(lambda g: st.fixed_dictionaries({}, optional=dict.fromkeys(g, VALUES))),
    st.booleans(),
)
def test_any_environment_is_a_place_or_refused(env: dict[str, str], whole: bool) -> None:
    if whole:  # all of a starter's variables, so that they contradict each other
        env = {**dict.fromkeys(GROUPS[1] + GROUPS[3] + GROUPS[4], "1"), **env}
    try:
        place = discover(env)
    except TopologyError as error:
        assert str(error)
        return
    assert 0 <= place.rank < place.world_size
    assert 0 <= place.local_rank < place.local_world_size
    assert 0 <= place.node_rank < place.nodes
    assert isinstance(place, Topology)


@bounded()
@given(st.text(DIGITS | st.sampled_from("0123456789-+_. "), max_size=5))
def test_a_variable_is_a_whole_number_or_refused(value: str) -> None:
    try:
        found = number({"RANK": value}, "RANK")
    except TopologyError as error:
        assert "RANK" in str(error)
        return
    assert re.fullmatch(r"[0-9]+", value) and found == int(value)


@bounded()
@given(st.text(DIGITS | st.sampled_from("ab:,01"), max_size=8), st.integers(1, 4))
def test_train_hosts_are_pairs_or_refused(value: str, ranks: int) -> None:
    try:
        hosts, tasks = train_hosts({"TRAIN_HOSTS": value}, ranks)
    except TopologyError as error:
        assert "TRAIN_HOSTS" in str(error)
        return
    assert (hosts, tasks) == ("", "") or sum(expand_tasks(tasks)) == ranks


@bounded()
@given(st.integers(0, 10**12), st.integers(0, 10**4), st.integers(0, 100))
def test_a_port_is_below_those_of_clients(job: int, step: int, restart: int) -> None:
    assert 10000 <= job_port(job, step, restart) <= 30000 - 16


# --- plans ---------------------------------------------------------------------------------------

LIMITS = st.integers(0, 50) | st.floats(0, 1)


@bounded(300)
@given(st.data())
def test_a_plan_adds_up_or_is_refused(data: st.DataObject) -> None:
    config = load(composed())
    length = st.integers(0, 10**5)
    trainer = dataclasses.replace(
        config.trainer,
        max_epochs=data.draw(st.integers(1, 100)),
        max_steps=data.draw(st.none() | st.integers(1, 10**4)),
        limit_train_batches=data.draw(LIMITS),
        limit_val_batches=data.draw(LIMITS),
        accumulate_grad_batches=data.draw(st.integers(1, 20)),
        fast_dev_run=data.draw(st.booleans()),
    )
    batch = dataclasses.replace(config.data, batch_size=data.draw(st.integers(1, 4096)))
    config = dataclasses.replace(config, trainer=trainer, data=batch)
    lengths, world = [data.draw(length) for _ in range(3)], data.draw(st.integers(1, 64))
    try:
        plan = make_plan(config, *lengths, world)
    except ConfigError as error:
        assert error.problems and all(p and "\n" not in p for p in error.problems)
        return
    assert plan.rows * world == config.data.batch_size
    assert plan.train_batches == plan.steps_per_epoch * plan.accumulate
    assert 1 <= plan.train_batches <= -(-lengths[0] // config.data.batch_size)
    assert (
        (plan.max_epochs - 1) * plan.steps_per_epoch
        < plan.total_steps
        <= plan.max_epochs * plan.steps_per_epoch
    )
    assert plan.total_steps <= (trainer.max_steps or plan.total_steps)
    assert plan.max_epochs <= trainer.max_epochs
    assert 0 <= plan.val_batches <= -(-lengths[1] // config.data.batch_size)
    assert 0 <= plan.test_batches <= -(-lengths[2] // config.data.batch_size)


# --- intervals -----------------------------------------------------------------------------------


@bounded()
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**6))
def test_an_interval_is_a_time_that_grows_with_its_cost(one: float, other: float, devices: int) -> None:
    cheap, dear = (optimal(cost, mtbf(devices)) for cost in sorted((one, other)))
    assert 0 <= cheap <= dear < math.inf
    assert max(one, other) <= MOST * dear * (1 + 1e-9)
    assert optimal(one, mtbf(devices + 1)) <= optimal(one, mtbf(devices))


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf, -1.0, -1e-9])
def test_a_cost_that_is_no_time_is_refused(cost: float) -> None:
    with pytest.raises(ValueError):
        optimal(cost, 3600.0)
    with pytest.raises(ValueError):
        optimal(1.0, cost)


@bounded()
@given(st.lists(st.floats(0, 1e4), max_size=5), st.none() | st.floats(1e-3, 1e6))
def test_the_next_checkpoint_has_a_time(costs: list[float], seconds: float | None) -> None:
    rule = dataclasses.replace(load(composed()).checkpoint, interval="auto", every_n_seconds=seconds)
    interval = Interval(rule, 8, clock=itertools.count().__next__)
    for cost in costs:
        interval.saved(cost)
        assert 0 <= interval.seconds < math.inf


# --- strict loading ------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**64, 0])
    | st.floats()
    | TEXT
    | st.dates()
    | st.binary(max_size=3)
)
KEYS = st.text(max_size=5) | st.integers(0, 3) | st.none() | st.booleans()
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
TREES = (
    "cluster=slurm",
    "data=mnist",
    "data=synthetic",
    "model=mlp",
    "optimizer=sgd",
    "schedule=step",
    "strategy=horovod",
)
PLACES = sorted({tuple(k.split(".")) for t in TREES for k in flatten(compose([t]))})
PLACES += [
    ("cluster", "site", "nodes"),
    ("cluster",),
    ("data",),
    ("model",),
    ("trainer", "early_stopping"),
    ("new", "key"),
]


def with_value(tree: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of the tree with another value in one place."""
    changed = section = copy.deepcopy(tree)
    for key in place[:-1]:
        section = section.setdefault(key, {})
    section[place[-1]] = value
    return changed


@bounded(600)
@given(st.sampled_from(TREES), st.sampled_from(PLACES), ANYTHING)
def test_any_value_in_any_place_is_taken_or_named(chosen: str, place: tuple[str, ...], value: Any) -> None:
    problems: list[str] = []
    made = build(Config, with_value(composed(chosen), place, value), problems)
    assert (made is None) == bool(problems)
    for problem in problems:
        assert place[0] in problem
        assert not re.search(r"[\n\r]", problem), problem


@bounded(200)
@given(st.sampled_from(TREES), st.sampled_from(PLACES), ANYTHING)
def test_a_whole_configuration_is_loaded_or_refused(chosen: str, place: tuple[str, ...], value: Any) -> None:
    try:
        load(with_value(composed(chosen), place, value))
    except ConfigError as error:
        assert error.problems and all(error.problems)


@bounded()
@given(ANYTHING)
def test_a_tree_that_is_no_configuration_is_refused(tree: Any) -> None:
    with pytest.raises(ConfigError):
        load(tree if isinstance(tree, dict) else {"framework": tree})


# --- which checkpoints are kept ------------------------------------------------------------------


@st.composite
def checkpoints(draw: st.DrawFn) -> list[Saved]:
    """Some, of different steps, in any order; a value may be missing or no number."""
    steps = draw(st.lists(st.integers(1, 40), unique=True, max_size=12))
    values = st.none() | st.floats(-1, 1) | st.sampled_from([math.nan, math.inf, -math.inf])
    return [Saved(Path(str(s)), s, s // 4, s % 4, {}, draw(values), "keras") for s in steps]


@bounded(300)
@given(checkpoints(), st.sampled_from(["min", "max"]), st.integers(1, 4), st.none() | st.integers(1, 3))
def test_the_newest_and_the_best_are_always_kept(
    saved: list[Saved], mode: Any, last: int, epochs: int | None
) -> None:
    rule = Retention(mode, last, epochs)
    kept = {int(p.name) for p in rule.reasons(saved)}
    newest = sorted(s.step for s in saved)[-last:]
    assert kept >= set(newest)
    numbers = [s for s in saved if s.value is not None and not math.isnan(s.value)]
    best = rule.best(saved)
    if numbers:
        assert best is not None and best.step in kept
        assert best.value == (max if mode == "max" else min)(s.value for s in numbers if s.value is not None)
    else:
        assert best is None
    other = {s.step for s in saved if epochs and s.batch == 0 and s.epoch and s.epoch % epochs == 0}
    assert kept == set(newest) | other | ({best.step} if best else set())


@bounded()
@given(checkpoints(), st.randoms(use_true_random=False))
def test_their_order_does_not_matter(saved: list[Saved], numbers: Any) -> None:
    mixed = list(saved)
    numbers.shuffle(mixed)
    assert Retention("max", 2).reasons(mixed).keys() == Retention("max", 2).reasons(saved).keys()


# --- scripts, read by the real bash --------------------------------------------------------------

HOSTILE = st.text(
    st.sampled_from("$`'\"\\;&|<>(){}[]*?!#~ \n\t%=-")
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=20,
)


@bounded(25)
@given(st.lists(HOSTILE, min_size=6, max_size=6))
def test_values_reach_the_ranks_as_they_are(values: list[str]) -> None:
    """Folders, interpreter, module and options are hostile at once; programs of the cluster are shell functions."""
    code, python, module, account, comment, conda = values
    account, comment = (re.sub(r"[\n\r\0]", " ", v) for v in (account, comment))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run" + re.sub(r"[\n\r/]", " ", code))
        snapshot = Path(folder, "code" + code.replace("/", " "))
        for made in (run, snapshot):
            made.mkdir()
        (run / "run.json").write_text('{\n  "state": "queued"\n}\n')
        made_job = make_job(load(composed("cluster=slurm")), str(run), str(snapshot))
        cluster = dataclasses.replace(
            made_job.cluster, modules=[module], conda=conda, account=account, comment=comment
        )
        script = render(dataclasses.replace(made_job, cluster=cluster, python=f"/py{python}"))
        seen = shlex.quote(f"{folder}/seen")
        stand_ins = (
            f'say() {{ printf "%s\\0" "$@" >>{seen}; }}\n'
            'module() { say module "$@"; }; conda() { [ "$1" != activate ] || say "$@"; }; scontrol() { echo node1; }\n'
            'srun() { shift 6; say "$@"; }\nexport CONDA_EXE=conda\n'
        )
        environ = {
            "PATH": "/usr/bin:/bin",
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
        assert sorted(p.name for p in Path(folder).iterdir()) == sorted({run.name, snapshot.name, "seen"})


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


# --- flat and nested -----------------------------------------------------------------------------

LEAVES = SCALARS.filter(lambda v: v == v) | st.lists(st.integers(), max_size=2) | st.just({})
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(
        st.text(max_size=4).filter(lambda k: "." not in k), inner, min_size=1, max_size=3
    ),
    max_leaves=8,
)


@bounded()
@given(st.dictionaries(st.text(max_size=4).filter(lambda k: "." not in k), NESTED, max_size=3))
def test_a_tree_comes_back_from_its_flat_form(tree: dict[str, Any]) -> None:
    assert unflatten(flatten(tree)) == tree


# --- times and sizes -----------------------------------------------------------------------------

FORMS: tuple[tuple[str, Callable[..., int]], ...] = (
    ("{2}", lambda d, h, m, s: m * 60),
    ("{2}:{3:02}", lambda d, h, m, s: m * 60 + s),
    ("{1}:{2:02}:{3:02}", lambda d, h, m, s: (h * 60 + m) * 60 + s),
    ("{0}-{1}", lambda d, h, m, s: (d * 24 + h) * 3600),
    ("{0}-{1}:{2:02}", lambda d, h, m, s: ((d * 24 + h) * 60 + m) * 60),
    ("{0}-{1}:{2:02}:{3:02}", lambda d, h, m, s: ((d * 24 + h) * 60 + m) * 60 + s),
)


@bounded()
@given(st.sampled_from(FORMS), st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_every_form_of_a_time(form: tuple[str, Callable[..., int]], d: int, h: int, m: int, s: int) -> None:
    expected = form[1](d, h, m, s)
    text = form[0].format(d, h, m, s)
    assert units.seconds(text) == expected
    assert units.seconds(units.clock(expected)) == expected


def refused(read: Callable[[Any], int], value: Any) -> Iterator[str]:
    """The sentence, where a value is refused; a number is not below 0."""
    try:
        assert read(value) >= 0
    except ValueError as error:
        yield str(error)


@bounded(300)
@given(st.text(DIGITS | st.sampled_from("0123456789:-.GMKTgb "), max_size=9) | TEXT)
def test_any_text_is_a_time_or_size_or_refused(text: str) -> None:
    for read in (units.seconds, units.megabytes):
        said = list(refused(read, text))
        assert said or text.isascii()
        assert all("use" in sentence for sentence in said)


@bounded()
@given(st.integers(0, 10**7))
def test_a_size_is_read_back(mib: int) -> None:
    assert units.megabytes(units.short_size(mib)) == mib
