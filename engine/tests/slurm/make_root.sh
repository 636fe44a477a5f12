# Makes a folder with the Slurm of a newer Debian, for `python slurm/testbed.py up --root FOLDER`; does nothing if it exists.
# Usage: make_root.sh FOLDER     (as root; takes a minute or more; several processes may do it at once)
set -euo pipefail
folder=$1
packages=slurmctld,slurmd,slurm-client,munge,openmpi-bin,openssh-client,openssh-server,iproute2,procps,git,rsync
# what a Python that was built on this machine loads
packages+=,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8t64,libsqlite3-0,libssl3t64,zlib1g

fail() { echo "$folder can't be made: $1" >&2; exit 1; }

PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || fail "run the same command with sudo"
mkdir -p "$(dirname "$folder")"
exec 9> "$folder.lock"
flock 9
[ ! -e "$folder" ] || exit 0
command -v debootstrap > /dev/null || fail "apt-get install -y debootstrap"
mirrors=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' | sort -u)
[ -n "$mirrors" ] || fail "apt knows no mirror of Debian here: apt-get update"
for try in 1 2 3; do
  for mirror in $mirrors; do
    rm -rf "$folder.part"
    # in namespaces: what it mounts and starts ends with it
    timeout --signal=KILL 900 unshare --mount --pid --fork --kill-child debootstrap --variant=minbase \
      --include="$packages" trixie "$folder.part" "$mirror" 2>&1 | tee "$folder.log" || { sleep "$try"; continue; }
    cp --remove-destination --dereference /etc/localtime "$folder.part/etc/localtime"
    rm -rf "$folder.part/var/cache/apt/archives"
    mv "$folder.part" "$folder"
    exit
  done
done
rm -rf "$folder.part"
fail "$(tail -n 1 "$folder.log")"
