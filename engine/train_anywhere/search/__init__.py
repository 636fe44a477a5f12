"""A hyperparameter search: Optuna proposes each trial from the results of the others, when it starts (features/search.py).

loop      checks the command, then submits an array with a task for each trial, or runs the trials here; runs/study.py has the files
"""
