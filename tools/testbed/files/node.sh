# Process 1 of a compute node: sets up its address, /tmp and /dev/shm, then runs slurmd.
# Usage: node.sh DIR NAME ADDRESS GATEWAY SSH [SHARED FOLDER BELOW /tmp]...
set -e
umask 022
dir=$1 name=$2 address=$3 gateway=$4 ssh=$5
shift 5

hostname "$name"
while ! ip link show eth0 > /dev/null 2>&1; do sleep 0.01; done # connected from outside, see Machines.boot
ip link set lo up
ip addr add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$gateway"

mount -t tmpfs -o mode=1777 shm /dev/shm
# A private /tmp, like a node's own disk, empty after each start. Shared folders below /tmp are mounted into it again.
mkdir -p /run/outer_tmp
mount --bind /tmp /run/outer_tmp
mount -t tmpfs -o mode=1777,size=4g tmp /tmp
for folder; do
  mkdir -p "$folder"
  mount --bind "/run/outer_tmp/${folder#/tmp/}" "$folder"
done
umount -l /run/outer_tmp

if [ "$ssh" = 1 ]; then /usr/sbin/sshd -f "$dir/etc/ssh/sshd_config" -E "$dir/log/sshd-$name.log"; fi
mkdir -p "/run/slurmd/$name"
ulimit -c 0
slurmd -D &
wait $!
