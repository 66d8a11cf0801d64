#!/usr/bin/env bash
# Runs a command beside emulated boards: network namespaces on a bridge, or hosts behind real sshd on loopback
# addresses, each with a host name of its own. Takes root. Everything is inside namespaces of this script and ends
# with it, also when it is killed.
#   boards.sh --dir DIR [--boards N] [--rate RATE --burst BYTES] [--sshd] -- COMMAND…
# For the command, DIR has `hosts`, one name on each line (b1, b2, …), and `shell`, which runs a command on one of
# them as ssh does. This side has the address 10.77.0.254/24; boards have 10.77.0.1, … on eth0, limited to RATE both
# ways if it is said. `unplug HOST` in DIR cuts a board off, `kill-ranks HOST` kills the ranks that run there, and
# `kill-ranks-unnoticed HOST` does so in a way that the other ranks notice before the launcher does.
# Status 77: not permitted here, or a tool is missing; one line on standard error says what.
set -euo pipefail

skip() {
    printf 'boards: %s\n' "$*" >&2
    exit 77
}

if [ "${KEEL_BOARDS_INSIDE:-}" != yes ]; then
    [ "$(id -u)" -eq 0 ] || skip 'network namespaces take root'
    for tool in ip tc unshare; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$tool" >/dev/null 2>&1 || skip "$tool is not installed"
    done
    unshare --net --mount --uts true 2>/dev/null || skip 'the kernel permits no namespaces'
    KEEL_BOARDS_INSIDE=yes exec unshare --net --mount --uts --pid --fork --kill-child --mount-proc \
        --propagation private bash "$0" "$@"
fi
unset KEEL_BOARDS_INSIDE
export PATH="$PATH:/usr/sbin:/sbin"

dir=
boards=6
rate=
burst=32kb
sshd=no
while [ $# -gt 0 ]; do
    case "$1" in
    --dir) dir=$2 && shift 2 ;;
    --boards) boards=$2 && shift 2 ;;
    --rate) rate=$2 && shift 2 ;;
    --burst) burst=$2 && shift 2 ;;
    --sshd) sshd=yes && shift ;;
    --) shift && break ;;
    *)
        printf 'boards: %s is not known\n' "$1" >&2
        exit 2
        ;;
    esac
done
[ -n "$dir" ] && [ $# -gt 0 ] || {
    printf 'boards: expected --dir DIR and a command behind --\n' >&2
    exit 2
}
dir=$(cd "$dir" && pwd)

# Names of namespaces and of boards are this script's own.
mount -t tmpfs -o mode=755 none /run
mkdir /run/netns /run/sshd /run/boards
cp /etc/hosts /run/hosts 2>/dev/null || printf '127.0.0.1 localhost\n' >/run/hosts
hostname master
ip link set lo up

: >"$dir/hosts"
if [ "$sshd" = yes ]; then
    printf '127.0.0.1 master\n' >>/run/hosts
    [ -x /usr/sbin/sshd ] || skip 'openssh-server is not installed'
    command -v ssh-keygen >/dev/null 2>&1 || skip 'openssh-client is not installed'
    keys=/run/keys
    mkdir -m 700 "$keys"
    for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$keys/$key" </dev/null; done
    cp "$keys/user.pub" "$keys/authorized"
    for number in $(seq "$boards"); do
        address=127.0.1.$number
        name=b$number
        printf '%s\n' "$name" >>"$dir/hosts"
        printf '%s %s\n' "$address" "$name" >>/run/hosts
        # What sshd starts has its host name.
        unshare --uts bash -c "hostname $name; exec /usr/sbin/sshd -D -e -f /dev/null -o ListenAddress=$address:22 \
            -o HostKey=$keys/host -o AuthorizedKeysFile=$keys/authorized -o StrictModes=no -o UsePAM=no \
            -o PidFile=none -o PermitRootLogin=prohibit-password" 2>"/run/boards/$name.sshd" &
    done
    cat >"$dir/shell" <<END
#!/bin/sh
exec ssh -F /dev/null -i $keys/user -o UserKnownHostsFile=$keys/known -o StrictHostKeyChecking=accept-new \\
    -o BatchMode=yes -o LogLevel=ERROR "\$@"
END
else
    ip link add bridge0 type bridge
    ip address add 10.77.0.254/24 dev bridge0
    ip link set bridge0 up
    printf '10.77.0.254 master\n' >>/run/hosts
    for number in $(seq "$boards"); do
        name=b$number
        ip netns add "$name"
        ip link add "wire$number" type veth peer name eth0 netns "$name"
        ip link set "wire$number" master bridge0 up
        ip -n "$name" link set lo up
        ip -n "$name" address add "10.77.0.$number/24" dev eth0
        ip -n "$name" link set eth0 up
        if [ -n "$rate" ]; then
            tc qdisc add dev "wire$number" root tbf rate "$rate" burst "$burst" latency 50ms
            ip netns exec "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst "$burst" latency 50ms
        fi
        printf '%s\n' "$name" >>"$dir/hosts"
        printf '10.77.0.%s %s\n' "$number" "$name" >>/run/hosts
    done
    # As ssh: options first, then the host, then words that a shell there joins and runs.
    cat >"$dir/shell" <<'END'
#!/bin/sh
while :; do
    case "$1" in
    -[olpiFc]) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
host=$1
shift
if [ ! -e "/run/netns/$host" ] || [ -e "/run/boards/$host.unplugged" ]; then
    echo "connect to host $host port 22: No route to host" >&2
    exit 255
fi
exec ip netns exec "$host" unshare --uts --ipc sh -c "hostname $host; $*"
END
fi
cat >"$dir/unplug" <<'END'
#!/bin/sh
touch "/run/boards/$1.unplugged"
ip link set "wire${1#b}" down
END
cat >"$dir/kill-ranks" <<'END'
#!/bin/sh
for process in $(ip netns pids "$1"); do
    if [ "$(cat "/proc/$process/comm")" = keel-mpi ]; then kill -9 "$process"; fi
done
END
# As on a busy board: the launcher's own process there learns of it a second later than the other ranks.
cat >"$dir/kill-ranks-unnoticed" <<'END'
#!/bin/sh
others=
ranks=
for process in $(ip netns pids "$1"); do
    if [ "$(cat "/proc/$process/comm")" = keel-mpi ]; then ranks="$ranks $process"; else others="$others $process"; fi
done
kill -STOP $others
kill -9 $ranks
sleep 1
kill -CONT $others
END
chmod 755 "$dir/shell" "$dir/unplug" "$dir/kill-ranks" "$dir/kill-ranks-unnoticed"
mount --bind /run/hosts /etc/hosts

if [ "$sshd" = yes ]; then
    for number in $(seq "$boards"); do
        for _ in $(seq 100); do
            if "$dir/shell" "b$number" true 2>/dev/null; then continue 2; fi
            sleep 0.05
        done
        skip "sshd of b$number does not answer: $(tail -n 1 "/run/boards/b$number.sshd")"
    done
fi
status=0
"$@" || status=$?
exit "$status"
