# Mounts a folder's /usr and /etc over this machine's, in this mount namespace; all other folders stay.
# Usage: . root.sh ROOT PATH...     (PATH: paths of this machine's /usr that stay, such as its Python)
root=$1
shift
mkdir -p "$root/etc/slurm"
touch "$root/etc/hosts"
for path in /usr/local "$@"; do
  case $path in /usr/*) ;; *) continue ;; esac
  if [ -d "$path" ]; then mkdir -p "$root$path"; else touch -a "$root$path"; fi
  mount --rbind "$path" "$root$path"
done
mount --rbind "$root/etc" /etc
mount --rbind "$root/usr" /usr
