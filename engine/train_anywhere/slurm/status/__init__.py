"""What runs are doing, as `jobs.py status`, `list` and `best` tell it.

1. `gather` asks the scheduler once for all runs, reads the small files of each run folder (`files`), and makes a `Report` of each.
   What can't be read or asked is left out, or is a sentence of `Gathered`.
2. `page` writes one report as a page, `table` several as a line each, `as_json` all of them as one document, `watch` shows
   them again and again. None of these reads a file or asks a scheduler.
3. `commands` are what to type next; `pending` why a job waits; `best` compares runs by their metric.
"""
