# Shared by the scripts of test/package: saying, waiting, and cleaning up.

say() { echo "package: $*"; }

die() {
  echo "package: FAILED: $*" >&2
  exit 1
}

# until SECONDS COMMAND...: the command succeeds within that time.
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}

pids=()
mounts=()

# Ends only what was started here.
cleanup() {
  local code=$? p m
  for p in "${pids[@]}"; do
    kill -9 "$p" 2>/dev/null || true
    wait "$p" 2>/dev/null || true
  done
  for m in "${mounts[@]}"; do
    umount "$m" 2>/dev/null || true
  done
  [[ -z ${work:-} ]] || rm -rf "$work"
  exit "$code"
}
