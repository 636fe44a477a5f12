"""A hyperparameter search: Optuna proposes each trial from earlier results.

loop      checks the command, then runs several trials at once until all are done
study     the search space, and the trials so far, in Optuna's journal in the study's folder
trials    starts trials, as processes of this machine or as jobs

results/<name>/<study>/        study.log  Optuna's journal       study.json  the command       code/  the code that all jobs run
results/<name>/<study>-<n>/    the run folder of trial n
"""
