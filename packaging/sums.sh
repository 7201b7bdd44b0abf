#!/usr/bin/env bash
# Writes dist/SHA256SUMS: programs, archives and packages that are there. Check with `sha256sum -c SHA256SUMS` in dist.
set -euo pipefail
cd "$(dirname "$0")/../dist"
files=()
for f in */hubd */hubctl *.tar.gz *.deb *.rpm; do
  [[ ! -f $f ]] || files+=("$f")
done
sha256sum "${files[@]}" >SHA256SUMS.new
mv SHA256SUMS.new SHA256SUMS
