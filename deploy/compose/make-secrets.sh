#!/usr/bin/env bash
# Makes what compose.yaml mounts under secrets/: a token file for the sidecar, a token for each that calls it, and
# Grafana's password. Needs `triage-monitor` on the PATH (or TRIAGE_MONITOR). What is there already stays.
set -euo pipefail
cd "$(dirname "$0")"
monitor=${TRIAGE_MONITOR:-triage-monitor}
out=${1:-secrets}

# Containers run as users of their own and read through the mounts; on this machine the folder is closed to others.
umask 022
mkdir -p "$out/monitor"
chmod 700 "$out"

token() { # CALLER SCOPE...
  local caller=$1 scopes=()
  shift
  for scope in "$@"; do scopes+=(--scope "$scope"); done
  [ -s "$out/$caller-token" ] && return
  "$monitor" token add "compose-$caller" "${scopes[@]}" --file "$out/monitor/tokens.json" >"$out/$caller-token"
}

token trainer ingest
token prometheus read
token alertmanager control
token person read control
chmod 644 "$out/monitor/tokens.json"
if [ ! -s "$out/grafana-password" ]; then
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$out/grafana-password"
fi
