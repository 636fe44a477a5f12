"""Keys that are fine one by one and contradict each other."""

from tests.bad_inputs.row import Row

PAIRS = {
    "framework=keras strategy=ddp": "strategy=ddp does not work with framework=keras; use strategy=.*mirrored",
    "framework=keras strategy=fsdp": "strategy=fsdp does not work with framework=keras",
    "framework=keras strategy=dp": "strategy=dp does not work with framework=keras",
    "strategy=mirrored": "strategy=mirrored does not work with framework=lightning.*framework=keras",
    "strategy=multiworker_mirrored": "strategy=multiworker_mirrored does not work with framework=lightning",
    "strategy=single trainer.devices=2": "strategy=single uses one device, but 2 are requested; use strategy=auto",
    "strategy=single trainer.total_devices=3": "strategy=single uses one device, but 3",
    "strategy=dp trainer.nodes=2 cluster=slurm": r"strategy=dp works on one node only, but trainer\.nodes=2; use strategy=",
    "framework=keras strategy=mirrored trainer.nodes=2 cluster=slurm": "strategy=mirrored works on one node only",
    "trainer.nodes=2": r"trainer\.nodes=2 needs a cluster.*cluster=",
    "-m seed=1,2 trainer.nodes=2": r"trainer\.nodes=2 needs a cluster",
    "trainer.devices=5": r"data\.batch_size=96 .*5 devices; use data\.batch_size=95",
    "trainer.total_devices=5": r"data\.batch_size=96 .*5 devices",
    "trainer.devices=4 trainer.total_devices=3 cluster=slurm": r"trainer\.devices=4.*trainer\.total_devices=3",
    "trainer.devices=2 trainer.total_devices=3": r"trainer\.devices=2.*trainer\.total_devices=3",
    "trainer.total_devices=1 trainer.nodes=2 cluster=slurm": r"trainer\.total_devices=1 leaves nodes idle",
    "cluster=slurm trainer.nodes=5": r"data\.batch_size=96 .*5 GPUs; use data\.batch_size=95",
    "cluster=slurm launch=horovodrun trainer.devices=2": "launch=horovodrun can't start strategy=ddp.*launch=srun",
    "cluster=pbs launch=srun": "launch=srun needs Slurm, and this cluster has PBS; use launch=mpirun",
    "cluster=pbs launch=torchrun trainer.nodes=2": "launch=torchrun .*PBS does not have; use launch=mpirun",
    "cluster=pbs trainer.total_devices=3 trainer.nodes=2": "uneven jobs are not supported on PBS; use trainer.devices",
    "-m cluster=slurm cluster.chain=3 seed=1,2": r"cluster\.chain=3 works for a single run, not for a sweep",
    "cluster=slurm container=pyxis": "container=pyxis needs an image; use container.image=FILE",
    "cluster=slurm container=pyxis container.image=/none.sqsh": "container.image=/none.sqsh does not exist",
    "cluster=slurm container=apptainer container.image=x.sif": "container.image=x.sif does not exist",
    "cluster=slurm container=pyxis container.image=a launch=mpirun": "container=pyxis is part of srun.*use launch=srun",
    "cluster=pbs container=pyxis container.image=a": "container=pyxis is part of srun",
    "cluster=slurm container=apptainer container.image=a strategy=horovod launch=horovodrun": "launch=horovodrun can't start ranks inside a container",
    "cluster=slurm cluster.mem=10G cluster.mem_per_gpu=5G": r"cluster\.mem.*cluster\.mem_per_gpu",
    "cluster=slurm cluster.time=1 cluster.signal_seconds=120": r"cluster\.time=0:01:00 is not longer than cluster\.signal_seconds=120",
    "cluster=slurm cluster.site.requeue=false": r"cluster\.requeue=true.*use cluster\.requeue=false cluster\.chain=3",
    "monitor.serve=true monitor.tensorboard=false": r"monitor\.serve=true shows what monitor\.tensorboard writes",
    "monitor.serve_address='a b'": r"monitor\.serve_address='a b' is no address .*use monitor\.serve_address=0\.0\.0\.0",
    "trainer.accelerator=gpu": r"trainer\.accelerator=gpu.*no .*GPU.*trainer\.accelerator=(cpu|auto)",
    "framework=keras trainer.accelerator=gpu": r"trainer\.accelerator=gpu.*no .*GPU.*trainer\.accelerator=(cpu|auto)",
    "trainer.accelerator=gpu trainer.devices=2": r"trainer\.accelerator=gpu.*GPU",
    "-m cluster=slurm,local": "one job array of one cluster, or runs here, and this one names slurm, local: .*cluster=slurm, then cluster=local",
    "-m cluster=local,slurm": "one job array of one cluster, or runs here, and this one names local, slurm: .*cluster=local, then cluster=slurm",
    "-m cluster=slurm,pbs": "cluster|scheduler",
    "-m cluster=neuron,ibex": "cluster",
    "-m cluster=slurm trainer.nodes=1,2": r"the members of a sweep share one job array.*(ranks|trainer\.nodes)",
    "-m resume={run},{run} seed=1": "resume|not a run folder",
    "-m resume={run} seed=1,2": "seed|resume|sweep",
    "-m cluster=slurm resume={job} trainer.max_epochs=3,4": "resume|sweep",
    "cluster=local cluster.scheduler=slurm": r"cluster\.scheduler=slurm.*cluster=",
    "cluster=slurm cluster.scheduler=none": r"cluster\.scheduler=none.*cluster=local",
    "trainer.early_stopping.patience=3 trainer.limit_val_batches=0": r"early_stopping.*limit_val_batches|limit_val_batches.*early_stopping",
    "cluster=slurm strategy=horovod framework=keras trainer.devices=7": r"data\.batch_size=",
}  # fmt: skip

OTHER_SWEEPER = "-m wait=true cluster=slurm hydra/sweeper=basic seed="

ROWS = [
    *(Row(words, says) for words, says in PAIRS.items()),
    # Hydra's own sweeper writes multirun.yaml
    Row(OTHER_SWEEPER, "seed='' is not a whole number", writes=r"project/multirun\.yaml"),
]
