#!/usr/bin/env bash
# Install the Debian packages that the tests use: Slurm, Open MPI, a C++ compiler for Horovod. Needs root unless all are installed.
set -euo pipefail
packages=(slurm-wlm slurm-wlm-torque libslurm-dev munge openmpi-bin libopenmpi-dev openssh-server iproute2 rsync
  slurmdbd mariadb-server-core debootstrap g++ cmake make git strace)
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || { echo "error: some packages are missing, and installing them needs root: sudo apt-get install ${missing[*]}" >&2; exit 1; }
echo "installing ${missing[*]}" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
