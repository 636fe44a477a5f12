"""A sweep that decides by results: Optuna proposes the values of each trial, by what those before have reached.

`space`: from `key=interval(...)` on the command line to what Optuna draws from. `study`: the trials so far, in a file of the sweep's
folder. `here`, `cluster`: begin a trial as a process of this machine, or as a job, and say when it has ended. `loop`: several trials
at once, until all are done; interrupted, the same command goes on. `table`: what is printed at the end.

results/<name>/<study>/        study.log  Optuna's journal       study.json  the command       code/  what all its jobs run
results/<name>/<study>-<n>/    the run folder of trial n
"""
