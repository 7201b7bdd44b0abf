#!/bin/sh
# After unpacking, on Debian (configure OLD-VERSION) and on RPM systems (1: first, 2: an upgrade).
set -e

first=no
case "$1" in
configure) [ -n "$2" ] || first=yes ;;
1) first=yes ;;
2) ;;
*) exit 0 ;;
esac

if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers hubd.conf
elif ! getent passwd edgehub >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/edgehub --no-create-home --shell /usr/sbin/nologin \
		--comment "Edge message hub" edgehub
fi

# The hub reads its configuration and does not write it.
chown root:edgehub /etc/edgehub
chmod 0750 /etc/edgehub
[ -e /etc/edgehub/users ] || (umask 027 && : >/etc/edgehub/users)
for f in hubd.toml acl users; do
	if [ -e "/etc/edgehub/$f" ]; then
		chown root:edgehub "/etc/edgehub/$f"
		chmod 0640 "/etc/edgehub/$f"
	fi
done

if command -v systemd-tmpfiles >/dev/null 2>&1; then
	systemd-tmpfiles --create hubd.conf || true
fi
for d in /run/hubd /var/lib/edgehub; do
	[ -d $d ] || install -d -m 0750 -o edgehub -g edgehub $d
done

version=$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
dropin=/usr/lib/systemd/system/hubd.service.d
if [ "${version:-0}" -ge 254 ]; then
	mkdir -p $dropin
	cp /usr/share/edgehub/backoff.conf $dropin/backoff.conf
else
	rm -rf $dropin
fi

# Debian's helper remembers what the administrator has chosen; elsewhere the distribution's presets do.
if command -v deb-systemd-helper >/dev/null 2>&1; then
	deb-systemd-helper unmask hubd.service >/dev/null || true
	if deb-systemd-helper --quiet was-enabled hubd.service; then
		deb-systemd-helper enable hubd.service >/dev/null || true
	else
		deb-systemd-helper update-state hubd.service >/dev/null || true
	fi
elif [ $first = yes ] && command -v systemctl >/dev/null 2>&1; then
	systemctl preset hubd.service >/dev/null 2>&1 || true
fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
if command -v deb-systemd-invoke >/dev/null 2>&1; then
	if [ $first = yes ]; then
		deb-systemd-invoke start hubd.service >/dev/null || true
	else
		deb-systemd-invoke try-restart hubd.service >/dev/null || true
	fi
else
	systemctl try-restart hubd.service >/dev/null 2>&1 || true
fi
