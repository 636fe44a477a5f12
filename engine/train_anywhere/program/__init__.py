"""Any program in place of a training: `python src/run.py cluster=X -- script.py --its --arguments`.

named_program        what `src/run.py` accepts: keys that mean something, and a script of this project
program_environment  variables for torch, Horovod, TensorFlow, and the folders of the run
copy_files           copies what a rank writes to its node's disk into the run folder
run_program          one rank: starts the program, passes signals on, records how it ended
"""
