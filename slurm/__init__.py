"""The login node's side of a job: what it needs, what the site allows, its script, its submission, its state.

    job      Config -> Job: every number resolved        submit   run folder, snapshot of the code, sbatch or qsub
    sites    the rules of the site, all at once          queue    squeue, sacct, scontrol: what became of a job
    render   Job -> the text of the script               testbed  a real Slurm on one machine

No framework is imported here: it has to start fast on a login node.
"""
