#!/usr/bin/env bash
# The life of the package in a fresh Debian root: install, serve, upgrade, purge. There is no systemd to run the unit:
# the hub is run by hand, as the user of the unit and with its command.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"
work=$(mktemp -d)
trap cleanup EXIT

suite=${DEBIAN_SUITE:-bookworm}
# Without DEBIAN_MIRROR debootstrap takes its own default.
mirror=(${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"})
# A root is made once; what the tests do is done to a copy.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/edgehub/debian-$suite.tar
if [[ ! -e $cache ]]; then
  say "making a Debian root ($suite)"
  mkdir -p "$(dirname "$cache")"
  debootstrap --variant=minbase --include=mosquitto-clients "$suite" "$work/new" "${mirror[@]}" >"$work/debootstrap.log" 2>&1 ||
    die "debootstrap: $(tail -3 "$work/debootstrap.log")"
  tar -C "$work/new" -cf "$cache.tmp" .
  mv "$cache.tmp" "$cache"
  rm -rf "$work/new"
fi
# The packaged configuration has fixed ports: a network of its own keeps them from meeting another program's.
if [[ -z ${OWN_NETWORK:-} ]] && unshare -n true 2>/dev/null; then
  rm -rf "$work"
  OWN_NETWORK=yes exec unshare -n bash -c 'ip link set lo up && exec "$0"' "$here/debian.sh"
fi
root=$work/root
mkdir "$root"
tar -C "$root" -xf "$cache"
mount -t proc proc "$root/proc"
mounts+=("$root/proc")
inroot() { chroot "$root" "$@"; }
before() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./tmp -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/dpkg -o -path ./run/lock \) -prune -o -print | sort); }

inroot dpkg --version >/dev/null || die "the Debian root does not run"
before >"$work/fresh"
getent_before=$(inroot getent passwd)

deb=$(ls "$PWD"/dist/edgehub_*_amd64.deb)
cp "$deb" "$root/tmp/first.deb"
inroot dpkg -i /tmp/first.deb >"$work/dpkg.log" 2>&1 || die "dpkg -i: $(cat "$work/dpkg.log")"
inroot getent passwd edgehub | grep -q nologin || die "there is no user edgehub that cannot log in"
[[ $(stat -c %U:%G:%a "$root/etc/edgehub" | sed "s/^root:[^:]*/root:g/") = root:g:750 ]] || die "/etc/edgehub: $(stat -c %u:%g:%a "$root/etc/edgehub")"
[[ $(stat -c %a "$root/etc/edgehub/users") = 640 ]] || die "the users file has mode $(stat -c %a "$root/etc/edgehub/users")"

# The command of the unit, as its user, from its directory.
command=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/hubd.service")
uid=$(inroot id -u edgehub) gid=$(inroot id -g edgehub)
start() {
  chroot --userspec="$uid:$gid" "$root" /bin/sh -c "cd /var/lib/edgehub && exec $command" >>"$work/hubd.log" 2>&1 &
  hub=$!
  pids+=("$hub")
  within 30 curl -fs -o /dev/null http://127.0.0.1:8090/readyz || die "the hub is not ready: $(tail -5 "$work/hubd.log")"
}
stop() {
  kill -TERM "$hub"
  wait "$hub" || die "the hub ended with $?: $(tail -5 "$work/hubd.log")"
}
ctl() { inroot hubctl "$@"; }
start
[[ $(stat -c %u "/proc/$hub") = "$uid" ]] || die "the hub does not run as edgehub"
mosquitto_pub -p 1883 -q 1 -t first/message -m hello -r || die "mosquitto_pub was not served"
[[ $(mosquitto_sub -p 1883 -t first/message -C 1 -W 10) = hello ]] || die "mosquitto_sub was not served"
ctl tail main --no-follow -n 1 | grep -q hello || die "hubctl tail does not show the message"
ctl status >/dev/null || die "hubctl status"
ctl doctor >"$work/doctor" || die "hubctl doctor: $(cat "$work/doctor")"

# A user, made as the README says, for a listener on another address.
echo secret | ctl user add technician || die "hubctl user add"
[[ $(stat -c %g:%a "$root/etc/edgehub/users") = "$gid:640" ]] || die "user add changed the owner or mode of the users file"
stop
cat >>"$root/etc/edgehub/hubd.toml" <<'EOF'

[[listener]]
address = "0.0.0.0:11883"
EOF
start
mosquitto_pub -p 11883 -q 1 -t a -m x 2>/dev/null && die "an anonymous client was let in from the network"
mosquitto_pub -p 11883 -q 1 -t a -m x -u technician -P wrong 2>/dev/null && die "a wrong password was taken"
mosquitto_pub -p 11883 -q 1 -t a -m x -u technician -P secret || die "the user was not let in"

# An upgrade keeps data, users and the edited configuration; the new program goes on.
epoch=$(ctl status -o json | sed -n 's/.*"instance": "\(.*\)".*/\1/p')
mkdir "$work/next"
dpkg-deb -R "$deb" "$work/next/tree"
sed -i 's/^Version: .*/Version: 99.0/' "$work/next/tree/DEBIAN/control"
echo '# a newer packaged configuration' >>"$work/next/tree/etc/edgehub/hubd.toml"
(cd "$work/next/tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb -b --root-owner-group "$work/next/tree" "$root/tmp/next.deb" >/dev/null
inroot dpkg -i --force-confold /tmp/next.deb >"$work/dpkg.log" 2>&1 || die "upgrade: $(cat "$work/dpkg.log")"
stop
grep -q 11883 "$root/etc/edgehub/hubd.toml" || die "the upgrade changed the edited configuration"
grep -q '^technician:' "$root/etc/edgehub/users" || die "the upgrade lost the users"
[[ $(stat -c %g:%a "$root/etc/edgehub/hubd.toml") = "$gid:640" ]] || die "the upgrade changed the mode of hubd.toml"
start
[[ $(ctl status -o json | sed -n 's/.*"instance": "\(.*\)".*/\1/p') = "$epoch" ]] || die "the upgrade lost the data"
[[ $(mosquitto_sub -p 1883 -t first/message -C 1 -W 10) = hello ]] || die "the retained message is gone"
stop

# Removed, data and configuration stay; purged, nothing does.
inroot dpkg -r edgehub >"$work/dpkg.log" 2>&1 || die "remove: $(cat "$work/dpkg.log")"
[[ -d $root/var/lib/edgehub/streams && -e $root/etc/edgehub/hubd.toml && ! -e $root/usr/bin/hubd ]] || die "remove took too much or too little"
inroot dpkg -P edgehub >"$work/dpkg.log" 2>&1 || die "purge: $(cat "$work/dpkg.log")"
grep -i warning "$work/dpkg.log" && die "purge warns"
before >"$work/after"
left=$(comm -13 "$work/fresh" "$work/after" | grep -v -E '^\./(etc|var/lib)/[^/]*-$|^\./etc/\.pwd\.lock$|^\./etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$' || true)
[[ -z $left ]] || die "purge left: $left"
[[ $(inroot getent passwd) = "$getent_before" ]] || die "purge left the user"
say "debian: installed, served, upgraded, removed and purged ($suite)"
