#!/bin/sh
# Before the files go, on Debian (remove) and on RPM systems (0: for good). An upgrade leaves the hub running until the
# new one is in place.
set -e
case "$1" in
remove | deconfigure | 0) ;;
*) exit 0 ;;
esac
[ -d /run/systemd/system ] || exit 0
if command -v deb-systemd-invoke >/dev/null 2>&1; then
	deb-systemd-invoke stop hubd.service >/dev/null || true
else
	systemctl --no-reload disable --now hubd.service >/dev/null 2>&1 || true
fi
