# Process 1 of the login node: starts the network bridge, munge, slurmctld, and accounting and ssh if requested.
# Usage: login.sh DIR GATEWAY SSH ACCOUNTING [ROOT PATH...]     (SSH and ACCOUNTING: 1 or 0; ROOT PATH: see root.sh)
set -e
umask 022
dir=$1 gateway=$2 ssh=$3 accounting=$4

if [ $# -gt 4 ]; then . "$(dirname "$0")/root.sh" "${@:5}"; fi
hostname login
ip link set lo up
ip link add br0 type bridge
ip addr add "$gateway/24" dev br0
ip link set br0 up

for file in hosts passwd group nsswitch.conf; do mount --bind "$dir/etc/$file" "/etc/$file"; done
mount --bind "$dir/etc/slurm" /etc/slurm
mount -t tmpfs -o mode=755 run /run # files of the daemons in /run vanish with the testbed
mkdir -p /run/munge /run/lock /run/sshd

munged --force --key-file="$dir/etc/munge.key" --socket=/run/munge/munge.socket.2 --pid-file="$dir/run/munged.pid" \
  --log-file="$dir/log/munged.log" --seed-file="$dir/run/munged.seed" --num-threads=2
if [ "$ssh" = 1 ]; then
  mount --bind "$dir/etc/ssh/ssh_config" /etc/ssh/ssh_config
  /usr/sbin/sshd -f "$dir/etc/ssh/sshd_config" -E "$dir/log/sshd.log"
fi
if [ "$accounting" = 1 ]; then . "$(dirname "$0")/accounting.sh"; fi
slurmctld -c
touch "$dir/run/ready"
sleep infinity &
wait
