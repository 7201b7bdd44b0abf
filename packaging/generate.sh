#!/usr/bin/env bash
# Writes dist/share/{man,completion}: generated from the commands themselves, so that they cannot be wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p dist
out=$(mktemp -d dist/share.XXXXXX)
trap 'rm -rf "$out"' EXIT
mkdir "$out/man" "$out/completion"
CGO_ENABLED=0 "${GO:-go}" run -ldflags "-X main.version=${VERSION:-}" ./ctl/generate "$out"
cp packaging/hubd.8 "$out/man/"
gzip -9n "$out"/man/*
chmod -R u=rwX,go=rX "$out"
rm -rf dist/share
mv -T "$out" dist/share
trap - EXIT
