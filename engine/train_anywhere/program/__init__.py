"""Any program in place of a training: `python src/run.py cluster=X -- script.py --its --arguments`.

named_program        what `src/run.py` accepts: keys that mean something, and a script of this project
program_environment  variables for torch, Horovod, TensorFlow, and the folders of the run
program_process      the program's process, and the signal that asks it to stop
run_program          one rank: starts the program, passes signals on, copies its files (checkpoints.disk.copy_files), records how it ended
"""
