#!/bin/sh
# Builds the outside checker and checks a history with it: run.sh [-timeout 1m] HISTORY.jsonl
# Needs Go and, the first time, its module proxy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../target}
mkdir -p "$out"
(cd "$here" && go build -trimpath -o "$out/thalweg-peer-porcupine" .)
exec "$out/thalweg-peer-porcupine" "$@"
