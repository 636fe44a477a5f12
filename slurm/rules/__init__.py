"""The rules that a job must keep, by what they are about; `slurm.sites` asks them all.

A rule takes a `Case` and yields one sentence for each thing that is wrong: what, why, what to type instead.
"""
