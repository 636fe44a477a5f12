"""A hyperparameter search: Optuna proposes the values of each trial from the results of earlier ones.

start_search    checks the command, then runs the study
space           converts `key=interval(...)` on the command line to Optuna's distributions
study           the trials so far, in Optuna's journal in the study's folder
loop            runs several trials at once; `local_trials` and `cluster_trials` start them

results/<name>/<study>/        study.log  Optuna's journal       study.json  the command       code/  the code that all jobs run
results/<name>/<study>-<n>/    the run folder of trial n
"""
