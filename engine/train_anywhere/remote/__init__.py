"""The same commands on another machine, over the system's ssh and rsync: `on=NAME` and `jobs.py --on NAME`.

connection         configs/hosts/NAME.yaml; ssh and rsync, quoting for any login shell, and what their failures mean
sent_files         the files that travel, and their transfer
remote_command     a command there: transfer, environment, request; the verbs of jobs.py there
run_copies         run folders that are pulled; what hosts answer, checked
request_there      the other end: a command starts once, however often its connection is lost

A folder there is marked with the copy of the project and the branch that it has. `.remote/` in it holds:

owner              the mark            sent       the files that a transfer has sent, and may delete
commit             their commit        setup      the requirements that are installed
requests/<id>/     command, output and exit code of a request
"""
