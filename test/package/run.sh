#!/usr/bin/env bash
# Tries the packages as an installer would: in a fresh Debian root, and the ARM programs under an emulator. Run by
# `make test-package`, as root, after the packages have been built. What it installs it says.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"

[[ $(id -u) = 0 ]] || die "run it as root: it makes a Debian root and users"
missing=()
for need in debootstrap:debootstrap qemu-arm-static:qemu-user-static mosquitto_pub:mosquitto-clients systemd-analyze:systemd rpm:rpm curl:curl strace:strace pgrep:procps ip:iproute2 zsh:zsh fish:fish; do
  command -v "${need%%:*}" >/dev/null || missing+=("${need##*:}")
done
[[ -e /usr/share/bash-completion/bash_completion ]] || missing+=(bash-completion)
if ((${#missing[@]})); then
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null
  apt-get install -q -y --no-install-recommends "${missing[@]}" >/dev/null
fi

"$here/files.sh"
"$here/reproducible.sh"
"$here/completion.sh"
"$here/syscalls.sh"
"$here/debian.sh"
"$here/emulated.sh" arm64 qemu-aarch64-static
"$here/emulated.sh" armhf qemu-arm-static
say "all good"
