"""Observation of a run while it trains, and its report.

heartbeat      each rank writes its progress to node memory; `ranks` reads it on the same node
live           live.json with the progress of the training, the time in each section, and requests of `jobs.py` to a run
run_facts      reads the facts of a run from its folder; `verdicts` puts them into sentences
report         RUN/report.html
"""
