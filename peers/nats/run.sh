#!/bin/sh
# Builds and runs the comparison with NATS. Arguments go to it: -rounds 3 -seconds 5 -only "open loop" -json nats.json
# Needs Go and, the first time, its module proxy. Run it right before or after `thalweg bench pubsub`, with nothing beside it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../target}
mkdir -p "$out"
(cd "$here" && go build -trimpath -o "$out/thalweg-peer-nats" .)
exec "$out/thalweg-peer-nats" "$@"
