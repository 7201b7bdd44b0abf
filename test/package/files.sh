#!/usr/bin/env bash
# What can be seen of the packages without installing them: programs, sizes, checksums, contents, the unit.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"
work=$(mktemp -d)
trap cleanup EXIT

(cd dist && sha256sum --quiet -c SHA256SUMS) || die "checksums do not fit"
for arch in amd64 arm64 armhf; do
  for program in hubd hubctl; do
    f=dist/$arch/$program
    (($(stat -c %s "$f") <= 25 << 20)) || die "$f is larger than 25 MiB"
    # Static, and without a path of the machine that built it.
    if grep -aqF /lib/ld-linux "$f"; then die "$f is not static"; fi
    if grep -aqF "$PWD/" "$f"; then die "$f holds a path of this machine"; fi
  done
done
case $(go version -m dist/armhf/hubd) in
*"=>"*dist/mod32/ristretto*) ;;
*) die "the 32-bit hubd was built without the mended module" ;;
esac
go version -m dist/armhf/hubd | grep -q GOARM=6 || die "armhf is not built for ARMv6"

# A mend that no longer fits must stop the build, and say so.
mkdir -p "$work/mod/z" "$work/bin"
cp "$(go list -m -f '{{.Dir}}' github.com/dgraph-io/ristretto/v2)/z/allocator.go" "$work/mod/z/"
chmod -R u+w "$work/mod"
sed -i 's/(bufIdx+1)<<32/(bufIdx+2)<<32/' "$work/mod/z/allocator.go"
printf '#!/bin/sh\nprintf "{\\n\\t\\"Dir\\": \\"%s\\"\\n}\\n"\n' "$work/mod" >"$work/bin/go"
chmod +x "$work/bin/go"
if GO=$work/bin/go packaging/mod32.sh 2>"$work/said"; then die "mod32.sh took a module whose line has changed"; fi
grep -q "not once: it has changed" "$work/said" || die "mod32.sh failed without a reason: $(cat "$work/said")"

# A Debian package of each kind, and the RPMs, hold the same files.
for arch in amd64 arm64 armhf; do
  deb=$(ls dist/edgehub_*_$arch.deb)
  [[ $(dpkg-deb -f "$deb" Architecture) = "$arch" ]] || die "$deb is for $(dpkg-deb -f "$deb" Architecture)"
  dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's,^\./,/,; s,/$,,' | grep -v '^$' | sort >"$work/$arch.list"
  for f in /usr/bin/hubd /usr/bin/hubctl /etc/edgehub/hubd.toml /etc/edgehub/acl /usr/lib/systemd/system/hubd.service \
    /usr/share/man/man1/hubctl.1.gz /usr/share/man/man8/hubd.8.gz /usr/share/bash-completion/completions/hubctl; do
    grep -qx "$f" "$work/$arch.list" || die "$deb lacks $f"
  done
  dpkg-deb -I "$deb" conffiles | sort | tr '\n' ' ' | grep -qx '/etc/edgehub/acl /etc/edgehub/hubd.toml ' || die "$deb: conffiles are $(dpkg-deb -I "$deb" conffiles)"
done
cmp -s "$work/amd64.list" "$work/armhf.list" || die "amd64 and armhf packages differ"
for rpm in dist/*.rpm; do
  rpm -qlp "$rpm" 2>/dev/null | sort >"$work/rpm.list"
  while read -r f; do
    [[ ! $f =~ \.(gz|service|toml|conf|fish)$ ]] || grep -qx "$f" "$work/rpm.list" || die "$rpm lacks $f"
  done <"$work/amd64.list"
  rpm -qcp "$rpm" 2>/dev/null | grep -qx /etc/edgehub/hubd.toml || die "$rpm: hubd.toml is not a configuration file"
done

# The unit: nothing to complain of, and little exposed.
root=$work/root
mkdir -p "$root"
dpkg-deb -x "$(ls dist/edgehub_*_amd64.deb)" "$root"
unit=$root/usr/lib/systemd/system/hubd.service
sed "s,=/usr/bin/,=$root/usr/bin/," "$unit" >"$work/hubd.service" # the programs are not installed here
said=$(systemd-analyze verify --man=no "$work/hubd.service" 2>&1 | grep -F hubd || true)
[[ -z $said ]] || die "systemd-analyze verify: $said"
exposure=$(systemd-analyze security --offline=yes --no-pager "$unit" 2>/dev/null | sed -n 's/.*Overall exposure level for hubd.service: \([0-9.]*\).*/\1/p')
[[ -n $exposure ]] && awk "BEGIN { exit !($exposure <= 2.0) }" || die "exposure is ${exposure:-unknown}, at most 2.0"
"$root/usr/bin/hubd" -check -config configs/hubd.toml || die "configs/hubd.toml is not good"

# The tarball installs the same, into an image too.
mkdir "$work/tar" "$work/image"
tar -C "$work/tar" -xzf "$(ls dist/edgehub-*-linux-amd64.tar.gz)"
DESTDIR=$work/image "$work"/tar/*/install.sh >/dev/null
for f in usr/bin/hubd usr/lib/systemd/system/hubd.service etc/edgehub/hubd.toml etc/edgehub/users; do
  [[ -e $work/image/$f ]] || die "install.sh left out $f"
done
DESTDIR=$work/image "$work"/tar/*/install.sh --purge >/dev/null
left=$(find "$work/image" -type f ! -path '*/tmpfiles.d/*')
[[ -z $left ]] || die "install.sh --purge left $left"

# What the container is made of is there.
sed -n 's/^COPY \(--[a-z=0-9:]* \)*//p' packaging/container/Dockerfile | sed 's/\${ARCH}/amd64/g' | while read -r line; do
  for f in ${line% *}; do [[ -e $f ]] || die "Dockerfile copies $f, which is not there"; done
done
say "files: $(du -h dist/amd64/hubd | cut -f1) hubd, exposure $exposure, packages for amd64, arm64 and armhf"
