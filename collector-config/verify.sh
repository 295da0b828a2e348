#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sends the bundled recording through a Collector and asks the backends whether it is there.
set -euo pipefail

usage() {
	cat <<'TEXT'
Usage: verify.sh [--collector URL] [--pyroscope URL] [--tempo URL] [--timeout SECONDS]

Sends the bundled recording of an H200 through a Collector, with its times shifted to now, and asks
the backends for it: the profile type, the GPU wait of the whole recording, and that of one span.

  --collector URL    OTLP over HTTP of the Collector   [default: http://127.0.0.1:4318]
  --pyroscope URL    query API of Pyroscope            [default: http://127.0.0.1:4040]
  --tempo URL        also send that span as a trace, and ask Tempo for it; such as
                     http://127.0.0.1:3200
  --timeout SECONDS  how long to wait for each thing to show up   [default: 60]

Needs otel-gpuflame (with its extra `agent`), curl and python3 on PATH.
Ends with 0 if everything is there, 1 if something is not, 2 if the command cannot run.

Examples:
  verify.sh
  verify.sh --collector http://collector:4318 --pyroscope http://pyroscope:4040 --timeout 120
TEXT
}

# What the recording holds: the service, one of its spans, and the type of its headline.
readonly SERVICE='train_step.py'
readonly TRACE_ID='fcfb012bd8e3ca1f9a2846663ec4e0d6'
readonly SPAN_ID='d8593a81fef60246'
readonly PROFILE_TYPE='gpu:gpu_wait:nanoseconds:gpu:nanoseconds'

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly CAPTURE="$HERE/../examples/captures/h200_train.ogfcap"

collector='http://127.0.0.1:4318'
pyroscope='http://127.0.0.1:4040'
tempo=''
timeout_s=60

say() { printf '%s\n' "$*"; }

fail() {
	printf 'verify: %s\n' "$*" >&2
	exit 1
}

cannot_run() {
	printf 'verify: %s\n' "$*" >&2
	exit 2
}

read_arguments() {
	while [ $# -gt 0 ]; do
		case $1 in
		-h | --help)
			usage
			exit 0
			;;
		--collector | --pyroscope | --tempo | --timeout)
			[ -n "${2:-}" ] || cannot_run "$1 needs a value; --help tells more"
			;;
		*) cannot_run "unknown argument $1; --help tells more" ;;
		esac
		case $1 in
		--collector) collector=${2%/} ;;
		--pyroscope) pyroscope=${2%/} ;;
		--tempo) tempo=${2%/} ;;
		--timeout) timeout_s=$2 ;;
		esac
		shift 2
	done
	[[ $timeout_s =~ ^[0-9]+$ ]] ||
		cannot_run "--timeout $timeout_s is not a whole number of seconds"
}

check_tools() {
	local tool
	for tool in otel-gpuflame curl python3; do
		command -v "$tool" >/dev/null || cannot_run "no $tool on PATH"
	done
	[ -r "$CAPTURE" ] || cannot_run "no recording at $CAPTURE"
}

# Nanoseconds of GPU wait in the recording; options of `replay` select a part.
expected_ns() {
	otel-gpuflame replay "$CAPTURE" --folded - "$@" 2>/dev/null |
		awk '{ total += $NF } END { printf "%.0f\n", total }'
}

# One call of Pyroscope's query API: method, JSON body.
ask() {
	curl --silent --show-error --fail-with-body --max-time 10 \
		--header 'Content-Type: application/json' --data "$2" \
		"$pyroscope/querier.v1.QuerierService/$1"
}

# The profile types that Pyroscope has, one a line.
stored_types() {
	local answer
	answer=$(ask ProfileTypes "{\"start\": $start_ms, \"end\": $end_ms}") || return
	printf '%s' "$answer" | python3 -c 'import json, sys
for kind in json.load(sys.stdin).get("profileTypes", []):
    print(kind["ID"])'
}

# Nanoseconds of GPU wait that Pyroscope has of the service; `$1` is a list of span ids in JSON.
stored_ns() {
	local body answer
	body=$(printf '{"profileTypeID": "%s", "labelSelector": "%s", "start": %s, "end": %s, "spanSelector": %s}' \
		"$PROFILE_TYPE" "{service_name=\\\"$SERVICE\\\"}" "$start_ms" "$end_ms" "$1")
	answer=$(ask SelectMergeStacktraces "$body") || return
	printf '%s' "$answer" | python3 -c 'import json, sys
print(json.load(sys.stdin).get("flamegraph", {}).get("total", 0))'
}

send_recording() {
	local output
	if ! output=$(otel-gpuflame replay "$CAPTURE" --endpoint "$collector" --protocol http/protobuf 2>&1); then
		printf '%s\n' "$output" >&2
		fail "the Collector at $collector did not take the recording: see the lines above"
	fi
}

# Waits until Pyroscope has `$3` ns more than the `$2` ns it had before; `$1` is what is looked for,
# `$4` a list of span ids.
await_ns() {
	local what=$1 before=$2 expected=$3 spans=$4 stored found=0
	local deadline=$((SECONDS + timeout_s))
	while :; do
		# A query that fails once is asked again.
		if stored=$(stored_ns "$spans" 2>/dev/null); then found=$((stored - before)); fi
		if [ "$found" -eq "$expected" ]; then
			say "ok  $what: $found ns of GPU wait"
			return
		fi
		[ "$SECONDS" -lt "$deadline" ] || break
		sleep 1
	done
	say "Pyroscope has these profile types: $(stored_types | paste -sd ' ')" >&2
	if [ "$found" -eq 0 ]; then
		fail "$what is not in Pyroscope at $pyroscope after $timeout_s s, although the Collector took it." \
			"Look for 'Exporting failed' in the Collector's log. With 'HTTP Status Code 400' there and" \
			"\"invalid label name ''\" in Pyroscope's log, pyroscope.yaml is missing from the Collector's" \
			"command line."
	fi
	fail "$what: Pyroscope has $found ns of GPU wait, and the recording $expected ns"
}

# The span of the recording as a trace, as the application would have sent it.
send_span() {
	local end_s body
	end_s=$(date +%s)
	body=$(printf '{"resourceSpans": [{
		"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "%s"}}]},
		"scopeSpans": [{"spans": [{
			"traceId": "%s", "spanId": "%s", "name": "otel_gpuflame verify", "kind": 1,
			"startTimeUnixNano": "%s000000000", "endTimeUnixNano": "%s000000000",
			"attributes": [{"key": "pyroscope.profile.id", "value": {"stringValue": "%s"}}]}]}]}]}' \
		"$SERVICE" "$TRACE_ID" "$SPAN_ID" "$((end_s - 10))" "$end_s" "$SPAN_ID")
	curl --silent --show-error --fail-with-body --max-time 10 --output /dev/null \
		--header 'Content-Type: application/json' --data "$body" "$collector/v1/traces" ||
		fail "the Collector at $collector did not take the trace"
}

# Whether Tempo has the span with the attribute that Grafana looks for.
stored_span() {
	curl --silent --fail --max-time 10 --header 'Accept: application/json' \
		"$tempo/api/v2/traces/$TRACE_ID" |
		python3 -c 'import json, sys
wanted = {"key": "pyroscope.profile.id", "value": {"stringValue": sys.argv[1]}}
def found(node):
    if isinstance(node, list):
        return any(map(found, node))
    return isinstance(node, dict) and (node == wanted or any(map(found, node.values())))
sys.exit(not found(json.load(sys.stdin)))' "$SPAN_ID" 2>/dev/null
}

await_span() {
	local deadline=$((SECONDS + timeout_s))
	until stored_span; do
		[ "$SECONDS" -lt "$deadline" ] ||
			fail "trace $TRACE_ID is not in Tempo at $tempo after $timeout_s s," \
				"although the Collector took it"
		sleep 1
	done
	say "ok  trace $TRACE_ID with span $SPAN_ID in Tempo"
}

read_arguments "$@"
check_tools
whole=$(expected_ns) || cannot_run "\`otel-gpuflame replay $CAPTURE\` fails: run it to see why"
of_span=$(expected_ns --span-id "$SPAN_ID") || cannot_run "the recording has no span $SPAN_ID"
# Fixed, so that what was there before can be told from what comes: others may be sending too.
start_ms=$((($(date +%s) - 600) * 1000))
end_ms=$((start_ms + 1200000))

before=$(stored_ns '[]') || fail "Pyroscope at $pyroscope does not answer queries"
before_span=$(stored_ns "[\"$SPAN_ID\"]") || fail "Pyroscope at $pyroscope answers no query by span"
send_recording
say "ok  the Collector at $collector took the recording"
await_ns "the recording" "$before" "$whole" '[]'
await_ns "span $SPAN_ID" "$before_span" "$of_span" "[\"$SPAN_ID\"]"
stored_types | grep --quiet --fixed-strings --line-regexp "$PROFILE_TYPE" ||
	fail "Pyroscope does not list the profile type $PROFILE_TYPE"
say "ok  profile type $PROFILE_TYPE"
if [ -n "$tempo" ]; then
	send_span
	await_span
fi
say "Everything is there. In Grafana: Explore, Pyroscope, $PROFILE_TYPE, {service_name=\"$SERVICE\"}."
