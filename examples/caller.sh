#!/usr/bin/env bash
# A caller that needs nothing but curl: it offers the agent one tool, runs it when asked, and prints what it says.
# OUBLIETTE_TOKEN and OUBLIETTE_URL say who and where.
set -euo pipefail
url=${OUBLIETTE_URL:-http://127.0.0.1:8080}

# request METHOD PATH [BODY]. The token goes to curl on stdin: everybody may read a process's arguments.
request() {
    curl --config - --silent --show-error --fail-with-body --no-buffer --request "$1" \
        --header 'Content-Type: application/json' ${3:+--data "$3"} "$url$2" \
        <<< "header = \"Authorization: Bearer ${OUBLIETTE_TOKEN:?is not set}\""
}

# field NAME: the first string of that name in a line of JSON. Of its escapes it knows \" and \\ alone.
field() {
    grep -oE "\"$1\": ?\"([^\"\\\\]|\\\\.)*\"" | head -n 1 | sed -E 's/^[^:]*: ?"//; s/"$//; s/\\(["\\])/\1/g'
}

schema='{"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}'
tool='{"name": "send_notification", "description": "Show a message to the user", "inputSchema": '$schema'}'
context='{"caller_id": "myapp", "caller_tools": ['$tool']}'
started=$(request POST /sessions '{"message": "The build is green", "context": '"$context"'}') || {
    echo "$started" >&2 # why it was refused
    exit 1
}
path=/sessions/$(field session_id <<< "$started")

# Whatever the agent asked before this stream opened waits for it, and since_index=0 replays what it said.
request GET "$path/events?since_index=0" | while IFS= read -r line; do
    case $line in
    'data: {"type":"caller_tool_request",'*)
        echo "notification: $(field message <<< "$line")"
        request POST "$path/requests/$(field request_id <<< "$line")" '{"result": {"status": "sent"}}'
        ;;
    'data: {"type":"message",'*'"role":"assistant",'*)
        echo "agent: $(field text <<< "$line")"
        ;;
    'data: {"type":"turn_completed",'*)
        request DELETE "$path" > /dev/null # and the stream ends with the session
        ;;
    'data: {"type":"session_ended",'*'"reason":"failed"'*)
        echo "the agent failed" >&2
        exit 1
        ;;
    esac
done
