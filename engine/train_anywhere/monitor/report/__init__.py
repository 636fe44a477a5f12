"""The report of a run: RUN/report.html, one page without anything from outside, for people and for the record.

`page`: what is shown, in the order of the page; its layout is `page.html.j2`. `figures`: curves as SVG. `timeline`: attempts
and checkpoints on one line of time. What is said in words comes from `monitor/verdicts.py`, where the time went from
`monitor/goodput.py`, and all of it from the files of the run folder (`monitor/run_facts.py`).
"""
