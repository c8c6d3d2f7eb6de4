#!/bin/sh
# Checks the dashboard with the types that Grafana publishes: run.sh [DASHBOARD.json]
# Needs Node.js and, the first time, npm's registry.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../target}/monitoring
mkdir -p "$out"
cp "$here/package.json" "$here/package-lock.json" "$here/schema.ts" "$here/check.mjs" "$out"
[ -e "$out/node_modules/.package-lock.json" ] || (cd "$out" && npm ci --ignore-scripts --no-audit --no-fund --silent)
exec node "$out/check.mjs" "${1:-$here/../../deploy/monitoring/dashboard.json}"
