"""Report the states of runs, for `jobs.py`.

find_runs                         finds runs by folder, id or job
gather                            queries the scheduler once and reads the files of each run: a `Report` of each
job_end                           explains why a job ended, or why it waits
text_page, sweep_page             reports as text, JSON, HTML
best                              compares runs by their metric
show_logs                         prints and follows logs and reports
local_runs                        runs of this machine, without a scheduler; whose jobs a run folder names
"""
