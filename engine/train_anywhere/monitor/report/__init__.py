"""The report of a run: RUN/report.html, a single page without external files.

`page` collects the content, in the order of the page, for the template `page.html.j2`. `figures` draws curves as SVG. `timeline` places
attempts and checkpoints on a time axis. Sentences come from `monitor/verdicts.py`, the use of time from `monitor/goodput.py`, and all
facts from the files of the run folder (`monitor/run_facts.py`).
"""
