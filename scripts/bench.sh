#!/usr/bin/env bash
# `make bench`: the transports, then what long prompts do to running answers, once with a pair of
# workers and once with a unified one on the same cores. Arguments go to `pdserve bench serve`.
set -euo pipefail
cd "$(dirname "$0")/.."

pdserve=.venv/bin/pdserve
model=${MODEL:-smollm2-135m}
logs=$(mktemp -d -t pdserve-bench-XXXX)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait' EXIT

# serve NAME OPTIONS...: start a local cluster and set `url` once it is ready.
serve() {
    local log=$logs/$1
    "$pdserve" up --model "$model" --port 0 "${@:2}" >"$log" 2>&1 &
    pids+=($!)
    until url=$(sed -n 's/^ready //p' "$log") && [[ $url ]]; do
        kill -0 "${pids[-1]}" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.2
    done
}

"$pdserve" bench transfer
serve pair --prefill 1 --decode 1
pair=$url
serve unified --unified 1
"$pdserve" bench serve --scenario interference --url "$pair" --baseline-url "$url" "$@"
