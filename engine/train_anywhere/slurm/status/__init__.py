"""Report the states of runs, for `jobs.py`.

find_runs                         finds runs by folder, id or job, and reads their states; whose jobs a run folder names
gather                            queries the scheduler once and reads the files of each run: a `Report` of each; their costs
job_end                           explains why a job ended, or why it waits
text_page, sweep_page             reports as text, JSON, HTML: a page, a list
best                              compares runs by their metric
show_logs                         prints and follows logs and reports
"""
