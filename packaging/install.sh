#!/bin/sh
# Installs the hub from its tarball on a machine with systemd and no package manager that fits, or takes it away again.
#
#   ./install.sh              install, or upgrade: configuration and data stay
#   ./install.sh --uninstall  remove the programs; configuration and data stay
#   ./install.sh --purge      remove everything, data too
#
# DESTDIR prepares an image: nothing is started, and the user is made by the image's systemd-sysusers at boot.
set -eu
cd "$(dirname "$0")"
dest=${DESTDIR:-}

say() { echo "install.sh: $*"; }

live() { [ -z "$dest" ] && [ -d /run/systemd/system ]; }

[ -n "$dest" ] || [ "$(id -u)" = 0 ] || {
	say "run it as root, or with DESTDIR=DIRECTORY" >&2
	exit 1
}

remove() {
	if live; then systemctl disable --now hubd.service 2>/dev/null || true; fi
	rm -f "$dest/usr/bin/hubd" "$dest/usr/bin/hubctl" "$dest/usr/lib/systemd/system/hubd.service" \
		"$dest/usr/lib/sysusers.d/hubd.conf" "$dest/usr/lib/tmpfiles.d/hubd.conf" "$dest/usr/lib/tmpfiles.d/hubd-etc.conf" \
		"$dest/usr/share/man/man1/hubctl.1.gz" "$dest/usr/share/man/man8/hubd.8.gz" \
		"$dest/usr/share/bash-completion/completions/hubctl" "$dest/usr/share/zsh/vendor-completions/_hubctl" \
		"$dest/usr/share/fish/vendor_completions.d/hubctl.fish"
	rm -rf "$dest/usr/lib/systemd/system/hubd.service.d"
	if live; then systemctl daemon-reload; fi
}

case "${1:-}" in
"") ;;
--uninstall)
	remove
	say "removed; /etc/edgehub and /var/lib/edgehub are left"
	exit 0
	;;
--purge)
	remove
	rm -rf "$dest/etc/edgehub" "$dest/var/lib/edgehub" "$dest/run/hubd"
	if [ -z "$dest" ]; then
		userdel edgehub 2>/dev/null || true
		groupdel edgehub 2>/dev/null || true
	fi
	say "removed, data too"
	exit 0
	;;
*)
	say "what is $1? there is --uninstall and --purge" >&2
	exit 2
	;;
esac

put() { # MODE FROM TO
	mkdir -p "$dest$(dirname "$3")"
	# Beside, then renamed: a running program keeps its file.
	cp "$2" "$dest$3.new"
	chmod "$1" "$dest$3.new"
	mv "$dest$3.new" "$dest$3"
}
put 0755 bin/hubd /usr/bin/hubd
put 0755 bin/hubctl /usr/bin/hubctl
put 0644 systemd/hubd.service /usr/lib/systemd/system/hubd.service
put 0644 systemd/hubd-sysusers.conf /usr/lib/sysusers.d/hubd.conf
put 0644 systemd/hubd-tmpfiles.conf /usr/lib/tmpfiles.d/hubd.conf
put 0644 man/hubctl.1.gz /usr/share/man/man1/hubctl.1.gz
put 0644 man/hubd.8.gz /usr/share/man/man8/hubd.8.gz
put 0644 completion/hubctl.bash /usr/share/bash-completion/completions/hubctl
put 0644 completion/hubctl.zsh /usr/share/zsh/vendor-completions/_hubctl
put 0644 completion/hubctl.fish /usr/share/fish/vendor_completions.d/hubctl.fish
mkdir -p "$dest/etc/edgehub"
for f in hubd.toml acl; do
	[ -e "$dest/etc/edgehub/$f" ] || put 0640 "etc/$f" "/etc/edgehub/$f"
done
[ -e "$dest/etc/edgehub/users" ] || (umask 027 && : >"$dest/etc/edgehub/users")
if [ -n "$dest" ]; then
	cat >"$dest/usr/lib/tmpfiles.d/hubd-etc.conf" <<-'EOF'
		z /etc/edgehub 0750 root edgehub -
		z /etc/edgehub/* 0640 root edgehub -
	EOF
	say "prepared $dest"
	exit 0
fi

if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers hubd.conf
else
	getent passwd edgehub >/dev/null || useradd --system --user-group --home-dir /var/lib/edgehub --no-create-home \
		--shell /usr/sbin/nologin --comment "Edge message hub" edgehub
fi
chown root:edgehub /etc/edgehub /etc/edgehub/hubd.toml /etc/edgehub/acl /etc/edgehub/users
chmod 0750 /etc/edgehub
for d in /run/hubd /var/lib/edgehub; do
	[ -d $d ] || install -d -m 0750 -o edgehub -g edgehub $d
done
if live; then
	if [ "$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')" -ge 254 ]; then
		put 0644 systemd/hubd-backoff.conf /usr/lib/systemd/system/hubd.service.d/backoff.conf
	fi
	systemctl daemon-reload
	systemctl enable hubd.service
	systemctl restart hubd.service
	say "hubd runs: hubctl status"
else
	say "installed; no systemd runs here: start /usr/bin/hubd -config /etc/edgehub/hubd.toml as the user edgehub"
fi
