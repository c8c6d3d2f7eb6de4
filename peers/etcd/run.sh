#!/bin/sh
# Builds the comparison with etcd, and runs `thalweg bench cluster --peer etcd` with it. Arguments go to that command:
# --rounds 3 --duration 3s --clients 1,100 --json
# THALWEG names the command, by default the one on the path. Needs Go and, the first time, its module proxy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../target}
mkdir -p "$out"
(cd "$here" && go build -trimpath -o "$out/thalweg-peer-etcd" .)
exec "${THALWEG:-thalweg}" bench cluster --peer etcd --peer-binary "$out/thalweg-peer-etcd" "$@"
