"""The hang watch, `monitor.hang_minutes`: ranks that are missing, slow or hang.

hangs         detects ranks that have not started, that hang, and which one blocks the others
supervisor    on the first node: detects slow ranks, decides, prints and writes RUN/monitor/watch.json
stacks        makes each rank write its stack traces; with `monitor.hang=requeue`, kills the ranks so that the job is requeued
rank_watch    all of this as a service of a node's monitor process
"""
