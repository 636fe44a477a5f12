"""What is seen of a run while it trains.

heartbeat      each rank writes where it is; `ranks` reads that on its node
node           the side process of a node: calls the parts of features (`features.hangs`, `sampler`, `serve`) at intervals
live           RUN/monitor/live.json, how far the training is
times          where the time goes; `goodput` and `efficiency` compute shares of it
run_facts      what a run folder says of a run; `verdicts` in sentences
report         RUN/report.html

Everything is written below RUN/monitor. What a disk refuses is written at the next sample.
"""
