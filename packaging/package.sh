#!/usr/bin/env bash
# Makes packages of what packaging/dist.sh has built: dist/*.deb or dist/*.rpm.
#
#   VERSION=1.2.3 packaging/package.sh deb|rpm [ARCH...]
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2 # fetched on first use, not in go.mod
format=${1:?deb or rpm}
shift
archs=("$@")
((${#archs[@]})) || archs=(amd64 arm64 armhf)

# 0.2.0-rc1 comes before 0.2.0: a tilde. 0.2.0-3-gabcdef, of git describe, comes after it: a plus. No hyphen is left.
version=${VERSION:?VERSION is not set: run make $format}
version=${version#v}
if [[ $version =~ ^([^-]*)-([0-9]+-g[0-9a-f]+.*)$ ]]; then
  version="${BASH_REMATCH[1]}+${BASH_REMATCH[2]//-/.}"
elif [[ $version == *-* ]]; then
  rest=${version#*-}
  version="${version%%-*}~${rest//-/.}"
fi
export PACKAGE_VERSION=$version
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

# Built once, aside: its many modules are none of the project's.
tool=dist/tools/nfpm
if [[ ! -x $tool || $(cat dist/tools/nfpm.version 2>/dev/null) != "$nfpm" ]]; then
  mkdir -p dist/tools
  GOFLAGS=-mod=mod CGO_ENABLED=0 GOBIN=$PWD/dist/tools "$go" install "$nfpm"
  echo "$nfpm" >dist/tools/nfpm.version
fi

for arch in "${archs[@]}"; do
  case $format-$arch in
  *-amd64 | *-arm64) package=$arch ;;
  deb-armhf) package=arm6 ;; # nfpm's name; the package says armhf
  rpm-armhf) package=arm6 ;;
  *) echo "package: $format for $arch is not made" >&2; exit 2 ;;
  esac
  case $format-$arch in
  rpm-amd64) file=edgehub-$version-1.x86_64.rpm ;;
  rpm-arm64) file=edgehub-$version-1.aarch64.rpm ;;
  rpm-armhf) file=edgehub-$version-1.armv6hl.rpm ;;
  *) file=edgehub_${version}_$arch.deb ;;
  esac
  case $format in
  deb) rm -f dist/edgehub_*"_$arch.deb" ;;
  rpm) rm -f dist/edgehub-*"${file##*-1}" ;;
  esac
  if ! said=$(PACKAGE_ARCH=$package DIST_ARCH=$arch $tool package -f packaging/nfpm.yaml -p "$format" -t "dist/$file" 2>&1); then
    echo "package: $file: $said" >&2
    exit 1
  fi
  echo "dist/$file: $(stat -c %s "dist/$file") bytes"
done
packaging/sums.sh
