#!/bin/sh
# A backup of a data directory while its gateway runs: backup.sh DATA_FOLDER BACKUP_FOLDER
# Writes millrace-TIME.tar, which only its owner may read: it holds secrets. KEEP_DAYS (30) is how long older ones stay.
# How to restore it: docs/admins.md. What can be made again is left out: models, saved KV blocks.
set -eu
umask 077
data=${1:?the data directory}
kept=${2:?the folder for backups}
[ -f "$data/secret" ] || { echo "backup.sh: $data is no data directory of a gateway" >&2; exit 1; }
mkdir -p "$kept"
work=$(mktemp -d "$kept/.making-XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

# What waits to be booked comes first: a line that is booked meanwhile is found booked, one that was left out is lost.
[ ! -f "$data/unbooked.jsonl" ] || cp -p "$data/unbooked.jsonl" "$work/"

# So does the newest block of the ledger: the copied ledger must have it, and may have more.
[ ! -f "$data/ledger.checkpoint" ] || cp -p "$data/ledger.checkpoint" "$work/"

# Databases as they are at one moment, with what their logs hold.
(cd "$data" && find . -name '*.db' -not -path '*/models/*') | while IFS= read -r name; do
    mkdir -p "$work/$(dirname "$name")"
    python3 - "$data/$name" "$work/$name" <<'PYTHON'
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

source = f"{Path(sys.argv[1]).resolve().as_uri()}?mode=ro"
with closing(sqlite3.connect(source, uri=True, timeout=60)) as found, closing(sqlite3.connect(sys.argv[2])) as copy:
    found.backup(copy)
    if copy.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        sys.exit(f"{sys.argv[1]} is damaged")
PYTHON
done

# All else: keys, certificates, settings, files of batches. 1 says that a file was written meanwhile, which is no failure.
tar -C "$data" -cf "$work/.rest" --exclude='*.db' --exclude='*.db-wal' --exclude='*.db-shm' --exclude='*.sock' \
    --exclude=./unbooked.jsonl --exclude=./ledger.checkpoint --exclude=./running.json --exclude=./lock --exclude=./cluster/models \
    --exclude='./nodes/*/models' --exclude=./node/models \
    --exclude='./nodes/*/kv' --exclude=./node/kv . || [ $? -eq 1 ]
tar -C "$work" -xf "$work/.rest"
rm "$work/.rest"

made="$kept/millrace-$(date -u +%Y%m%dT%H%M%SZ).tar"
tar -C "$work" -cf "$made.part" .
sync "$made.part" 2>/dev/null || sync
mv "$made.part" "$made"
find "$kept" -maxdepth 1 -name 'millrace-*.tar' -mtime "+${KEEP_DAYS:-30}" -delete
echo "$made"
