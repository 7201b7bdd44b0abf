#!/usr/bin/env bash
# The same source gives the same bytes: built again in another directory, programs, tarballs and packages are equal to
# those in dist/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
. "$here/lib.sh"
work=$(mktemp -d)
trap cleanup EXIT

git ls-files -z | tar --null -T - -cf - | tar -C "$work" -xf -
mkdir -p "$work/dist"
[[ ! -d dist/tools ]] || cp -r dist/tools "$work/dist/" # nfpm, which is none of what is compared
# The copy has no history to take the time from.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
archs=(amd64 armhf)
# On another machine, as far as can be: its name is none of the package's business.
elsewhere=()
! unshare -u hostname elsewhere 2>/dev/null || elsewhere=(unshare -u bash -c 'hostname elsewhere && exec "$@"' bash)
build() { packaging/dist.sh "$@" && packaging/package.sh deb "$@" && packaging/package.sh rpm "$@"; }
export -f build
(cd "$work" && "${elsewhere[@]}" bash -euc 'build "$@"' bash "${archs[@]}") >"$work/said" 2>&1 ||
  die "the second build: $(tail -3 "$work/said")"
n=0
while read -r sum file; do
  [[ $(sha256sum "dist/$file" | cut -d' ' -f1) = "$sum" ]] || die "$file differs when it is built again"
  n=$((n + 1))
done <"$work/dist/SHA256SUMS"
((n == 10)) || die "$n files were compared, not 10"
say "reproducible: $n programs, tarballs and packages are the same, byte for byte, built twice"
