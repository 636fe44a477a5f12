"""Run folders: a run keeps one folder, results/<name>/<run id>/, through all restarts and resumes.

docs/reference/run-folder.md lists its files, each with its writer. run.json is written by `RunDir.update`: the submission, `RunRecorder` on
rank 0, the supervisor after the ranks, and `jobs.py cancel`.

`folder`: the folder and run.json. `recorder`: rank 0's writer of run.json. `attempts`: its attempts, and RUN/debug. `metrics_csv`: the
writer of the curve, `facts`: the reader of the other files. `lock`: one job at a time. `reopen`: resuming a run folder, and checks of the
code that it brings. `provenance`: the commit and versions of packages. `summary`: the lines printed at the end.
"""
