"""Run folders: one run, one folder, whatever happens to the run.

results/<name>/<run id>/ holds, with its writer:

    config.yaml overrides.txt     the submission or local start, and each resume: the complete configuration and the overrides
    run.json state                state, attempts, jobs, hosts, metrics: `RunDir.update`, called by the submission, by
                                  `RunRecorder` on rank 0, by `jobs.py cancel`; the batch script writes `state`
    jobs.txt                      the submission: one job id a line
    job.sbatch (job.pbs) code/    the submission: the batch script, and the code as it was
    slurm-<job>.out .err          the scheduler; PBS: pbs-<job>.out .err
    ranks/                        each rank with `monitor.ranks=true`: where it runs, a checksum of its weights
    lock steps                    rank 0 while it trains: who trains here, and how far it is (every few seconds)
    checkpoints/                  rank 0's worker thread, see `checkpoints`; where the state is sharded, all ranks write their parts
    metrics.csv tensorboard/      rank 0, at each log interval
    monitor/                      the side process of each node, see `monitor`
    bad_nodes                     whoever found one: the nodes that the job does not want again
    debug/                        whoever left something out of the log: ranks, and what launched them
    before-1/                     `from_scratch=true`: what was trained before

`folder`: the folder and run.json, which `recorder` writes on rank 0; `run_info`: whether it holds what it should; `attempts`: reads them.
`lock`: one job at a time. `reopen`: a run folder that is resumed, with code that it may bring. `summary`: what is printed at the end.
`debug`: what the log leaves out.
"""
