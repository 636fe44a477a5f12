"""Starting a run on this machine.

1. `command` completes the command line before Hydra reads it, and turns what went wrong into one message and an exit code.
2. `local.start` checks the configuration (`ahead`: data, model and checkpoints, by what is cheap to learn), makes or reopens the run
   folder and freezes the configuration in it. With `-m`, `sweep` does so for each member, one after the other.
3. `processes` starts one process per rank and watches over them, or is the only rank itself; beside them it starts a side process
   (`monitor`).
4. `rank` is what every launcher starts, here and in jobs: it reads the frozen configuration, discovers which rank it is, imports one
   framework's training loop, and records how the run ended. `failure` is what it says of an error.
5. `launcher` runs another launcher in a job, and makes its page about a rank that ended a sentence.
"""
