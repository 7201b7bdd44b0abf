#!/usr/bin/env bash
# Makes dist/mod32: a go.mod, for `go build -modfile=dist/mod32/go.mod`, that 32-bit programs are built with.
#
# The memory arena of Badger's table builder (ristretto, z/allocator.go) shifts an int by 32 bits where it opens its
# next buffer. Where an int has 32 bits the result is 0: memory that is in use is handed out again, and the tables on
# disk are corrupt without any error. The go.mod made here replaces the module by a copy in which that one line
# converts before it shifts. When the line is not there exactly once, this fails: then the module has changed, and
# somebody has to look.
set -euo pipefail
cd "$(dirname "$0")/.."

module=github.com/dgraph-io/ristretto/v2
file=z/allocator.go
wrong='uint64((bufIdx+1)<<32)'
right='uint64(bufIdx+1)<<32'
out=dist/mod32

go=${GO:-go}
source=$($go mod download -json $module | sed -n 's/^\t*"Dir": "\(.*\)",\{0,1\}$/\1/p')
[[ -n $source && -f $source/$file ]] || { echo "mod32: $module has no $file" >&2; exit 1; }
found=$({ grep -oF "$wrong" "$source/$file" || true; } | wc -l)
if [[ $found -ne 1 ]]; then
  echo "mod32: $module: $file has \`$wrong\` $found times, not once: it has changed." >&2
  echo "mod32: read the file, see whether 32-bit is right now, and change or drop packaging/mod32.sh" >&2
  exit 1
fi

# Written aside and moved in place: several builds may want it at the same time. What it says changes only with go.mod
# and the module, so that a present and equal copy is left alone and Go's build cache holds.
mkdir -p dist
new=$(mktemp -d dist/mod32.XXXXXX)
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/ristretto/z"
cp "$source"/{go.mod,LICENSE} "$source"/*.go "$new/ristretto/"
cp -r "$source"/z/. "$new/ristretto/z/"
chmod -R u+w "$new/ristretto"
find "$new/ristretto" -name '*_test.go' -delete
sed -i "s/uint64((bufIdx+1)<<32)/$right/" "$new/ristretto/$file"
[[ $(grep -cF "$right" "$new/ristretto/$file") -eq 1 ]] && ! grep -qF "$wrong" "$new/ristretto/$file" ||
  { echo "mod32: the line was not mended" >&2; exit 1; }
cp go.mod go.sum "$new/"
# A relative path is relative to the main module's root, so that programs hold no path of the machine.
$go mod edit -replace "$module=./$out/ristretto" "$new/go.mod"
diff -rq "$new" "$out" >/dev/null 2>&1 && exit 0
rm -rf "$out"
mv -T "$new" "$out"
trap - EXIT
