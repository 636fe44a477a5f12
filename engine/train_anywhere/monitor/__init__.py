"""Observation of a run while it trains, and its report.

heartbeat      each rank writes its progress to node memory; `ranks` reads it on the same node
node           the monitor process of a node: polls services of features (`features.hangs`, `sampler`, `serve`)
live           RUN/monitor/live.json: progress of the training; the time spent in each section, for `goodput`
run_facts      reads the facts of a run from its folder; `verdicts` puts them into sentences
report         RUN/report.html

All files but the report are in RUN/monitor. If a write fails, the next one tries again.
"""
