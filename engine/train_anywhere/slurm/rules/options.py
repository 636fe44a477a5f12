"""Rules about the options in the script, the launch method of the ranks, their container."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.distributed.layout import support
from train_anywhere.errors import ConfigError
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.script.render import OPTIONS, OWN_PBS, SHORT, check_outline, find_template


def outline(request: Request) -> Iterator[str]:
    """Report an outline that does not fit this engine, and keys that it ignores."""
    c = request.job.cluster
    name, use_extra = f"{c.scheduler}.sh.j2", "use cluster.extra, " if c.scheduler == "pbs" else ""
    try:
        text = check_outline(name)
    except ConfigError as error:
        yield from error.problems
        return
    for included in re.findall(r'include "([^"]+)"', text):
        with suppress(OSError):  # rendering reports it
            text += find_template(included).read_text(errors="replace")
    if request.job.gpus and c.gpu_type and c.gpu_request == "none":
        yield (
            f"cluster.gpu_type={c.gpu_type} would be ignored, because with cluster.gpu_request=none no option requests GPUs; "
            "leave it out, or use cluster.partition or cluster.constraint."
        )
    written = ("part",) if "in lines" in text else ("part", "line")
    keys = [o.text.removeprefix("cluster.") for o in OPTIONS.values() if o.kind in written]
    keys += ["gpu_type"] if request.job.gpus else []
    ignored = [key for key in keys if getattr(c, key) and not re.search(rf"(?<![-\w]){key}\b", text)]
    if c.gpu_request == "none" and 'gpu_request == "none"' not in text:
        ignored.append("gpu_request")
    for key in ignored:
        yield (
            f"cluster.{key}={getattr(c, key)} would be ignored, because the outline {name} does not use it; leave it out, {use_extra}"
            "or add it to that file in slurm/templates/ (docs/how-to/batch-script.md)."
        )


def extra_options(request: Request) -> Iterator[str]:
    """Report options in `cluster.extra` that repeat or contradict those of the script."""
    c = request.config.cluster
    if re.search(r"(^|,)(gres[:/])?gpu\b", c.gres or ""):
        yield f"cluster.gres={c.gres} requests GPUs, which the script requests itself; use trainer.devices and cluster.gpu_type."
    check = _slurm_problems if c.scheduler == "slurm" else _pbs_problems
    for text in c.extra:
        wrong = _why_not_one_option(text)
        for sentence in [f"'{text}' {wrong}."] if wrong else check(text, request):
            yield f"cluster.extra: {sentence}"


def _why_not_one_option(text: str) -> str:
    """Return why a string is not a single option. Empty if it is one."""
    try:
        words = shlex.split(text)
    except ValueError:
        return "has an opening quote without a closing one"
    if not re.match(r"--?[A-Za-z]", text):
        return "is not an option; write it as for sbatch, such as --licenses=x"
    if "#" in re.sub(r"\"[^\"]*\"|'[^']*'", "", text):
        return "has a # in it, where the scheduler would cut the line; put the value in quotes"
    if len(words) > 2 or (len(words) == 2 and ("=" in words[0] or words[1].startswith("-"))):
        return f"is more than one option; write a list of them, ['{words[0]}','{' '.join(words[1:])}']"
    return ""


def _slurm_problems(text: str, request: Request) -> Iterator[str]:
    match = re.fullmatch(r"--([A-Za-z-]+)(?:[= ](.*))?|-(\w)[= ]?(.*)", text, re.DOTALL)
    long, long_value, letter, short_value = match.groups() if match else ("", "", None, None)
    written = long or SHORT.get(letter or "", letter or "")
    value = (long_value if long else short_value) or ""
    # as sbatch completes an abbreviated long option
    matching = [name for name in OPTIONS if len(written) > 1 and name.startswith(written)]
    option = written if written in OPTIONS else min(matching, default=written)
    known = OPTIONS.get(option)
    short = "" if option == written else f" (--{written} is short for it)"
    if option == "constraint":
        yield f"of two --constraint options only the last counts; use 'cluster.constraint=[{request.job.constraint or 'a'},{value}]'."
    elif option == "export" and "ALL" not in value.split(","):
        use = "leave it out" if value in ("", "NONE", "NIL") else f"use --export=ALL,{value}"
        yield f"--export={value} drops the login environment; {use}."
    elif option == "clusters":
        yield (
            f"--clusters{short} sends the job to a cluster that src/jobs.py does not query; leave it out, and type "
            f"`export SLURM_CLUSTERS={value or 'NAME'}` before, which all commands read."
        )
    elif known and known.kind == "no":
        yield f"--{option}{short} {known.text}; leave it out."
    elif known and known.kind != "ask":
        key = "trainer.devices" if option == "gres" and "gpu" in value else known.text
        use = _use(key) or "leave it out: the logs are in the run folder."
        yield f"the script sets --{option} itself{short}, and two could contradict each other; {use}"


def _use(key: str) -> str:
    """Return the advice to use a key, a key with a value, or the flag -m."""
    return key and f"use {key}" + ("." if key.startswith("-") or "=" in key else "=...")


def _pbs_problems(text: str, request: Request) -> Iterator[str]:
    letter, value = text[1], text[2:].strip()
    if letter in OWN_PBS and not text.startswith("--"):
        yield f"the script sets -{letter} itself, or can't work with it; {_use(OWN_PBS[letter]) or 'leave it out.'}"
    elif letter == "l" and re.match(r"(select|nodes|ncpus|mem|walltime|ngpus)\b", value):
        yield f"the script sets -l {value.partition('=')[0]} itself; use trainer.nodes, trainer.devices, cluster.mem or cluster.time."


def one_line(request: Request) -> Iterator[str]:
    """Report values with a line break, which would end their line in the script, and a relative path of the node's disk."""
    c = request.config.cluster
    values = {f"cluster.{k}": v for k, v in vars(c).items() if isinstance(v, str)}
    values |= {"cluster.extra": " ".join(c.extra), "cluster.modules": " ".join(c.modules)}
    values["cluster.constraint"] = request.job.constraint or ""
    values["paths.results"] = request.config.paths.results
    for key, value in values.items():
        if re.search(r"[\n\r\0]", value):
            yield f"{key}={value!r} has a line break in it, which a line of a batch script can't have; leave it out."
    if not (disk := c.local_disk).startswith(("/", "$")):
        yield f"cluster.local_disk={disk} is a relative path, but a node's own disk needs an absolute one; use /tmp, or '$SLURM_TMPDIR'."


def launch(request: Request) -> Iterator[str]:
    """Report a launch method that does not fit the strategy or the scheduler."""
    job = request.job
    known, pbs = support(job.framework, job.layout.strategy).launch, request.config.cluster.scheduler == "pbs"
    if job.world_size > 1 and job.launch not in known:  # any method can start one rank
        yield f"launch={job.launch} can't start strategy={job.layout.strategy} of {job.framework}; use launch={'|'.join(known)}."
    if pbs and job.launch == "srun":
        yield "launch=srun needs Slurm, and this cluster has PBS; use launch=mpirun."
    if pbs and job.elastic:
        yield f"PBS starts a job with all its nodes, and this one may have {job.fewest} to {job.nodes}; use trainer.nodes={job.nodes}."
    elif job.elastic and job.launch == "mpirun" and job.cluster.no_kill:
        yield (
            "launch=mpirun may wait for a node that died instead of ending, so a job of a range of nodes can't continue; use "
            "cluster.no_kill=false, with which Slurm requeues it, or another launch=."
        )
    if pbs and job.launch == "torchrun" and job.nodes > 1:
        yield "launch=torchrun starts one torchrun per node through srun, which PBS does not have; use launch=mpirun."
    if pbs and not job.even:
        yield f"trainer.total_devices={sum(job.devices)}: uneven jobs are not supported on PBS; use trainer.devices."


def container(request: Request) -> Iterator[str]:
    """Report a missing image, a launch method that can't start ranks in a container, and what is not a mount."""
    c, job = request.config.container, request.job
    if c.name == "none":
        return
    if c.image is None:
        yield f"container={c.name} needs an image; use container.image=FILE."
    elif re.match(r"/|\.\.?/|~|.*\.(sqsh|sif)$", c.image, re.DOTALL) and not Path(c.image).exists():
        make = "enroot import -o" if c.name == "pyxis" else "apptainer build"
        yield f"container.image={c.image} does not exist; check the path, or make it: `{make} {c.image} docker://...`."
    if c.name == "pyxis" and (job.launch in ("mpirun", "horovodrun") or job.cluster.scheduler != "slurm"):
        yield f"container=pyxis is part of srun, and launch={job.launch} does not start ranks with srun; use launch=srun."
    if c.name == "apptainer" and job.launch == "horovodrun":
        yield "launch=horovodrun can't start ranks inside a container; use launch=srun or launch=mpirun."
    for text in c.mounts:
        parts = text.split(":")
        if len(parts) > 3 or not all(parts) or "," in text or not all(p.startswith("/") for p in parts[1:2]):
            yield f"container.mounts: '{text}' is not a folder, nor of the form OUTSIDE:INSIDE; use container.mounts=[/scratch/me,/a:/in]."


RULES = (outline, extra_options, one_line, launch, container)
