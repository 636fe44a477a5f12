"""The hang watch, `monitor.hang_minutes`: ranks that are missing, slow or hang.

hangs         detects ranks that have not started, that hang, and which one blocks the others
stacks        makes each rank write its stack traces; with `monitor.hang=requeue`, kills the ranks so that the job is requeued
watch         all of this as a service of a node's monitor process; on the first node it decides, prints and writes RUN/monitor/watch.json
"""
