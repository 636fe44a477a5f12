"""Run folders: a run keeps one folder through all restarts and resumes.

results/<name>/<run id>/ holds these files, each with its writer:

    config.yaml overrides.txt     the submission or local start, and each resume: the resolved configuration and the overrides
    run.json                      state, attempts, jobs, hosts, metrics: `RunDir.update`, called by the submission, by
                                  `RunRecorder` on rank 0, by the supervisor after the ranks, by `jobs.py cancel`
    jobs.txt                      the submission: one job id per line
    job.sbatch (job.pbs) code/    the submission: the batch script, and a snapshot of the code
    slurm-<job>.out .err          the scheduler; PBS: pbs-<job>.out .err
    ranks/                        each rank with `monitor.ranks=true`: where it runs, a checksum of its weights
    lock steps                    rank 0 while it trains, every few seconds: the process that trains here, and the steps done
    checkpoints/                  rank 0's worker thread, see `checkpoints`; if the state is sharded, all ranks write their shards
    metrics.csv tensorboard/      rank 0, at each log interval
    monitor/                      the monitor process of each node, see `monitor`
    bad_nodes                     the process that found one: nodes that the job must not get again
    debug/                        ranks and their launcher: full tracebacks and output that the log leaves out
    before-1/                     `from_scratch=true`: the results of the earlier training

`folder`: the folder and run.json. `recorder`: rank 0's writer of run.json. `attempts`: its attempts, and RUN/debug. `metrics_csv`: the
writer of the curve, `facts`: the reader of the other files. `lock`: one job at a time. `reopen`: resuming a run folder, and checks of the
code that it brings. `provenance`: the commit and versions of packages. `summary`: the lines printed at the end.
"""
