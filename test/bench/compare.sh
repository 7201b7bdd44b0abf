#!/bin/bash
# compare.sh REF BENCH COUNT PACKAGE...: runs the benchmarks of the working tree and of REF in turn, and shows benchstat.
set -eu -o pipefail
ref=${1:?give a commit: make bench-compare REF=HEAD~1} bench=$2 count=$3
shift 3
commit=$(git rev-parse --verify --quiet "$ref^{commit}") || { echo "there is no commit $ref" >&2; exit 2; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/src"
git archive "$commit" | tar -x -C "$dir/src"

# A package that REF does not have is left out there; a benchmark that fails ends it all.
run() { # DIRECTORY OUTPUT PACKAGE
	[ -d "$1/$3" ] || return 0
	(cd "$1" && go test -run '^$' -bench "$bench" -benchmem -count 1 -timeout 30m "$3") >>"$2"
}
# In turn, so that whatever else the machine does meets both.
for ((i = 1; i <= count; i++)); do
	echo "round $i of $count" >&2
	for package in "$@"; do
		run "$dir/src" "$dir/old.txt" "$package"
		run . "$dir/new.txt" "$package"
	done
done
go run golang.org/x/perf/cmd/benchstat@latest "$ref=$dir/old.txt" "now=$dir/new.txt"
