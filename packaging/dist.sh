#!/usr/bin/env bash
# Builds the programs of a release for every machine: dist/ARCH/{hubd,hubctl} for amd64, arm64 and armhf, tarballs of
# them with what an installation needs, and SHA256SUMS. The same source gives the same bytes, on any machine and in
# any directory, with the same Go.
#
#   VERSION=1.2.3 packaging/dist.sh [ARCH...]
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
version=${VERSION:?VERSION is not set: run make dist}
archs=("$@")
((${#archs[@]})) || archs=(amd64 arm64 armhf)
# The time of everything in the archives: that of the commit.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
hubd_bytes_max=$((25 << 20))

build() { # ARCH PROGRAM PACKAGE
  local env=(CGO_ENABLED=0 GOOS=linux) flags=()
  case $1 in
  amd64) env+=(GOARCH=amd64 GOAMD64=v1) ;;
  arm64) env+=(GOARCH=arm64 GOARM64=v8.0) ;;
  armhf) # GOARM=6: what Raspberry Pi OS calls armhf is ARMv6 with VFPv2 on the oldest boards.
    env+=(GOARCH=arm GOARM=6)
    flags=(-modfile=dist/mod32/go.mod)
    ;;
  *) echo "dist: no machine \"$1\"; there is amd64, arm64, armhf" >&2; exit 2 ;;
  esac
  env "${env[@]}" "$go" build "${flags[@]}" -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$version" \
    -o "dist/$1/$2" "$3"
}

# A tar of the files in a directory that is the same for the same files.
pack() { # DIRECTORY ARCHIVE
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" --mode='u+rw,go=rX' \
    -C "$(dirname "$1")" -cf - "$(basename "$1")" | gzip -9n >"$2"
}

# What an earlier version has left would be taken for this one's.
rm -f dist/edgehub[-_]*
packaging/generate.sh

for arch in "${archs[@]}"; do
  [[ $arch != armhf ]] || packaging/mod32.sh
  rm -rf "dist/$arch"
  build "$arch" hubd ./hub/cmd/hubd
  build "$arch" hubctl ./ctl/cmd/hubctl
  size=$(stat -c %s "dist/$arch/hubd")
  echo "dist/$arch/hubd: $size bytes"
  if ((size > hubd_bytes_max)); then
    echo "dist: hubd for $arch has more than $hubd_bytes_max bytes; \`go tool nm -size -sort size\` says of what" >&2
    exit 1
  fi

  name=edgehub-$version-linux-$arch
  tree=dist/$arch/$name
  mkdir -p "$tree"/{bin,etc,systemd,man,completion}
  cp "dist/$arch/hubd" "dist/$arch/hubctl" "$tree/bin/"
  cp packaging/hubd.toml packaging/acl "$tree/etc/"
  cp packaging/systemd/* "$tree/systemd/"
  cp dist/share/man/* "$tree/man/"
  cp dist/share/completion/* "$tree/completion/"
  cp packaging/install.sh LICENSE README.md CHANGELOG.md "$tree/"
  chmod 0755 "$tree"/bin/* "$tree/install.sh"
  pack "$tree" "dist/$name.tar.gz"
  rm -rf "$tree"
done
packaging/sums.sh
