#!/usr/bin/env bash
# Programs of another machine under qemu-user: start, publish QoS 1, kill -9, restart, and everything is there; many
# metadata keys survive a reopen.
#
#   emulated.sh ARCH EMULATOR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"
work=$(mktemp -d)
trap cleanup EXIT

arch=$1 emulator=$2
mqtt=127.0.0.1:$((20000 + RANDOM % 10000)) admin=127.0.0.1:$((30000 + RANDOM % 10000))
cat >"$work/hub.toml" <<EOF
[hub]
id = "emulated"
data_dir = "$work/data"
[admin]
socket = "$work/hub.sock"
address = "$admin"
[[listener]]
address = "$mqtt"
EOF
start() {
  "$emulator" "dist/$arch/hubd" -config "$work/hub.toml" >>"$work/hubd.log" 2>&1 &
  hub=$!
  pids+=("$hub")
  within 120 curl -fs -o /dev/null "http://$admin/readyz" || die "$arch: the hub is not ready: $(tail -5 "$work/hubd.log")"
}
ctl() { "$emulator" "dist/$arch/hubctl" --socket "$work/hub.sock" "$@"; }
# Each line is one message, acknowledged before mosquitto_pub ends.
publish() { seq "$1" "$2" | mosquitto_pub -p "${mqtt##*:}" -q 1 -t emulated/numbers -l; }
shown() { ctl tail main --no-follow --topic emulated/numbers | sed -n 's/.*"payload":"\([0-9]*\)".*/\1/p' | sort -n; }

start
publish 1 2000 || die "$arch: publish"
kill -9 "$hub"
wait "$hub" 2>/dev/null || true
start
publish 2001 3000 || die "$arch: publish after the kill"
cmp -s <(shown) <(seq 1 3000) || die "$arch: $(shown | wc -l) of 3000 messages are there after kill -9"
# Retained messages are metadata keys: one each.
keys=${EMULATED_KEYS:-100000}
CGO_ENABLED=0 go run ./test/package/retain "$mqtt" "$keys" || die "$arch: retained messages"
kill -TERM "$hub"
wait "$hub" || die "$arch: the stop ended with $?: $(tail -5 "$work/hubd.log")"
start
have=$(ctl status -o json | sed -n 's/.*"retained": \([0-9]*\).*/\1/p')
[[ $have = "$keys" ]] || die "$arch: $have of $keys metadata keys survived a reopen"
kill -TERM "$hub"
wait "$hub" || die "$arch: the stop ended with $?"
say "$arch: 3000 messages and $keys metadata keys survived kill -9 and a reopen under $emulator"
