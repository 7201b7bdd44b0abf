#!/usr/bin/env bash
# The unit filters system calls, and nothing here can run the unit: so the hub is run under strace, and every call that
# it makes must be one that the filter lets through.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"
work=$(mktemp -d)
trap cleanup EXIT

# The calls of a group, groups in it included; a name that is no group is itself.
expand() {
  local one
  for one in "$@"; do
    if [[ $one == @* ]]; then
      # shellcheck disable=SC2046 # one word each
      expand $(systemd-analyze syscall-filter "$one" | sed '1d; s/#.*//')
    else
      echo "$one"
    fi
  done
}
expand @default >"$work/allowed"
while read -r line; do
  if [[ $line == ~* ]]; then
    expand ${line#\~} | sort -u >"$work/out"
    grep -vxFf "$work/out" "$work/allowed" >"$work/next" || true
    mv "$work/next" "$work/allowed"
  else
    expand $line >>"$work/allowed"
  fi
done < <(sed -n 's/^SystemCallFilter=//p' packaging/systemd/hubd.service)
sort -u -o "$work/allowed" "$work/allowed"
grep -qx pwrite64 "$work/allowed" && ! grep -qx -e reboot -e mount -e setuid -e ptrace "$work/allowed" || die "the filter was not understood"

mqtt=$((20000 + RANDOM % 10000)) admin=$((30000 + RANDOM % 10000))
cat >"$work/hub.toml" <<EOF
[hub]
data_dir = "$work/data"
[admin]
socket = "$work/hub.sock"
address = "127.0.0.1:$admin"
[auth]
users_file = "$work/users"
[[listener]]
address = "127.0.0.1:$mqtt"
[[stream]]
name = "synced"
filters = ["synced/#"]
durability = "synced"
[[uplink]]
name = "nowhere"
url = "nats://127.0.0.1:1"
EOF
echo secret | dist/amd64/hubctl user add anna --file "$work/users" 2>/dev/null
NOTIFY_SOCKET=$work/none strace -f -qq -o "$work/trace" dist/amd64/hubd -config "$work/hub.toml" >"$work/hubd.log" 2>&1 &
tracer=$!
pids+=("$tracer")
within 60 curl -fs -o /dev/null "http://127.0.0.1:$admin/readyz" || die "the hub is not ready: $(tail -5 "$work/hubd.log")"
hub=$(pgrep -P "$tracer" -x hubd)
seq 100 | mosquitto_pub -p "$mqtt" -q 1 -t synced/x -l -u anna -P secret
mosquitto_pub -p "$mqtt" -q 2 -t kept -m x -r
[[ $(mosquitto_sub -p "$mqtt" -t kept -C 1 -W 10) = x ]] || die "not served under strace"
curl -fs "http://127.0.0.1:$admin/metrics" >/dev/null
kill -HUP "$hub"
dist/amd64/hubctl --socket "$work/hub.sock" backup "$work/backup.tar" >/dev/null
kill -TERM "$hub"
wait "$tracer" || die "the stop ended with $?: $(tail -5 "$work/hubd.log")"

sed -E 's/^[0-9]+ +//; s/^<\.\.\. ([a-z0-9_]+) resumed.*/\1/; s/\(.*//' "$work/trace" | grep -E '^[a-z0-9_]+$' | sort -u >"$work/used"
[[ $(wc -l <"$work/used") -gt 30 ]] || die "strace saw only $(wc -l <"$work/used") calls"
refused=$(comm -23 "$work/used" "$work/allowed")
[[ -z $refused ]] || die "the unit's filter refuses what the hub calls: $refused"
say "syscalls: the hub made $(wc -l <"$work/used") different ones, all of them let through by the unit"
