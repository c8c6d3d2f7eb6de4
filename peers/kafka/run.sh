#!/bin/sh
# Fetches Kafka, builds its broker and its load, and compares it with Thalweg. Arguments go to run.py:
# --thalweg target/release/thalweg --dir DIRECTORY --rounds 5 --seconds 5 --only "1 client" --json kafka.json
# Needs Python 3.11, a JDK of version 17 or later, Maven, and, the first time, Maven's registry.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../target}/peer-kafka
mkdir -p "$out/classes"
# The version is in the pom, so the jars are fetched again when it is newer.
if [ ! -e "$out/fetched" ] || [ "$here/pom.xml" -nt "$out/fetched" ]; then
    rm -rf "$out/lib"
    mvn -B -q -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$out/lib"
    touch "$out/fetched"
fi
javac -Xlint:all,-processing,-classfile --release 17 -cp "$out/lib/*" -d "$out/classes" "$here"/src/*.java
exec python3 "$here/run.py" --classpath "$out/classes:$out/lib/*" "$@"
