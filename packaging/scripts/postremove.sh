#!/bin/sh
# After the files went. Data and configuration stay until the package is purged (Debian); RPM has no purge: there,
# /var/lib/edgehub, /etc/edgehub and the user stay.
set -e
case "$1" in
remove | purge | 0) ;;
*) exit 0 ;;
esac
rm -rf /usr/lib/systemd/system/hubd.service.d
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
if [ "$1" = remove ] && command -v deb-systemd-helper >/dev/null 2>&1; then
	deb-systemd-helper mask hubd.service >/dev/null || true
fi
if [ "$1" = purge ]; then
	if command -v deb-systemd-helper >/dev/null 2>&1; then
		deb-systemd-helper purge hubd.service >/dev/null || true
		deb-systemd-helper unmask hubd.service >/dev/null || true
	fi
	rm -rf /etc/edgehub /var/lib/edgehub /run/hubd
	if getent passwd edgehub >/dev/null; then
		userdel edgehub >/dev/null 2>&1 || true
	fi
	if getent group edgehub >/dev/null; then
		groupdel edgehub >/dev/null 2>&1 || true
	fi
fi
