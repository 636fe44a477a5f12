#!/bin/sh
# Runs ${command} on the testbed's login node. This folder is taken out of PATH: a job inherits PATH, and must
# find the real command there.
PATH=$$(echo ":$$PATH:" | sed -e "s#:${dir}/bin:#:#g" -e "s#^:##" -e 's#:$$##')
export PATH
if ! [ -d "/proc/$$(cat ${dir}/run/login.pid 2>/dev/null)/ns" ]; then
  echo "${command}: the Slurm testbed in ${dir} is not up" >&2
  exit 1
fi
exec nsenter --target "$$(cat ${dir}/run/login.pid)" --net --uts --mount --ipc --wdns="$$PWD" ${program} "$$@"
