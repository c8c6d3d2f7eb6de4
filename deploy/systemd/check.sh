#!/usr/bin/env bash
# Checks the unit under a running systemd: check.sh THALWEG [DIRECTORY]
#
# Boots Debian 12 in a container without a network of its own (systemd-nspawn), does what docs/guides/cluster.md says under "As a
# service" for three nodes, and checks what the unit promises. Needs root, debootstrap, systemd-nspawn and, the first time,
# Debian's packages. The system is kept in DIRECTORY (default: below /var/tmp), so that a second run needs no network.
set -euo pipefail

thalweg=$(realpath "$1")
directory=${2:-/var/tmp/thalweg-unit-check}
here=$(cd "$(dirname "$0")" && pwd)
base=$directory/base root=$directory/root

mkdir -p "$directory"
if [ ! -e "$base/etc/os-release" ]; then
    debootstrap --variant=minbase --include=systemd,systemd-sysv,iproute2 bookworm "$base" >"$directory/debootstrap.log"
fi
rm -rf "$root"
cp -a "$base" "$root"
install "$thalweg" "$root/usr/local/bin/thalweg"
cp "$here/thalweg@.service" "$root/etc/systemd/system/"
mkdir -p "$root/etc/sysusers.d"
cp "$here/thalweg.sysusers" "$root/etc/sysusers.d/thalweg.conf"

systemd-nspawn --directory="$root" --boot --register=no --keep-unit --private-network --link-journal=no \
    --machine=thalweg-check </dev/null >"$directory/console.log" 2>&1 &
nspawn=$!
init=
finish() {
    # systemd ends its units and then itself.
    [ -z "$init" ] || kill -s RTMIN+4 "$init" 2>/dev/null || true
    wait "$nspawn" || true
}
trap finish EXIT
within() {
    nsenter -t "$init" -m -u -i -n -p -C -r -w /bin/bash -euo pipefail -c "$1"
}
for _ in $(seq 100); do
    init=$(pgrep -P "$nspawn" || true)
    [ -n "$init" ] && within 'systemctl is-active --quiet multi-user.target' 2>/dev/null && break
    sleep 0.2
done

within '
say() { printf "%s\n" "$*"; }
fail() { say "FAILED: $*"; journalctl --quiet --no-pager -u "thalweg@*" | tail -n 40; exit 1; }
soon() { for _ in $(seq 100); do eval "$1" >/dev/null 2>&1 && return; sleep 0.2; done; fail "$1"; }
value() { systemctl show -P "$2" "thalweg@$1"; }
export THALWEG_SERVER=http://127.0.0.1:7070,http://127.0.0.2:7070,http://127.0.0.3:7070

systemd-analyze verify --man=no thalweg@db1.service
systemd-sysusers
mkdir -p /etc/thalweg
token=$(thalweg cluster create-token | sed -n "s/^join token: *//p")
for i in 1 2 3; do
    thalweg serve --example-config | sed -E \
        -e "s|^#? *cluster = .*|cluster = \"127.0.0.$i:7072\"|" -e "s|^#? *node_name = .*|node_name = \"db$i\"|" \
        -e "s|^#? *join = .*|join = \"127.0.0.1:7072,127.0.0.2:7072,127.0.0.3:7072\"|" -e "s|^#? *expect = .*|expect = 3|" \
        -e "s|^#? *http = .*|http = \"127.0.0.$i:7070\"|" -e "s|^#? *native = .*|native = \"127.0.0.$i:7071\"|" \
        >/etc/thalweg/db$i.toml
    install -m 600 /dev/null /etc/thalweg/db$i.env
    echo "THALWEG_JOIN_TOKEN=$token" >>/etc/thalweg/db$i.env
done
systemctl daemon-reload
systemctl enable --quiet --now thalweg@db1 thalweg@db2 thalweg@db3
members() { thalweg cluster members | grep -cE "(leader|voter) +alive"; }
soon "[ \$(members) = 3 ]"
say "three units found a cluster"
# The token is for the first start only.
rm /etc/thalweg/*.env

[ "$(stat -c "%U %a" /var/lib/thalweg/db1)" = "thalweg 700" ] || fail "the owner of the directory"
status=/proc/$(value db1 MainPID)/status
grep -q "^CapBnd:.0*$" "$status" && grep -q "^Seccomp:.2$" "$status" || fail "the sandbox"
say "a node owns its directory, and has no capabilities"

thalweg put k a 1 && thalweg append events x y && thalweg backup --to /tmp/backup.tws
[ "$(thalweg get k a --server http://127.0.0.3:7070)" = 1 ] || fail "the value"

pid=$(value db1 MainPID)
sed -i "s|^#* *log_level = .*|log_level = \"debug\"|" /etc/thalweg/db1.toml
systemctl reload thalweg@db1
soon "journalctl --quiet -u thalweg@db1 | grep SIGHUP.*debug"
[ "$(value db1 MainPID)" = "$pid" ] || fail "a reload starts a process"
say "a reload changes the log level of the running node"

leader=$(thalweg cluster members | sed -n "s/ .*leader.*//p")
systemctl stop "thalweg@$leader"
[ "$(value "$leader" Result) $(value "$leader" ExecMainStatus)" = "success 0" ] || fail "the stop"
thalweg put k a 2
systemctl start "thalweg@$leader"
soon "[ \$(members) = 3 ]"
say "a leader that is stopped ends with 0, and starts again"

kill -9 "$(value db2 MainPID)"
soon "[ \$(value db2 NRestarts) = 1 ] && [ \$(members) = 3 ]"
say "a node that was killed is started again"

chmod 000 /var/lib/thalweg/db2/log
systemctl restart thalweg@db2 || true
soon "[ \$(value db2 NRestarts) -ge 7 ]"
chmod 700 /var/lib/thalweg/db2/log
soon "[ \$(members) = 3 ]"
say "a node whose directory cannot be opened is started until it can"

systemctl restart thalweg@db2
echo "no_such_key = 1" >>/etc/thalweg/db2.toml
systemctl restart thalweg@db2 || true
soon "[ \$(value db2 ActiveState) = failed ]"
[ "$(value db2 ExecMainStatus) $(value db2 NRestarts)" = "2 0" ] || fail "the exit code"
say "a node with a wrong configuration is not started again"
sed -i "/no_such_key/d" /etc/thalweg/db2.toml
systemctl start thalweg@db2
soon "[ \$(members) = 3 ]"
thalweg cluster digest | grep equal
'
