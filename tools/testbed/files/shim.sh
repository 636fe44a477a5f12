#!/bin/sh
# Runs ${command} on the testbed's login node. This folder is removed from PATH, because a job inherits PATH and must
# find the real command.
PATH=$$(echo ":$$PATH:" | sed -e ":a" -e "s#:${dir}/bin:#:#" -e "ta" -e "s#^:##" -e 's#:$$##')
export PATH
read -r pid started 2> /dev/null < ${dir}/run/login.pid
if ! [ -d "/proc/$$pid/ns" ]; then
  echo "${command}: the Slurm testbed in ${dir} is not up" >&2
  exit 1
fi
exec nsenter --target "$$pid" --net --uts --mount --ipc --wdns="$$PWD" ${program} "$$@"
