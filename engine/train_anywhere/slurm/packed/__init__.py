"""`cluster.pack_env=true`: the environment and the code of a job as two archives, which each node unpacks once onto its own disk.

1. `environment` finds the virtual environment and says what is in it, by a key; `archive` packs it on the login node, once for each
   key, and the copy of the code of each job.
2. The batch script (slurm/templates/_prepare.sh.j2) starts `unpack` once on each node, before the ranks.
3. The ranks, and what runs beside them, are started by the script `python` here: it runs the unpacked Python and code where
   they are, and the shared ones on a node that could not unpack them.

A virtual environment can be moved as long as its pyvenv.cfg says where the Python is that it was made with. So that Python is
packed with it, unless it is the system's, which each node has (https://docs.python.org/3/library/venv.html, PEP 405).
"""
