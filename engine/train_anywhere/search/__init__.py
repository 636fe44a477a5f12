"""A sweep that decides by results: Optuna proposes the values of each trial.

start_search    checks everything, then carries out the study
space           from `key=interval(...)` on the command line to what Optuna draws from
study           the trials so far, in a file of the sweep's folder
loop            several trials at once; `local_trials` and `cluster_trials` start them
trial_table     what is printed at the end

results/<name>/<study>/        study.log  Optuna's journal       study.json  the command       code/  what all its jobs run
results/<name>/<study>-<n>/    the run folder of trial n
"""
