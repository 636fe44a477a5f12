"""Refusals of a site or its scheduler, and presets that are wrong themselves."""

from engine.tests.bad_inputs.row import Damage, Row, fifo, folder, link, with_mode

PRESET = "project/configs/cluster/mine.yaml"


def preset(
    site: str = "", keys: str = "", head: str = "defaults:\n  - slurm\n  - _self_\n"
) -> dict[str, Damage]:
    """A preset called mine, with these lines of `cluster.site` and of `cluster`."""
    lines = [f"  {k}" for k in ("name: mine", *keys.splitlines())]
    facts = ["  site:", *(f"    {f}" for f in site.splitlines())] if site else []
    return {PRESET: "# @package _global_\n" + head + "cluster:\n" + "\n".join([*lines, *facts]) + "\n"}


COMMENT = "'cluster.comment=field=nlp;appl=pytorch'"
NEURON = f"cluster=neuron {COMMENT} cluster.site.submit_below=[]"
FIR = "cluster=fir cluster.account=def-me"
SITES = {
    "cluster=neuron": "neuron rejects jobs without comment.*use \"cluster.comment='field=nlp;appl=pytorch'\"",
    "cluster=neuron cluster.comment=hello": "cluster.comment=hello does not have the form that neuron requires; use",
    "cluster=neuron cluster.comment=größe": "cluster.comment=größe does not have the form that neuron requires",
    "cluster=neuron 'cluster.comment=field=;appl='": "cluster.comment=.* does not have the form",
    f"cluster=neuron {COMMENT}": "neuron accepts jobs only from below /scratch/ada, and this is",
    f"{NEURON} cluster.time=49:00:00": "cluster.time=49:00:00 is over neuron's limit of 48:00:00; use cluster.time=48:00:00",
    f"{NEURON} trainer.devices=9": "trainer.devices=9 GPUs per node, but a node of neuron .*has 8; use trainer.devices=8",
    f"{NEURON} trainer.nodes=8": "64 GPUs are over neuron's limit of 56; use fewer",
    f"{NEURON} strategy=ddp cluster.cpus_per_task=20": "cluster.cpus_per_task=20 are 160 CPUs per node.*use cluster.cpus_per_task=8",
    "cluster=trillium cluster.account=def-me trainer.devices=2": "trainer.devices=2, but trillium gives 1 or 4 GPUs",
    "cluster=trillium cluster.account=def-me cluster.requeue=true": "cluster.requeue=true, but trillium accepts no submissions",
    "cluster=fir": r"fir rejects jobs without account.*use cluster.account=def-<pi>. Source: https://docs.alliancecan.ca/wiki/Fir \(2026-11\); cluster.check=warn",
    f"{FIR} cluster.time_min=soon": "cluster.time_min: 'soon' is not a time limit",
    f"{FIR} cluster.time_min=0": "cluster.time_min=0 must be above 0",
    f"{FIR} cluster.gres=gpu:4": "cluster.gres=gpu:4 requests GPUs",
    "cluster=pbs cluster.nodelist=a": "cluster.nodelist=a would be ignored, because the outline pbs.sh.j2 does not use it; leave it out, use cluster.extra",
    "cluster=pbs cluster.qos=a": "cluster.qos=a would be ignored",
    "cluster=pbs cluster.gpu_type=a": "cluster.gpu_type=a would be ignored",
    f"{FIR} cluster.mem=2000G": "2000G of memory per node, but a node of fir .*gives 1120G; use cluster.mem=1120G",
    f"{FIR} cluster.mem_per_gpu=1T": "of memory per node, but a node of fir",
    "cluster=current": "cluster=current: this machine .*is not a login node of any preset; name one of",
    "cluster=current dry_run=true": "cluster=current: this machine .*is not a login node",
    "data.stage=true": "data.stage=true copies files to the disk of each node, but data=digits has none to copy.*use data.stage=false",
    "data=synthetic data.stage=true": "data.stage=true copies files.*data=synthetic has none to copy",
    "data=mnist data.stage=2": "data.stage=.?2.? is not true or false",
    "data=imagefolder data.dir=/etc/hostname data.stage=true": "/etc/hostname/train can't be listed .Not a directory",
    "cluster=slurm cluster.pack_env=true": "cluster.pack_env was removed: use a container, or let each node unpack one file",
    "monitor.idle=stop": "monitor.idle=stop was removed: use monitor.idle=warn, .* `python src/jobs.py cancel`",
    "monitor.notify=https://x": "monitor.notify was removed: use cluster.mail_type=ALL",
}
TIMES = ("soon", "24h", "-5", "1:2:3:4", "''", "1.5", "nan", "true", "²", "٣", "[1]", "9" * 400)
BEGINS = ("later", "25:00", "now+1month", "2026-02-31", "''", "1200", "true", "[noon]")
SIZES = ("lots", "10Q", "-5G", "''", "nan", "inf", "1e3G", "10 000M", "²G", "true", "9" * 400 + "T")
OPTIONS = {
    "\"cluster.extra=['part']\"": "cluster.extra: 'part' is not an option; write it as for sbatch, such as --licenses=x",
    "\"cluster.extra=['--part=y']\"": "cluster.extra: .*--part is short for it",
    "\"cluster.extra=['--licenses=x --nodes=9']\"": "cluster.extra: .*--licenses=x --nodes=9.*write a list",
    "\"cluster.extra=['--nodes=9']\"": "the script sets --nodes itself.*use trainer.nodes=",
    "\"cluster.extra=['-N9']\"": "the script sets --nodes itself",
    "\"cluster.extra=['-N 9']\"": "the script sets --nodes itself",
    "\"cluster.extra=['--no']\"": "cluster.extra: .*--no",
    "\"cluster.extra=['--export=NONE']\"": "cluster.extra: --export=NONE drops the login environment; leave it out",
    "\"cluster.extra=['--tres-per-task=gres/gpu:1']\"": "cluster.extra: --tres-per-task hides a node's other GPUs",
    "\"cluster.extra=['--gpus-per-task=1']\"": "cluster.extra: --gpus-per-task hides a node's other GPUs",
    "\"cluster.extra=['--constraint=a']\"": r"cluster.extra: of two --constraint options only the last counts; use 'cluster.constraint=",
    "\"cluster.extra=['']\"": "cluster.extra.*'' is (empty|no option)",
    "\"cluster.extra=['--comment=a\nb']\"": "cluster.extra=.*line break",
    "'cluster.account=a\nb'": "cluster.account='a.nb' has a line break",
    "'cluster.partition=a\tb\rc'": "cluster.partition=.*line break",
    "'cluster.modules=[\"a\nb\"]'": "cluster.modules=.*line break",
    "cluster.venv={row}/none": r"cluster\.venv=.*/none.*(not there|activate|python -m venv)",
    "cluster.venv=~/none": r"cluster\.venv=.*none.*(not there|activate|python -m venv)",
    "cluster.venv={row}/home": r"cluster\.venv=.*/home.*(activate|no virtual environment)",
    "cluster.conda={row}/none": r"cluster\.conda=.*/none.*(not there|conda)",
    "cluster.conda=~/none": r"cluster\.conda=.*none.*(not there|conda)",
    "paths.results=/nothere-and-not-to-be-made": "/nothere.*use paths.results=",
    "data=imagefolder data.dir=/nothere": r"data\.dir=/nothere|/nothere.*data\.dir",
    "data=mnist data.download=false data.dir={row}/none": r"data\.dir=.*none|none.*data\.(dir|download)",
}  # fmt: skip
FACTS = {
    "max_time: forever": r"cluster\.site\.max_time.*'?forever'? is not a time limit",
    "max_time: -1": r"cluster\.site\.max_time",
    "nodes: [{gpus: 4, max_time: soon}]": r"cluster\.site\.nodes\[0\]\.max_time: 'soon' is not a time limit",
    "max_gpus: 0": r"cluster\.site\.max_gpus=0 must be at least 1",
    'account: "(def"': r"cluster\.site\.account.*\(def.*regular expression",
    'comment: "*"': r"cluster\.site\.comment.*\*.*regular expression",
    "nodes: 3": r"cluster\.site\.nodes='3' is not a list",
    "nodes: [{cpus: 4}]": r"cluster\.site\.nodes\[0\]\.gpus' is missing",
    "nodes: [{gpus: 0}]": r"cluster\.site\.nodes\[0\]\.gpus=0 must be at least 1",
    "nodes: [{gpus: 4, mem: lots}]": r"cluster\.site\.nodes\[0\]\.mem.*'lots' is not an amount of memory",
    "nodes: [{gpus: 4, mem: 0}]": r"cluster\.site\.nodes\[0\]\.mem",
    "nodes: [{gpus: 4, gpu_mem: big}]": r"cluster\.site\.nodes\[0\]\.gpu_mem.*'big' is not an amount of memory",
    "nodes: [{gpus: 4, counts: []}]": r"cluster\.site\.nodes\[0\]\.counts",
    "nodes: [{gpus: 4, counts: [8]}]": r"cluster\.site\.nodes\[0\]\.counts",
    "nodes: [{gpus: 4, gpu: a100}]": r"cluster\.site\.nodes\[0\]\.gpu'.*not a key.*Did you mean '.*gpus",
    "nodes:\n  - gpus": r"cluster\.site\.nodes\[0\]='gpus'",
    "hosts: login": r"cluster\.site\.hosts='login' is not a list",
    "notes: text": r"cluster\.site\.notes='text' is not a list",
    "max_tme: 1": r"cluster\.site\.max_tme' is not a key.*max_time",
}
BROKEN: dict[str, Damage] = {
    "a tab": "cluster:\n\tname: mine\n",
    "an indent": "cluster:\n  name: mine\n time: 3\n",
    "a key twice": "cluster:\n  name: mine\n  name: other\n",
    "no UTF-8": b"cluster:\n  name: \xff\xfe\n",
    "an open quote": 'cluster:\n  name: "mine\n',
    "an open bracket": "cluster: [1, 2\n",
    "a list": "- a\n- b\n",
    "a word": "cluster\n",
    "a control character": "cluster:\n  name: a\0b\n",
    "an unknown default": "defaults:\n  - nothere\ncluster:\n  name: mine\n",
    "defaults that are not a list": "defaults: slurm\ncluster:\n  name: mine\n",
    "itself among its defaults": "# @package _global_\ndefaults:\n  - mine\n  - _self_\ncluster:\n  name: mine\n",
    "an alias of nothing": "cluster: *nothere\n",
    "a Python object": "cluster: !!python/object/apply:os.system [touch /tmp/HACKED]\n",
    "two documents": "cluster:\n  name: mine\n---\nb: 1\n",
    "a value that refers to itself": "# @package _global_\ndefaults:\n  - slurm\n  - _self_\ncluster:\n  name: ${cluster.name}\n",
    "a value that refers to nothing": "# @package _global_\ndefaults:\n  - slurm\n  - _self_\ncluster:\n  name: ${nothere}\n",
    "no package line": "cluster:\n  name: mine\n  scheduler: slurm\n",
    "a folder": folder,
    "a FIFO": fifo,
    "a link to nothing": link("nothere"),
    "a link to itself": link("mine.yaml"),
}
BREAKS_CURRENT = (
    "a tab", "no UTF-8", "a list", "a word", "a folder", "a FIFO", "a link to nothing", "a key twice",
)  # fmt: skip
THERE: dict[str, Damage] = {**BROKEN, "nothing": "", "unreadable": with_mode(0)}

ROWS = [
    *(Row(words, says) for words, says in SITES.items()),
    *(Row(f"cluster=slurm cluster.begin={t}", r"cluster\.begin(=|: )") for t in BEGINS),
    Row("after={run}", "after=RUN makes a job wait in a queue, and this machine has none; name a cluster"),
    Row("-m after={run} seed=1,2", "after=RUN makes a job wait in a queue, and this machine has none"),
    Row("cluster=slurm after=nothere", "after=nothere: (no run is called 'nothere'|there is no run)"),
    Row("cluster=slurm after={row}/none", "after=.*/none: no run is called"),
    Row("cluster=slurm after=", "after='?'? (is empty|.*)"),
    Row("cluster=slurm after={run}", "that run is failed and has no job"),
    Row("-m cluster=slurm after={run},{job}", "after can't be swept"),
    Row("cluster=slurm after={job}", "squeue.*Unable to contact", programs={"squeue": "echo Unable to contact >&2; exit 1", "sbatch": "echo 9"}, name="after= while the queue is silent"),
    Row("cluster=slurm after={job}", "that run failed, so a job that waits for it would never start", programs={"squeue": "echo '4001|FAILED'", "sbatch": "echo 9"}, name="after= a run that failed"),
    Row("cluster=pbs cluster.begin=tomorrow", "cluster.begin: 'tomorrow' is understood only by Slurm, and PBS takes a date"),
    Row("cluster=pbs cluster.exclusive=user", "cluster.exclusive=user is known to Slurm only"),
    Row("cluster=pbs cluster.nice=2000", "cluster.nice=2000 is too large for PBS; use cluster.nice=1024"),
    Row("cluster=slurm cluster.exclusive=yes", "cluster.exclusive='yes' is not true or false or user"),
    Row("cluster=slurm cluster.max_gpu_hours=1 cluster.time=90", "1 GPU x 1:30:00 may be 1.5 GPU hours, over cluster.max_gpu_hours=1"),
    Row("-m cluster=slurm seed=1,2 cluster.max_gpu_hours=1 cluster.time=45", "^error: 1 GPU x 0:45:00 x 2 jobs may be 1.5 GPU hours"),
    Row("cluster=slurm cluster.max_gpu_hours=1", "cluster.max_gpu_hours=1 needs a job with a time limit"),
    *(Row(f"cluster=slurm cluster.time={t}", r"cluster\.time(=|: )", name=f"cluster.time={t}"[:60]) for t in TIMES),
    *(Row(f"cluster=slurm 'cluster.mem={s}'", r"cluster\.mem(=|: )", name=f"cluster.mem={s}"[:60]) for s in SIZES),
    Row("cluster=slurm cluster.mem_per_gpu=lots", r"cluster\.mem_per_gpu: 'lots' is not an amount of memory; use a form like 180G"),
    *(Row(f"cluster=slurm cluster.local_disk=/local {words}", says) for words, says in OPTIONS.items()),
    *(Row("cluster=mine", says, files=preset(fact), name=f"a preset with {fact!r}") for fact, says in FACTS.items()),
    Row("cluster=mine", r"'cluster\.partion' is not a key", files=preset(keys="partion: a"), name="a preset with a slip"),
    *(Row("cluster=mine", r"mine(\.yaml)?|^error: cluster\.name: (Recursive interpolation|Interpolation key 'nothere')", files={PRESET: damage}, name=f"a preset that is or has {what}")
      for what, damage in BROKEN.items()),
    Row("cluster=mine", "mine", files={PRESET: ""}, name="a preset that is empty"),
    Row("cluster=mine", r"mine\.yaml.*([Pp]ermission|can't be read)", files={PRESET: with_mode(0)}, name="a preset that can't be read"),
    *(Row("cluster=current", r"(mine\.yaml|is not a login node)", files={PRESET: THERE[what]}, name=f"cluster=current next to a preset with {what}")
      for what in BREAKS_CURRENT),
    Row("cluster=current", r"(mine\.yaml|is not a login node)", files={PRESET: ""}, name="cluster=current next to an empty preset"),
    *(Row("cluster=current", r"(mine|is not a login node|cluster\.site\.hosts)", files=preset(f), name=f"cluster=current and {f}")
      for f in ("hosts: login", "hosts: 3", "hosts: [[a]]", "hosts: [null]", "hosts: {a: b}")),
    Row("experiment=here", "cluster=current: this machine .*is not a login node",
        files={"project/configs/experiment/here.yaml": "# @package _global_\ndefaults:\n  - override /cluster: current\n"}, name="an experiment for a cluster that is not here"),
    Row("cluster=current", r"fits mine and other", files={**preset('hosts: ["*"]'), PRESET.replace("mine", "other"): '# @package _global_\ncluster:\n  site:\n    hosts: ["*"]\n'},
        name="two presets of one machine"),
]  # fmt: skip
