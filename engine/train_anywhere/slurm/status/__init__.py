"""What `jobs.py` prints.

find_runs                         runs by folder, id or job
sources.gather                    asks the scheduler once and reads the files of all runs: a `run_status.Report` of each
text_page, as_json, sweep_page    reports as text, JSON, HTML; `watch_runs` renews them
next_commands                     what to type next
best                              compares runs by their metric
show_logs                         prints and follows logs
local_runs                        runs of this machine
"""
