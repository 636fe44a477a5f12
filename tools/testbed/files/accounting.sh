# Sourced by login.sh: starts the database of `sacct`. MariaDB needs only an empty folder and --skip-grant-tables, and starts
# at once. The port is in the login node's network namespace, so it can't collide with another one.
listening() { (: < "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

mkdir -p "$dir/mysql"
mariadbd=$(PATH=$PATH:/usr/sbin command -v mariadbd mysqld | head -1)
"$mariadbd" --no-defaults --user=root --datadir="$dir/mysql" --lc-messages-dir=/usr/share/mysql --skip-grant-tables \
  --socket=/run/mysql.sock --pid-file="$dir/run/mysql.pid" --bind-address=127.0.0.1 --port=3306 \
  --innodb-buffer-pool-size=16M --innodb-log-file-size=4M --innodb-flush-log-at-trx-commit=0 --skip-log-bin \
  --performance-schema=0 --innodb-lock-wait-timeout=900 > "$dir/log/mysql.log" 2>&1 &
until listening 3306; do sleep 0.02; done
slurmdbd
until listening 6819; do sleep 0.02; done
